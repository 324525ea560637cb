"""Published mask_mods, verbatim: each against what FlexAttention's create_mask makes of it.

attention-gym's mask files come from the package `attn-gym`; the examples of PyTorch's
documentation and its paged attention come with torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as flex

import maskc as mc
from maskc.core.errors import NotTraceable
from tests.support.exact_attention import exact

SEQUENCES, HEADS, N = 2, 2, 24
Mod = Callable[..., object]


def vmapped(mod: Mod, n_q: int, n_kv: int) -> np.ndarray:
    """bool [sequences, heads, n_q, n_kv], as FlexAttention evaluates it: scalars under vmap."""
    return flex.create_mask(mod, SEQUENCES, HEADS, n_q, n_kv, device="cpu").numpy()


def check(mod: Mod, n_q: int = N, n_kv: int | None = None) -> mc.Mask:
    """Every pair of every sequence and head, and the number of pairs."""
    n_kv = n_q if n_kv is None else n_kv
    mask, right = mc.from_mask_mod(mod), vmapped(mod, n_q, n_kv)
    dense = mask.dense(n_q, n_kv, n_heads=HEADS)
    if dense.ndim == 3:  # sequences or heads, whichever the mask_mod tells apart
        by_sequence = (right == right[:, :1]).all()
        dense = dense[:, None] if by_sequence else dense[None]
    np.testing.assert_array_equal(np.broadcast_to(dense, right.shape), right)
    assert right.any()
    assert mask.count(n_q, n_kv, n_heads=HEADS) == dense.sum()
    return mask


def attends(mod: Mod, n_q: int = N, n_kv: int | None = None) -> None:
    """Compare the result of attention with PyTorch's with the dense matrix."""
    n_kv = n_q if n_kv is None else n_kv
    q, k, v = (torch.randn(SEQUENCES, HEADS, n, 16) for n in (n_q, n_kv, n_kv))
    wanted, _ = exact(q, k, v, vmapped(mod, n_q, n_kv))
    out = mc.attention(q, k, v, mc.from_mask_mod(mod))
    torch.testing.assert_close(out.double(), wanted, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------ attention-gym


OFFSETS = torch.tensor([0, 2, 6, 9, 24])
KEEP = torch.arange(N) % 11 == 0
IMAGES = torch.tensor([[0, 5], [5, 12], [7, 20]])
PARENTS = [-1, 0, 0, 1, 1, 2, 5]
GYM: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "batchify": lambda m: (m.batchify_mask_mod(m.causal_mask, 7),),
    "block_diffusion": lambda m: (m.generate_block_diffusion_mask(12, 4),),
    "causal": lambda m: (m.causal_mask,),
    "dilated_sliding_window": lambda m: (m.generate_dilated_sliding_window(6, 2),),
    "documents": lambda m: (m.generate_doc_mask_mod(m.causal_mask, OFFSETS),),
    "documents_full": lambda m: (m.generate_doc_mask_mod(flex.noop_mask, OFFSETS),),
    "documents_of_windows": lambda m: (
        m.generate_doc_mask_mod(m.generate_sliding_window(3), OFFSETS),
    ),
    "documents_packed": lambda m: (m.generate_packed_causal_doc_mask_mod(OFFSETS),),
    "flamingo": lambda m: (m.generate_vision_cross_attention_mask_mod(IMAGES, 8),),
    "global_sliding_window": lambda m: (m.generate_global_sliding_window(3, KEEP),),
    "jetspec_tree": lambda m: (
        m.generate_jetspec_tree_causal_mask_mod(17, m.build_tree_ancestor_matrix(PARENTS, "cpu")),
        7, N,
    ),
    "jetspec_training": lambda m: (m.generate_jetspec_training_mask_mod(8, 4), 16, N),
    "natten": lambda m: (m.generate_natten(6, 6, 3, 3), 36),
    "natten_tiled": lambda m: (m.generate_tiled_natten(8, 8, 3, 5, 4, 2), 64),
    "prefix_lm": lambda m: (m.generate_prefix_lm_mask(5),),
    "shared_prefix": lambda m: (
        m.generate_shared_prefix_mask_mod(OFFSETS, torch.tensor([0, 0, 2, 2])),
    ),
    "sliding_window": lambda m: (m.generate_sliding_window(5),),
    "sta_2d": lambda m: (m.generate_sta_mask_mod_2d((6, 8), (6, 4), (2, 2), 8), 56),
    "sta_3d": lambda m: (m.generate_sta_mask_mod_3d((2, 4, 4), (2, 4, 4), (2, 2, 2), 4), 36),
    "svg_spatial": lambda m: (m.generate_spatial_head_mask_mod(4, 3, 10, 2, True, 8), 34),
    "svg_temporal": lambda m: (m.generate_temporal_head_mask_mod(4, 3, 10, 2), 34),
    "vsa_padding": lambda m: (
        import_module("attn_gym.masks.vsa").generate_vsa_padding_mask_mod(
            torch.tensor([6, 3, 6, 1]), 6
        ),
    ),
}  # fmt: skip
"""(mask_mod, queries, keys) of every mask file of attention-gym."""


def gym(name: str) -> tuple[Any, ...]:
    return GYM[name](pytest.importorskip("attn_gym.masks"))


@pytest.mark.parametrize("name", GYM)
def test_attention_gym(name: str) -> None:
    check(*gym(name))


@pytest.mark.parametrize("name", ["natten", "shared_prefix", "flamingo", "jetspec_tree"])
def test_attention_with_masks_of_attention_gym(name: str) -> None:
    attends(*gym(name))


def beyond_tracing() -> dict[str, tuple[Mod, int, str]]:
    """(mask_mod, length, the line that cannot be followed) of attention-gym's other mask files."""
    m = pytest.importorskip("attn_gym.masks")
    chosen = torch.tensor([[0, 1], [1, 0], [2, 0], [3, 3]], dtype=torch.int32)
    return {
        "morton_natten": (
            m.generate_morton_natten(8, 8, 3, 3), 64, "code = (code | (code >> 1)) & 0x33333333",
        ),
        "vsa": (
            m.generate_vsa_mask_mod(chosen[None, None].expand(SEQUENCES, HEADS, -1, -1), 6), 24,
            "kv_tile.unsqueeze(-1)",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["morton_natten", "vsa"])
def test_what_cannot_be_followed_of_attention_gym_is_computed(name: str) -> None:
    """Bits of an integer become tables; a search in a row that was chosen is evaluated."""
    mod, n, line = beyond_tracing()[name]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check(mod, n)
        attends(mod, n)
    assert len(told) == (0 if name == "morton_natten" else 2)
    assert all("exact=True refuses it" in str(each.message) for each in told)
    with pytest.raises(NotTraceable) as caught:
        mc.from_mask_mod(mod, exact=True)
    assert line in str(caught.value)
    assert "hint:" in str(caught.value)


def test_masks_of_attention_gym_are_those_of_combinators() -> None:
    m = pytest.importorskip("attn_gym.masks")
    start = {"align": "start"}
    for mod, mask in (
        (m.causal_mask, mc.causal(**start)),
        (m.generate_sliding_window(5), mc.window(5, **start)),
        (m.generate_prefix_lm_mask(5), mc.prefix(5) | mc.causal(**start)),
        (m.generate_dilated_sliding_window(6, 2), mc.dilated(3, 3, stride=2, **start)),
        (m.batchify_mask_mod(m.causal_mask, 7), mc.chunked(7, **start)),
    ):
        assert mc.from_mask_mod(mod).equals(mask)


# ------------------------------------------------------------------ PyTorch's documentation


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def sliding_window_causal(b, h, q_idx, kv_idx):
    causal_mask = q_idx >= kv_idx
    window_mask = q_idx - kv_idx <= 6
    return causal_mask & window_mask


prefix_length = torch.tensor([3, 9], dtype=torch.int32)
document_id = torch.tensor([0] * 5 + [1] * 7 + [2] * 12)
seq_len = torch.tensor([24, 13])
offset = torch.tensor([10, 4])


def prefix_mask(b, h, q_idx, kv_idx):
    return kv_idx < prefix_length[b]


def document_causal_mask(b, h, q_idx, kv_idx):
    causal_mask = q_idx >= kv_idx
    document_mask = document_id[q_idx] == document_id[kv_idx]
    return causal_mask & document_mask


def padding_mask(b, h, q_idx, kv_idx):
    return (q_idx < seq_len[b]) & (kv_idx < seq_len[b])


def offset_causal(b, h, q_idx, kv_idx):
    return q_idx + offset[b] >= kv_idx


def natten_mask(b, h, q_idx, kv_idx, width=6, kernel=3):
    q_x, q_y = q_idx // width, q_idx % width
    kv_x, kv_y = kv_idx // width, kv_idx % width
    kernel_x = q_x.clamp(kernel // 2, (width - 1) - kernel // 2)
    kernel_y = q_y.clamp(kernel // 2, (width - 1) - kernel // 2)
    hori_mask = (kernel_x - kv_x).abs() <= kernel // 2
    vert_mask = (kernel_y - kv_y).abs() <= kernel // 2
    return hori_mask & vert_mask


DOCUMENTED: dict[str, Mod] = {
    "causal": causal,
    "sliding_window_causal": sliding_window_causal,
    "sliding_window_of_parts": flex.and_masks(lambda b, h, q, kv: q - kv <= 6, causal),
    "prefix_lm": flex.or_masks(prefix_mask, causal),
    "document_causal": document_causal_mask,
    "padding": padding_mask,
    "padded_causal": flex.and_masks(padding_mask, causal),
    "offset_causal": offset_causal,
    "natten": natten_mask,
    "noop": flex.noop_mask,
}


@pytest.mark.parametrize(("name", "lengths"), [
    *((name, (36 if name == "natten" else N,)) for name in DOCUMENTED),
    *((name, (9, N)) for name in ("offset_causal", "prefix_lm", "padding")),
])  # fmt: skip
def test_examples_of_pytorch(name: str, lengths: tuple[int, ...]) -> None:
    check(DOCUMENTED[name], *lengths)


@pytest.mark.parametrize("name", ["prefix_lm", "padded_causal"])
def test_attention_with_examples_of_pytorch(name: str) -> None:
    attends(DOCUMENTED[name])


def test_paged_attention_of_pytorch() -> None:
    """The mask_mod looks the logical block of a physical one up."""
    paged = pytest.importorskip("torch.nn.attention.experimental._paged_attention")
    cache = paged.PagedAttention(n_pages=8, page_size=4, max_batch_size=SEQUENCES, device="cpu")
    for b in range(SEQUENCES):
        cache.reserve(torch.tensor(b), torch.tensor(8 + 4 * b))
    check(cache.get_mask_mod(causal), 12, 32)
