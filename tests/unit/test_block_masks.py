"""`from_block_mask`: what FlexAttention's kernels make of a BlockMask, its lists and its rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as flex

import maskc as mc
from maskc.core.errors import DataShape, NotAMask, NotTraceable

N, SEQUENCES, HEADS = 200, 2, 3
DOC = torch.arange(N) // 70
LENGTHS = torch.tensor([90, 200])
Mod = Callable[..., object]


def causal(b, h, q, k):
    return q >= k


MODS: dict[str, tuple[Mod, int | None, int | None]] = {
    "causal": (causal, None, None),
    "window": (lambda b, h, q, k: (q >= k) & (q - k < 50), None, None),
    "documents": (lambda b, h, q, k: (DOC[q] == DOC[k]) & (q >= k), None, None),
    "lengths": (lambda b, h, q, k: (k < LENGTHS[b]) & (q >= k), SEQUENCES, None),
    "heads": (lambda b, h, q, k: q >= k + 60 * h, None, HEADS),
    "both": (lambda b, h, q, k: (k < LENGTHS[b]) & (q >= k - 60 * h), SEQUENCES, HEADS),
    "noop": (flex.noop_mask, None, None),
}


def meaning(block_mask: object) -> np.ndarray:
    """bool [sequences, heads, n_q, n_kv]: full blocks, and partial ones where the rule holds."""
    n_q, n_kv = block_mask.seq_lengths
    rows, columns = block_mask.BLOCK_SIZE
    rule = flex.create_mask(block_mask.mask_mod, SEQUENCES, HEADS, n_q, n_kv, device="cpu")
    kept = torch.zeros(SEQUENCES, HEADS, n_q, n_kv, dtype=torch.bool)
    lists = [(block_mask.kv_num_blocks, block_mask.kv_indices, True)]
    if block_mask.full_kv_num_blocks is not None:
        lists.append((block_mask.full_kv_num_blocks, block_mask.full_kv_indices, False))
    for counts, indices, ruled in lists:
        for b, h, row in np.ndindex(SEQUENCES, HEADS, counts.shape[2]):
            at = b % counts.shape[0], h % counts.shape[1], row
            for column in indices[at][: counts[at]].tolist():
                tile = b, h, slice(row * rows, (row + 1) * rows), slice(
                    column * columns, (column + 1) * columns)  # fmt: skip
                kept[tile] |= rule[tile] if ruled else True
    return kept.numpy()


def compare(block_mask: object) -> mc.Mask:
    mask, right = mc.from_block_mask(block_mask), meaning(block_mask)
    dense = mask.dense(*block_mask.seq_lengths, n_heads=HEADS)
    if dense.ndim == 3:
        dense = dense[:, None] if len(dense) == SEQUENCES else dense[None]
    np.testing.assert_array_equal(np.broadcast_to(dense, right.shape), right)
    return mask


@pytest.mark.parametrize("size", [128, 64, (128, 32), 256])
@pytest.mark.parametrize("name", MODS)
def test_what_create_block_mask_makes_is_its_mask_mod(name: str, size: int) -> None:
    mod, batch, heads = MODS[name]
    made = flex.create_block_mask(mod, batch, heads, N, N, device="cpu", BLOCK_SIZE=size)
    assert compare(made) == mc.from_mask_mod(mod)


def test_other_lengths_of_queries_and_keys() -> None:
    made = flex.create_block_mask(causal, None, None, 100, 300, device="cpu")
    assert compare(made).equals(mc.causal(align="start"))


def listed(partial: np.ndarray, full: np.ndarray | None, mod: Mod | None, size: int = 64) -> object:
    """A BlockMask of tables of blocks [sequences, heads, rows, columns]."""

    def lists(table: np.ndarray) -> tuple[object, object]:
        order = np.argsort(~table, axis=-1, kind="stable")
        return torch.tensor(table.sum(-1), dtype=torch.int32), torch.tensor(order).int()

    more = (None, None) if full is None else lists(full)
    return flex.BlockMask.from_kv_blocks(
        *lists(partial), *more, BLOCK_SIZE=size, mask_mod=mod, seq_lengths=(N, N)
    )


RNG = np.random.default_rng(0)
TABLE, OTHER = (RNG.random((1, 1, 4, 4)) < 0.5 for _ in range(2))
OF_HEADS = RNG.random((1, HEADS, 4, 4)) < 0.5
OF_BOTH = RNG.random((SEQUENCES, HEADS, 4, 4)) < 0.5


@pytest.mark.parametrize(
    ("partial", "full", "mod"),
    [
        (TABLE, None, causal),
        (TABLE, None, None),
        (TABLE, OTHER & ~TABLE, causal),
        (TABLE, OTHER, causal),  # listed twice: once
        (np.zeros_like(TABLE), TABLE, None),
        (np.zeros_like(TABLE), np.zeros_like(TABLE), causal),
        (OF_HEADS, None, causal),
        (OF_HEADS, OTHER & ~OF_HEADS, MODS["both"][0]),
        (OF_BOTH, ~OF_BOTH, causal),
        (OF_HEADS | (np.arange(HEADS) == 0)[:, None, None], None, causal),  # the rule, of head 0
        (OF_BOTH[:, :1], None, MODS["documents"][0]),
        (np.ones_like(TABLE), None, causal),
    ],
)
def test_lists_of_blocks(partial, full, mod) -> None:
    compare(listed(partial, full, mod))


def test_blocks_behind_the_last_key_are_none() -> None:
    counts, columns = torch.tensor([[[2]]]).int(), torch.tensor([[[[0, 2, 1]]]]).int()
    made = flex.BlockMask.from_kv_blocks(counts, columns, BLOCK_SIZE=64, seq_lengths=(64, 128))
    assert mc.from_block_mask(made).count(64, 128) == 64 * 64


def test_all_blocks_listed_as_partial_is_the_rule() -> None:
    assert compare(listed(np.ones_like(TABLE), None, causal)) == mc.from_mask_mod(causal)


def test_lists_hold_at_their_lengths() -> None:
    mask = mc.from_block_mask(listed(TABLE, None, causal))
    with pytest.raises(DataShape, match=r"\(200, 200\), expected \(256, 256\)"):
        mask.count(256)


def test_lists_are_data() -> None:
    """Another choice of blocks runs the same kernel."""
    from maskc.dsl.slots import emptied

    one, two = (mc.from_block_mask(listed(t, None, causal)) for t in (TABLE, OTHER))
    assert one != two
    assert emptied(one)[0] == emptied(two)[0]


def test_a_block_mask_of_one_row_of_sequences_is_everybodys() -> None:
    """create_block_mask(B=None) has asked its rule for sequence 0 only."""
    made = flex.create_block_mask(MODS["lengths"][0], None, None, N, N, device="cpu")
    compare(made)


def test_block_masks_of_attention_gym() -> None:
    vsa = pytest.importorskip("attn_gym.masks.vsa")
    from attn_gym.masks.causal import create_causal_block_mask_fast

    made = create_causal_block_mask_fast(None, None, N, N, "cpu")
    assert compare(made) == mc.from_mask_mod(causal)
    chosen = torch.tensor(
        np.stack([RNG.permutation(4)[:2] for _ in range(SEQUENCES * HEADS * 4)])
    ).reshape(SEQUENCES, HEADS, 4, 2)
    sizes = torch.tensor([50, 30, 50, 7])
    compare(vsa.create_vsa_block_mask(chosen, 50, 4))
    compare(vsa.create_vsa_block_mask(chosen, 50, 4, sizes))


@pytest.mark.parametrize("given", [causal, None, np.ones((4, 4), bool), mc.causal()])
def test_what_is_no_block_mask_is_refused(given: object) -> None:
    with pytest.raises(NotAMask, match="from_block_mask"):
        mc.from_block_mask(given)


def test_rows_of_a_block_mask_have_no_rule() -> None:
    """torch leaves the rule out of a slice, and says so when it is asked."""
    made = flex.create_block_mask(causal, None, None, N, N, device="cpu")
    with pytest.raises(NotTraceable, match="mask_mod"):
        mc.from_block_mask(made[:, :, :1])
