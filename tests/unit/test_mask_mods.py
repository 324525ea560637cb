"""mask_mods as they are published: each against its own eager evaluation on grids of indices."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as flex

import maskc as mc
from maskc import driver
from maskc.core.errors import (
    BatchUsed,
    HeadsUnknown,
    MaskcError,
    MaskModFailed,
    MaskUsedAsBool,
    NeedsLengths,
    NotTraceable,
    SequencesUnknown,
)
from maskc.dsl import evaluated
from tests.support.exact_attention import exact
from tests.support.thorough import examples

N, HEADS, SEQUENCES = 12, 2, 2
Mod = Callable[..., object]


def eager(mod: Mod, n: int = N) -> np.ndarray:
    """Return what FlexAttention makes of it: bool [sequences, heads, n, n]."""
    i = torch.arange(n)
    array = torch.zeros(SEQUENCES, HEADS, n, n, dtype=torch.bool)
    for b in range(SEQUENCES):
        for h in range(HEADS):
            kept = mod(torch.tensor(b), torch.tensor(h), i[:, None], i[None])
            array[b, h] = torch.as_tensor(kept)
    return array.numpy()


def found(mask: mc.Mask, n: int = N) -> np.ndarray:
    """Return the pairs of a mask; its dimensions say what differs."""
    dense = mask.dense(n, n_heads=HEADS)
    if dense.ndim == 3:
        dense = dense[:, None] if _by_sequence(mask) else dense[None]
    return np.broadcast_to(dense, (SEQUENCES, HEADS, n, n))


def _by_sequence(mask: mc.Mask) -> bool:
    """Whether the only dimension in front is that of sequences."""
    return all(
        decl.array.ndim - decl.rank in (0, 1 + (decl.rank > 1)) for decl in mask.tables
    ) and (any(decl.array.ndim > decl.rank for decl in mask.tables))


def check(mod: Mod, n: int = N) -> mc.Mask:
    mask = mc.from_mask_mod(mod)
    right = eager(mod, n)
    np.testing.assert_array_equal(found(mask, n), right)
    if (right == right[:1, :1]).all():
        assert mask.count(n) == right[0, 0].sum()
        assert mc.parse(str(mask)) == mask
    return mask


def all_pairs(mod: Mod, n_q: int, n_kv: int) -> torch.Tensor:
    """The dense mask of FlexAttention's create_mask."""
    return flex.create_mask(mod, SEQUENCES, HEADS, n_q, n_kv, device="cpu")


def check_attention(mask: mc.Mask, right: torch.Tensor) -> None:
    """Compare attention, and its gradients, with a softmax over these pairs."""
    given = [torch.randn(SEQUENCES, HEADS, n, 16) for n in (right.shape[2], *2 * right.shape[3:])]
    q, k, v = (x.requires_grad_() for x in given)
    wanted = exact(q, k, v, right)[0].float()
    out, dout = mc.attention(q, k, v, mask), torch.randn_like(wanted)
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    found, wanted = (torch.autograd.grad(x, (q, k, v), dout) for x in (out, wanted))
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def _causal(b, h, q, k):
    return q >= k


def _near(b, h, q, k):
    return q - k <= 3


def _augmented(b, h, q, k):
    keep = q >= k
    keep &= q - k < 5
    keep |= k < 2
    return keep


FUNCTIONS: dict[str, Mod] = {
    "bits": lambda b, h, q, k: (q & 6) == (k & 6),
    "bits_of_negative_integers": lambda b, h, q, k: ((q - k) & 0b101101) > 8,
    "bits_cleared": lambda b, h, q, k: (q & ~3) >= k,
    "bits_by_name": lambda b, h, q, k: torch.bitwise_and(q - 9, 0b1010) != 8,
    "bits_from_the_left": lambda b, h, q, k: (5 & (k - q)) == 5,
    "no_bits": lambda b, h, q, k: (q & 0) <= k,
    "abs": lambda b, h, q, k: torch.abs(q - k) <= 4,
    "absolute_method": lambda b, h, q, k: (q - k).abs() <= 4,
    "where_of_conditions": lambda b, h, q, k: torch.where(q < 9, q >= k, k < 3),
    "where_of_integers": lambda b, h, q, k: torch.where(q < 5, q + 2, q - k) >= 3,
    "where_inside_where": lambda b, h, q, k: torch.where(
        q < 5, torch.where(k < 3, q, 2), torch.where(k > 7, k, 9)
    ) == 2,
    "where_mixed": lambda b, h, q, k: torch.where(q < 5, k, q >= k) == 1,
    "where_with_a_number": lambda b, h, q, k: torch.where(q >= k, 1, 0) > 0,
    "minimum": lambda b, h, q, k: torch.minimum(q, k) < 5,
    "maximum": lambda b, h, q, k: torch.maximum(q, k) >= 8,
    "min": lambda b, h, q, k: torch.min(q, k) < 5,
    "max_method": lambda b, h, q, k: torch.maximum(q, k).maximum(torch.tensor(3)) == 3,
    "clamp_method": lambda b, h, q, k: q.clamp(3, 8) - k <= 3,
    "clamp": lambda b, h, q, k: torch.clamp(q - k, min=0) < 3,
    "clamp_max": lambda b, h, q, k: torch.clamp(q, max=4) >= k,
    "clip": lambda b, h, q, k: torch.clip(q - k, -2, 2) == 2,
    "clamp_min": lambda b, h, q, k: (q - k).clamp_min(1) == 1,
    "logical_and": lambda b, h, q, k: torch.logical_and(q >= k, k < 9),
    "logical_or": lambda b, h, q, k: torch.logical_or(q >= k, k < 2),
    "logical_xor": lambda b, h, q, k: (q >= k).logical_xor(k < 2),
    "logical_not": lambda b, h, q, k: torch.logical_not(q >= k),
    "logical_of_integers": lambda b, h, q, k: torch.logical_and(q % 3, k % 2),
    "remainder": lambda b, h, q, k: torch.remainder(q - k, 3) == 1,
    "floor_divide": lambda b, h, q, k: torch.floor_divide(q - k, 3) == -1,
    "div_floor": lambda b, h, q, k: torch.div(q - 20, 3, rounding_mode="floor") + 4 < k,
    "div_trunc": lambda b, h, q, k: torch.div(q - k, 3, rounding_mode="trunc") == 0,
    "div_trunc_negative": lambda b, h, q, k: torch.div(q - k, -3, rounding_mode="trunc") == 1,
    "div_method": lambda b, h, q, k: q.div(4, rounding_mode="floor") == k.floor_divide(4),
    "fmod": lambda b, h, q, k: torch.fmod(q - k, 3) == -2,
    "fmod_negative": lambda b, h, q, k: torch.fmod(q - k, -5) == 2,
    "add_sub_mul": lambda b, h, q, k: torch.add(q, 3) - torch.mul(k, 2) >= torch.sub(1, k),
    "products_of_conditions": lambda b, h, q, k: (q >= k).int() * (q - k < 5).int() * (k + 1) > 3,
    "product_of_conditions": lambda b, h, q, k: (q >= k) * torch.where(k < 5, 2, 0) * (q < 9) == 2,
    "conditions_as_conditions": lambda b, h, q, k: torch.mul(q >= k, k < 9),
    "alpha": lambda b, h, q, k: torch.add(q, k, alpha=-2) >= 1,
    "operands_swapped": lambda b, h, q, k: torch.rsub(q, k) + torch.rsub(k, 9, alpha=2) >= 3,
    "neg": lambda b, h, q, k: torch.neg(q).add(k) <= 0,
    "eq_ne": lambda b, h, q, k: torch.eq(q, k) | torch.ne(q, 3),
    "lt_le_gt_ge": lambda b, h, q, k: torch.lt(q, k) | torch.gt(q, 8) & torch.le(k, 5) | q.ge(11),
    "long_names": lambda b, h, q, k: torch.greater_equal(q, k) & torch.less(k, 7),
    "bitwise": lambda b, h, q, k: torch.bitwise_or(
        torch.bitwise_and(q >= k, k < 5), torch.bitwise_not(torch.bitwise_xor(q < 3, k < 3))
    ),
    "isin": lambda b, h, q, k: torch.isin(q - k, torch.tensor([0, 1, 2, 4, 8])),
    "new_ones": lambda b, h, q, k: q.new_ones((), dtype=torch.bool) & (q >= k),
    "new_zeros": lambda b, h, q, k: q.new_zeros((), dtype=torch.bool) | (q >= k),
    "new_full": lambda b, h, q, k: q.new_full((), 3) + k > q,
    "ones_like": lambda b, h, q, k: (torch.ones_like(q) + q > k),
    "scalars": lambda b, h, q, k: torch.ones((), dtype=torch.bool) & (q - torch.tensor(2) < k),
    "to_bool": lambda b, h, q, k: (q % 2).to(torch.bool) & (k % 3).bool(),
    "casts": lambda b, h, q, k: q.long() - k.to(torch.int32).int() < 2,
    "casts_of_choices": lambda b, h, q, k: torch.where(q < 3, 2, 5).to(torch.int8) > k,
    "condition_as_integer": lambda b, h, q, k: (q >= k).int() + (k < 3).to(torch.int64) == 2,
    "device_and_dtype": lambda b, h, q, k: (
        (q >= k).to(q.device) & torch.tensor(True).to(q.device) & (k.to(q.dtype) < 9)
    ),
    "shape": lambda b, h, q, k: (q >= k) if q.ndim in (0, 2) else (q < k),
    "reflected": lambda b, h, q, k: (5 - q <= k) & (torch.tensor(3) <= q),
    "augmented": _augmented,
    "and_masks": flex.and_masks(_causal, _near),
    "or_masks": flex.or_masks(flex.and_masks(_causal, _near), lambda b, h, q, k: k < 2),
    "partial": functools.partial(lambda size, b, h, q, k: q - k < size, 3),
    "default": lambda b, h, q, k, size=4: abs(q - k) < size,
    "heads": lambda b, h, q, k: q - k <= 3 * h,
    "options": lambda b, h, q, k: q - k <= 3 if (N == 12) is True else q >= k,
    # bits that a plain integer names are formulas, for all lengths
    "bits set": lambda b, h, q, k: (q | 5) > (k ^ 3),
    "bits set and cleared": lambda b, h, q, k: ((q & 6) | 1) != (~k & 3),
    "bits moved to the left": lambda b, h, q, k: (
        torch.bitwise_or(q, 2) <= torch.bitwise_left_shift(k, 1)
    ),
    "bits moved to the right": lambda b, h, q, k: (
        (q >> 1) == (torch.bitwise_right_shift(k, 2) ^ -2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_methods_of_torch(name: str) -> None:
    check(FUNCTIONS[name])


def test_wrapped_and_callable_objects() -> None:
    def counted(function: Mod) -> Mod:
        @functools.wraps(function)
        def wrapper(*args, **options):
            return function(*args, **options)

        return wrapper

    class Rule:
        def __init__(self, size: int) -> None:
            self.size = size
            self.limits = np.array([2, 4, 6])

        def close(self, q, k):
            return max(q, k) - min(q, k) < self.size

        def __call__(self, b, h, q, k):
            return self.close(q, k) & (self.limits[k % 3] > 2)

    assert mc.from_mask_mod(counted(_causal)) == mc.where(lambda q, k: q >= k)
    rule, i = Rule(4), np.arange(N)
    right = (abs(i[:, None] - i) < 4) & (rule.limits[i % 3] > 2)
    np.testing.assert_array_equal(mc.from_mask_mod(rule).dense(N), right)
    np.testing.assert_array_equal(
        mc.where(lambda q, k: rule.close(q, k)).dense(4), [[True] * 4] * 4
    )


REFUSED: dict[str, Mod] = {
    "equal": lambda b, h, q, k: torch.equal(q, k),
    "is_tensor": lambda b, h, q, k: torch.is_tensor(q) & (q >= k),
    "sin": lambda b, h, q, k: torch.sin(q) > k,
    "true_division": lambda b, h, q, k: torch.div(q, 2) > k,
    "float": lambda b, h, q, k: q.float() > k,
    "to_float": lambda b, h, q, k: q.to(torch.float32) > k,
    "narrow": lambda b, h, q, k: q.to(torch.int8) > k,
    "narrow_choice": lambda b, h, q, k: torch.where(q < 3, 2, q).to(torch.int8) > k,
    "item": lambda b, h, q, k: q.item() > k,
    "vector": lambda b, h, q, k: q.new_ones((3,)) > k,
    "whole_array": lambda b, h, q, k: torch.arange(12) + q > k,
    "float_array": lambda b, h, q, k: torch.ones(12)[q] > 0,
    "row": lambda b, h, q, k: torch.ones(12, 12, dtype=torch.int64)[q] == 1,
    "condition_as_index": lambda b, h, q, k: torch.arange(12)[q >= k] > 1,
    "new_dimension": lambda b, h, q, k: torch.arange(12)[None, q] > 1,
    "sum": lambda b, h, q, k: torch.sum(q) > k,
    "stack": lambda b, h, q, k: torch.stack([q, k]) > 1,
    "random": lambda b, h, q, k: (q >= k) & (torch.rand(()) < 0.5),
    "random_table": lambda b, h, q, k: torch.randperm(N)[q] >= k,
    "random_in_place": lambda b, h, q, k: torch.zeros(N).long().random_(3)[q] < 2,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_would_do_otherwise_is_refused(name: str) -> None:
    with pytest.raises(NotTraceable):
        mc.from_mask_mod(REFUSED[name], exact=True)


# ------------------------------------------------------------------ captured tensors

DOC = torch.arange(24).reshape(2, 12) // 5
BIAS = torch.arange(2 * 2 * 12 * 12).reshape(2, 2, 12, 12) * 7 % 11
OWN = SimpleNamespace(doc=DOC[0], inner=SimpleNamespace(doc=DOC), numpy=DOC[0].numpy())
LISTED = {"doc": DOC[0], "rows": [DOC[0], DOC[1]], "numpy": [DOC[1].numpy()]}
LENGTHS, REACH = torch.tensor([4, 9]), torch.tensor([1, 5])
WIDTHS, TURN = [3, 7], [[0, 2], 5]

PLACES: dict[str, Mod] = {
    "attribute": lambda b, h, q, k: OWN.doc[q] == OWN.doc[k],
    "attribute_of_numpy": lambda b, h, q, k: OWN.numpy[q] == OWN.numpy[k],
    "nested": lambda b, h, q, k: OWN.inner.doc[1][q] == OWN.inner.doc[1, k],
    "dict": lambda b, h, q, k: LISTED["doc"][q] == LISTED["rows"][1][k],
    "row": lambda b, h, q, k: DOC[0][q] == DOC[1, k],
    "slice": lambda b, h, q, k: DOC[:, 2:][0, q.clamp(max=9)] == DOC[..., -1][0],
    "batch": lambda b, h, q, k: DOC[b, q] == DOC[b, k],
    "batch_in_steps": lambda b, h, q, k: DOC[b][q] == DOC[b][k],
    "batch_last": lambda b, h, q, k: DOC.T[q, b] == DOC.T[k, b],
    "batch_of_one": lambda b, h, q, k: DOC[:1][0 * b, q] == DOC[:1][0, k],
    "lengths": lambda b, h, q, k: (k < LENGTHS[b]) & (q >= k),
    "reach_of_heads": lambda b, h, q, k: q - k < REACH[h],
    "heads_of_a_formula": lambda b, h, q, k: q - k < REACH[1 - h],
    "vector_of_heads": lambda b, h, q, k: DOC[h, q] == DOC[h, k],
    "three": lambda b, h, q, k: BIAS[0][h, q, k] > 5,
    "four": lambda b, h, q, k: BIAS[b, h, q, k] > 5,
    "four_in_another_order": lambda b, h, q, k: BIAS[:, 1][b, k, q] > BIAS[b][h][q, k],
    "of_formulas": lambda b, h, q, k: BIAS[0, 1, q // 2, (q - k) % 12] > 5,
    "rank_three": lambda b, h, q, k: BIAS[:, :, 0][q % 2, k // 6, q] > 5,
    "booleans": lambda b, h, q, k: (BIAS > 5)[b, h, q, k] & ~(DOC > 2)[b, k],
    "table_of_table": lambda b, h, q, k: REACH[DOC[0, q] % 2] < k,
    "chosen_index": lambda b, h, q, k: DOC[0, torch.where(q >= k, q, k)] == 1,
    "relative": lambda b, h, q, k: BIAS[0, 0, 3][(q - k).clamp(-5, 5) + 5] > 4,
    "zero_dimensions": lambda b, h, q, k: q - k < LENGTHS[0],
    "computed": lambda b, h, q, k: (DOC + 1)[b, q] > DOC.max(),
    "a list of heads": lambda b, h, q, k: q - k < WIDTHS[h],
    "a list of sequences": lambda b, h, q, k: (q >= k) & (q - k < WIDTHS[b]) & (k != TURN[0][0]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_captured_tensors_and_lists_of_any_rank_and_place(name: str) -> None:
    check(PLACES[name])


def test_b_may_only_index() -> None:
    for mod in (
        lambda b, h, q, k: DOC[b + 1, q] == 1,
        lambda b, h, q, k: (q >= k) & (b == 0),
        lambda b, h, q, k: BIAS[b, 0][b, q] == 1,
    ):
        with pytest.raises(BatchUsed):
            mc.from_mask_mod(mod, exact=True)


def test_attention_by_sequences_and_heads() -> None:
    for name in ("batch", "lengths", "reach_of_heads", "vector_of_heads", "four", "rank_three"):
        check_attention(mc.from_mask_mod(PLACES[name]), torch.from_numpy(eager(PLACES[name])))


# ------------------------------------------------------------------ tables of one index

BYTES = torch.tensor([3, 250, 7, 120, 44, 200, 0, 99, 255, 61, 130, 18], dtype=torch.uint8)
TABLED: dict[str, Mod] = {
    "bits": lambda b, h, q, k: ((q ^ (q >> 1)) & 3) == ((k | (k << 2)) & 3),
    "products": lambda b, h, q, k: q * q % 7 <= k * k % 5,
    "wide_bytes": lambda b, h, q, k: torch.sqrt((BYTES[q].long() * 2).float()).long() > k,
    "rounded roots": lambda b, h, q, k: (q.float() * 3).sqrt().floor().long() >= k // 2,
    "division": lambda b, h, q, k: torch.ceil(q / 3).int() == torch.ceil(k / 3).int(),
    "sum of a row": lambda b, h, q, k: BIAS[0, 0, q].sum() % 12 > k,
    "any of a row": lambda b, h, q, k: (DOC[0] == q // 4).any() & (q >= k),
    "unsqueeze": lambda b, h, q, k: (q.unsqueeze(-1) == torch.tensor([1, 4, 7])).any(-1) | (q == k),
    "a table at a table": lambda b, h, q, k: DOC[0, q * q % 12] == DOC[b, k],
    "powers": lambda b, h, q, k: 2 ** (q % 3) > k % 4,
    "chosen": lambda b, h, q, k: torch.where(q < 5, q * q, q).clamp(max=20) > k,
    "real numbers": lambda b, h, q, k: (CHANCE[q] > 0.5) ^ (k % 2 == 0),
    # ends soon only where each value is computed once
    "a chain": lambda b, h, q, k: functools.reduce(lambda x, _: x ^ (x >> 1), range(40), q) > k,
}


@pytest.mark.parametrize("name", TABLED)
def test_what_one_index_decides_is_a_table(name: str) -> None:
    """It is data, made for the lengths of a question; nothing is warned about."""
    mod = TABLED[name]
    with pytest.raises(MaskcError):
        mc.from_mask_mod(mod, exact=True)
    mask = mc.from_mask_mod(mod)
    for n_q, n_kv in ((12, 12), (7, 12), (5, 3)):
        right = all_pairs(mod, n_q, n_kv).numpy()
        dense = mask.dense(n_q, n_kv)
        dense = dense[:, None] if dense.ndim == 3 else dense
        np.testing.assert_array_equal(np.broadcast_to(dense, right.shape), right)
    check_attention(mask, all_pairs(mod, 7, 12))


def test_tables_of_one_index_keep_what_is_proved() -> None:
    mask = mc.from_mask_mod(lambda b, h, q, k: (q >= k) & ((q ^ (q >> 1)) % 3 == 0))
    assert copy.deepcopy(mask) == mask
    with pytest.raises(NeedsLengths):
        pickle.dumps(mask)
    assert mask.subset_of(mc.causal(align="start")) is True
    assert mask.equals(mc.causal(align="start")) is not True


# ------------------------------------------------------------------ evaluated

CHANCE = torch.rand(12, generator=torch.Generator().manual_seed(0))


def _writes_in_place(b, h, q, k):
    root = q.float().sqrt()
    moved = root.add_(1)
    return (root + moved).long() > k


EVALUATED: dict[str, Mod] = {
    "in place": _writes_in_place,
    "bits": lambda b, h, q, k: ((q ^ k) & (q | k)) % 3 == 0,
    "shifts": lambda b, h, q, k: ((1 << (q % 4)) & k) != 0,
    "products": lambda b, h, q, k: q * k % 5 < 3,
    "division": lambda b, h, q, k: q / 3 > k - 1.5,
    "sin": lambda b, h, q, k: torch.sin(q + 0.5 * k) > 0,
    "float": lambda b, h, q, k: (q + k).float().sqrt() > k - 2,
    "float_table": lambda b, h, q, k: CHANCE[q] > CHANCE[k],
    "a row": lambda b, h, q, k: (DOC[b] == k).any() | (q >= k),
    "gather": lambda b, h, q, k: DOC[b].gather(0, q[None])[0] == DOC[b, k],
    "stack": lambda b, h, q, k: torch.stack([q, k]).max() < 9,
    "the sequence": lambda b, h, q, k: (b == 1) | (q >= k),
    "the next sequence": lambda b, h, q, k: DOC[(b + 1) % 2, q] == DOC[b, k],
    "the head": lambda b, h, q, k: (q * h >= k) | (q == k),
    "nothing": lambda b, h, q, k: q * q < -1 - k,
    "everything": lambda b, h, q, k: q * q >= -k,
    "wraps_difference": lambda b, h, q, k: BYTES[q] - BYTES[k] < 100,
    "wraps_sum": lambda b, h, q, k: BYTES[q].to(torch.int16) * 200 > BYTES[k] * 200,
    "wraps_clamped": lambda b, h, q, k: BYTES[q].clamp(0, 5) - BYTES[k] % 7 < 3,
    "wraps_chosen": lambda b, h, q, k: torch.where(q > 4, BYTES[q], BYTES[k]) - BYTES[k] < 3,
    "wraps_product": lambda b, h, q, k: BYTES[q] * (q > 2) - BYTES[k] < 100,
    "wraps_literal": lambda b, h, q, k: (BYTES[q] == 300) | (BYTES[k] < BYTES[q]),
    "wraps_cast": lambda b, h, q, k: (q % 3).to(BYTES[k].dtype) - BYTES[k] < 9,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_tables_of_one_index_are_computed_again_where_somebody_writes(dtype) -> None:
    """A captured tensor, read inside of what is computed, is read again."""
    ids, keys = torch.zeros(24, dtype=dtype), torch.arange(24) % 5
    mask = mc.from_mask_mod(lambda b, h, q, k: torch.sqrt(ids[q] * 1.0).long() >= keys[k])
    for content in (torch.arange(24), torch.arange(24) // 5, torch.zeros(24)):
        ids.copy_(content)
        wanted = content.double().sqrt().floor()[:, None] >= keys
        assert np.array_equal(mask.dense(24), wanted.numpy())
    ids[3] = 20
    assert mask.count(24) == 24 + 23 * 5


def test_bytes_that_are_converted_first_are_traced():
    mod: Mod = lambda b, h, q, k: (BYTES[q].long() - BYTES[k] < 100) & (BYTES[q] + q > 9)  # noqa: E731
    mask = mc.from_mask_mod(mod, exact=True)
    assert np.array_equal(mask.dense(12), all_pairs(mod, 12, 12)[0, 0].numpy())


@pytest.mark.filterwarnings("ignore::maskc.EvaluatedMaskWarning")
@pytest.mark.parametrize("name", EVALUATED)
def test_mask_mods_that_cannot_be_followed_are_evaluated(name: str) -> None:
    mod = EVALUATED[name]
    with pytest.raises(MaskcError):
        mc.from_mask_mod(mod, exact=True)
    mask = mc.from_mask_mod(mod)
    assert mask.equals(mc.causal()) in (None, False)
    for n_q, n_kv in ((12, 12), (7, 12)):  # other lengths, one mask
        right = all_pairs(mod, n_q, n_kv)
        check_attention(mask, right)
        if "sequence" in name:
            continue
        dense = mask.dense(n_q, n_kv, n_heads=HEADS)
        if dense.ndim == 3 and (right == right[:, :1]).all():
            dense = dense[:, None]
        np.testing.assert_array_equal(np.broadcast_to(dense, right.shape), right)
        assert mask.count(n_q, n_kv, n_heads=HEADS) == dense.sum()


@pytest.mark.filterwarnings("ignore::maskc.EvaluatedMaskWarning")
def test_evaluated_masks_of_many_tiles() -> None:
    """Chunks of queries, combined masks, and gradients."""
    mask = mc.from_mask_mod(lambda b, h, q, k: (q ^ k) % 7 < 4 + h) & mc.causal()
    right = all_pairs(lambda b, h, q, k: ((q ^ k) % 7 < 4 + h) & (q >= k), 200, 200)
    with patch.object(evaluated, "_PAIRS", 1 << 15):
        np.testing.assert_array_equal(mask.dense(200, n_heads=HEADS), right[0])
        check_attention(mask, right)


@pytest.mark.filterwarnings("ignore::maskc.EvaluatedMaskWarning", "ignore::maskc.DenseWarning")
def test_evaluated_masks_are_evaluated_once_until_somebody_writes() -> None:
    limits, ran = torch.tensor([2.5, 8.5]), []

    def mod(b, h, q, k):
        ran.append(1)
        return (q * 1.5 > k) & (k < limits[b])

    mask, x = mc.from_mask_mod(mod), torch.randn(SEQUENCES, HEADS, 12, 16)
    before = mc.attention(x, x, x, mask)
    count = len(ran)
    assert torch.equal(mc.attention(x, x, x, mask), before)
    assert len(ran) == count
    learned = x.clone().requires_grad_()
    out = mc.attention(learned, x, x, mask)
    limits[0] = 7.5
    (gradient,) = torch.autograd.grad(out.sum(), learned)  # as the forward pass read it
    (same,) = torch.autograd.grad(
        mc.attention(learned, x, x, mc.from_bool(mask_of(2.5, 8.5))).sum(), learned
    )
    torch.testing.assert_close(gradient, same)
    after = mc.attention(x, x, x, mask)
    torch.testing.assert_close(after, mc.attention(x, x, x, mc.from_bool(mask_of(7.5, 8.5))))
    assert not torch.equal(after, before)


def mask_of(*limits: float) -> torch.Tensor:
    """The mask of the test above."""
    i = torch.arange(12)
    seen = torch.stack([i[None] < limit for limit in limits]) & (i[:, None] * 1.5 > i[None])
    return seen[:, None]


@pytest.mark.filterwarnings("ignore::maskc.EvaluatedMaskWarning")
def test_what_evaluated_masks_refuse() -> None:
    short = torch.rand(5)
    mask = mc.from_mask_mod(lambda b, h, q, k: short[q] > short[k])
    assert mask.count(5) == 10
    with pytest.raises(MaskModFailed, match="7 queries and 7 keys"):
        mask.count(7)
    by_sequence = mc.from_mask_mod(EVALUATED["the sequence"])
    with pytest.raises(SequencesUnknown):
        by_sequence.count(12)
    with pytest.raises(HeadsUnknown):
        mc.from_mask_mod(EVALUATED["the head"]).count(12)
    recipe, _ = driver.capture(mask, head_dim=16, target="cpu")
    with pytest.raises(NeedsLengths):  # a module holds what formulas captured
        driver.generate(mask, "module", [recipe.plan], "")
    assert "table0=..." in str(mask)
    assert mask.subset_of(mc.full()) is True
    with pytest.raises(MaskUsedAsBool):  # neither traced nor evaluated
        mc.from_mask_mod(lambda b, h, q, k: bool(q >= k))


@pytest.mark.filterwarnings("ignore::maskc.EvaluatedMaskWarning")
@pytest.mark.parametrize("name", ["bits", "products"])
def test_in_one_graph(name: str) -> None:
    """Inside of torch.compile, where an operator runs and torch.vmap does not."""
    mask = mc.from_mask_mod({**EVALUATED, "products": TABLED["products"]}[name])
    found = [torch.randn(1, HEADS, 20, 16, requires_grad=True) for _ in range(3)]

    def run(q, k, v):
        return mc.attention(q * 2, k, v, mask).sin()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    out, wanted = compiled(*found), run(*found)
    torch.testing.assert_close(out, wanted)
    for one, two in zip(
        torch.autograd.grad(out.sum(), found), torch.autograd.grad(wanted.sum(), found), strict=True
    ):
        torch.testing.assert_close(one, two)


# ------------------------------------------------------------------ random ones

_INTEGERS = st.recursive(
    st.sampled_from(["q", "k", "DOC[b, q]", "DOC[b, k]", "REACH[h]", "(q + 3)", "(k - 2)", "5"]),
    lambda part: st.one_of(
        st.builds("({} + {})".format, part, part),
        st.builds("({} - {})".format, part, part),
        st.builds("torch.minimum({} + 0 * k, {} + 0 * q)".format, part, part),
        st.builds("({} + 0 * q).clamp(min=-1, max={})".format, part, st.integers(0, 9)),
        st.builds("torch.remainder({} + 0 * k, {})".format, part, st.integers(2, 5)),
        st.builds("({} // {})".format, part, st.integers(2, 5)),
        st.builds("torch.where(q % 3 == 1, {}, {})".format, part, part),
        st.builds("DOC[0, ({} + 0 * q).clamp(0, 11)]".format, part),
    ),
    max_leaves=4,
)
_CONDITIONS = st.recursive(
    st.builds("({} {} {} + 0 * k)".format, _INTEGERS,
              st.sampled_from(["<=", "<", "==", "!=", ">=", ">"]), _INTEGERS),
    lambda part: st.one_of(
        st.builds("({} & {})".format, part, part), st.builds("({} | {})".format, part, part),
        st.builds("torch.logical_xor({}, {})".format, part, part),
        st.builds("~{}".format, part),
        st.builds("torch.where(k < 5, {}, {})".format, part, part),
    ),
    max_leaves=3,
)  # fmt: skip


@settings(max_examples=examples(60))
@given(_CONDITIONS)
def test_random_mask_mods(text: str) -> None:
    mod = eval(f"lambda b, h, q, k: {text}", {"torch": torch, "DOC": DOC, "REACH": REACH})
    right = eager(mod)
    mask = mc.from_mask_mod(mod)
    dense = mask.dense(N, n_heads=HEADS)
    for b in range(SEQUENCES):
        for h in range(HEADS):
            own = dense
            if own.ndim == 4:
                own = own[b, h]
            elif own.ndim == 3:
                own = (
                    own[b] if (right[:, 0] != right[:1, 0]).any() or _by_sequence(mask) else own[h]
                )
            np.testing.assert_array_equal(own, right[b, h])
