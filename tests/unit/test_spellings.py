"""Equal sets have equal programs, however they were written."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.captured import HELD
from maskc.core.data import DataKind
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.problem import Direction
from maskc.core.target import TARGETS
from maskc.dsl.slots import emptied
from maskc.ir.normal import normal
from maskc.layout.inputs.call_data import walk_times
from maskc.layout.tiles.grid_tiles import sides, sides_by_size
from tests.support.decisions import Call, Decider
from tests.support.thorough import examples

W = 128
CAUSAL = mc.causal(align="start")
WINDOW = mc.window(W, 0, align="start")
BOTH_SIDES = mc.window(W, W, align="start")
DILATED = mc.dilated(63, 0, stride=4, align="start")
CHUNKED = mc.chunked(512, align="start")
BLOCKS = mc.block_diagonal(64, align="start")
STRIDED = mc.strided(64, phase=63) & CAUSAL
SINKS = CAUSAL & (mc.sinks(4) | WINDOW)

HALF = 2048
BLOCK_DIFFUSION = mc.where(
    lambda q, k: (
        ((k // 32 == q // 32) & (k < HALF) & (q < HALF))
        | ((q // 32 > (k - HALF) // 32) & (q < HALF) & (k >= HALF))
        | ((q // 32 >= k // 32) & (q >= HALF) & (k >= HALF))
    )
)


def block_diffusion_by_flags(q, k):
    """Flags that are compared with integers, as the code of the paper does."""
    clean_q, clean_k = q >= HALF, k >= HALF
    block_q, block_k = q // 32, k // 32  # HALF is a multiple of a block
    diagonal = (block_q == block_k) & (clean_q == clean_k) & (clean_q == 0)
    offset = (block_q > block_k - HALF // 32) & (clean_k == 1) & (clean_q == 0)
    return diagonal | offset | ((block_q >= block_k) & (clean_k == 1) & (clean_q == 1))


PAIRS = {
    "causal": (CAUSAL, mc.where(lambda q, k: q >= k)),
    "window": (WINDOW, mc.where(lambda q, k: (q >= k) & (q - k <= W))),
    "window by abs": (BOTH_SIDES, mc.where(lambda q, k: abs(q - k) <= W)),
    "window by max": (BOTH_SIDES, mc.where(lambda q, k: max(q - k, k - q) <= W)),
    "window by bounds": (
        WINDOW, mc.where(lambda q, k: (k >= max(q - W, 0)) & (k < min(q + 1, mc.n_kv))),
    ),
    "window by negation": (WINDOW, mc.where(lambda q, k: ~((k > q) | (q - k > W)))),
    "window by difference": (WINDOW, CAUSAL - mc.where(lambda q, k: q - k > W)),
    "sinks": (SINKS, mc.where(lambda q, k: (q >= k) & ((k < 4) | (q - k <= W)))),
    "sinks spread": (
        SINKS, mc.where(lambda q, k: ((q >= k) & (q - k <= W)) | ((k < 4) & (k <= q))),
    ),
    "prefix": (CAUSAL | mc.prefix(100), mc.where(lambda q, k: (k < 100) | (q >= k))),
    "chunks": (CHUNKED, mc.where(lambda q, k: (q // 512 == k // 512) & (q >= k))),
    "chunks by first": (CHUNKED, mc.where(lambda q, k: (k >= q - q % 512) & (k <= q))),
    "blocks by bounds": (
        BLOCKS, mc.where(lambda q, k: (k >= q - q % 64) & (k < q - q % 64 + 64)),
    ),
    "causal blocks": (
        mc.where(lambda q, k: k // 64 <= q // 64), mc.where(lambda q, k: k <= q // 64 * 64 + 63),
    ),
    "dilated": (DILATED, mc.where(lambda q, k: (q >= k) & (q - k <= 252) & ((q - k) % 4 == 0))),
    "dilated by residues": (
        DILATED, mc.where(lambda q, k: (q >= k) & (q - k <= 255) & (q % 4 == k % 4)),
    ),
    "residues of a half": (
        mc.where(lambda q, k: (q < 2048) & (k < 2048) & (q // 32 >= k // 32)),
        mc.where(lambda q, k: (q < 2048) & (k < 2048) & (q % 2048 // 32 >= k % 2048 // 32)),
    ),
    "residues of the other half": (
        mc.where(lambda q, k: (k >= 2048) & (k < 4096) & (q >= k - 2048)),
        mc.where(lambda q, k: (k // 2048 == 1) & (k >= 2048) & (k < 4096) & (q >= k % 2048)),
    ),
    "block diffusion by flags": (BLOCK_DIFFUSION, mc.where(block_diffusion_by_flags)),
    "columns": (STRIDED, mc.where(lambda q, k: ((k + 1) % 64 == 0) & (k <= q))),
    "columns by floors": (STRIDED, mc.where(lambda q, k: (q >= k) & ((k + 1) // 64 * 64 == k + 1))),
    "causal in two": (CAUSAL, mc.where(lambda q, k: (q > k) | (q == k))),
    "causal without itself": (
        mc.where(lambda q, k: q > k), CAUSAL & mc.where(lambda q, k: q != k),
    ),
    "causal by max": (CAUSAL, mc.where(lambda q, k: max(q, k) == q)),
    "causal from all": (CAUSAL, mc.full() - mc.where(lambda q, k: k > q)),
    "window in two": (
        WINDOW, mc.where(lambda q, k: ((q >= k) & (q - k < 64)) | ((q - k >= 64) & (q - k <= W))),
    ),
    "window by distances": (
        mc.window(3, 0, align="start"),
        mc.where(lambda q, k: (q - k == 0) | (q - k == 1) | (k + 2 == q) | (q - k == 3)),
    ),
    "window by product": (
        WINDOW, mc.from_mask_mod(lambda b, h, q, k: ((q >= k) * (q - k <= W)) * 1 > 0),
    ),
    "sinks by De Morgan": (
        SINKS, ~(~CAUSAL | (mc.where(lambda q, k: k >= 4) & mc.where(lambda q, k: q - k > W))),
    ),
    "sinks by xor": (SINKS, mc.where(lambda q, k: (q >= k) ^ ((k >= 4) & (q - k > W) & (q >= k)))),
    "prefix by max": (CAUSAL | mc.prefix(100), mc.where(lambda q, k: k <= max(q, 99))),
    "chunks by ceil": (
        CHUNKED, mc.where(lambda q, k: (k <= q) & (-(-(k + 1) // 512) == -(-(q + 1) // 512))),
    ),
    "chunks by halves": (
        mc.where(lambda q, k: (q // 2048 == k // 2048) & (q >= k)),
        mc.where(lambda q, k: (q >= k) & (((q < 2048) & (k < 2048))
                                          | ((k >= 2048) & (q // 2048 == k // 2048)))),
    ),
    "causal blocks by tokens": (
        mc.where(lambda q, k: k // 64 <= q // 64),
        mc.where(lambda q, k: (k <= q) | (k // 64 == q // 64)),
    ),
    "earlier blocks": (
        mc.where(lambda q, k: k // 64 < q // 64),
        mc.where(lambda q, k: (k < q) & (k // 64 != q // 64)),
    ),
    "a few blocks": (
        mc.where(lambda q, k: (k // 64 <= q // 64) & (q // 64 - k // 64 <= 4)),
        mc.where(lambda q, k: (q // 64 - k // 64) // 5 == 0),
    ),
    "block diffusion by differing blocks": (
        BLOCK_DIFFUSION,
        mc.where(lambda q, k: (
            ((q < HALF) & (k < HALF) & (q // 32 == k // 32))
            | ((q < HALF) & (k >= HALF) & (k - HALF < q) & ((k - HALF) // 32 != q // 32))
            | ((q >= HALF) & (k >= HALF) & ((k <= q) | (q // 32 == k // 32)))
        )),
    ),
    "near blocks": (
        mc.where(lambda q, k: abs(q // 256 - k // 256) <= 1),
        mc.where(lambda q, k: (q // 256 == k // 256) | (q // 256 == k // 256 + 1)
                 | (q // 256 + 1 == k // 256)),
    ),
    "shifted blocks": (
        mc.where(lambda q, k: (q + 32) // 64 == (k + 32) // 64),
        mc.where(lambda q, k: (q + 32 - (q + 32) % 64 <= k + 32)
                 & (k + 32 < q + 32 - (q + 32) % 64 + 64)),
    ),
    "dilated by blocks": (
        DILATED, mc.where(lambda q, k: (q % 4 == k % 4) & (q // 4 >= k // 4)
                          & (q // 4 - k // 4 <= 63)),
    ),
    "slashes": (
        mc.offsets([0, 25, 58], align="start"),
        mc.where(lambda q, k: (q - k == 25) | (k == q) | (k + 58 == q)),
    ),
    "slashes with equal steps": (mc.offsets([0, 64, 128]), mc.dilated(2, stride=64)),
    "two slashes": (CAUSAL & mc.offsets([-9, 0, 9], align="start"),
                    mc.where(lambda q, k: (q == k) | (q - k == 9))),
    "slashes ahead": (
        mc.offsets([-400, -300, -200]), mc.dilated(0, 4, stride=100) - mc.offsets([0, -100]),
    ),
    "slashes in two": (
        mc.dilated(2, 1, stride=7), mc.offsets([0, 14]) | mc.offsets([-7]) | mc.offsets([7]),
    ),
    "axial": (
        mc.where(lambda q, k: (q // 64 == k // 64) | (q % 64 == k % 64)),
        mc.where(lambda q, k: ~((q // 64 != k // 64) & ((q - k) % 64 != 0))),
    ),
    "longformer by min": (
        mc.window(64, 64, align="start") | mc.where(lambda q, k: (q < 16) | (k < 16)),
        mc.where(lambda q, k: (min(q, k) < 16) | (abs(q - k) <= 64)),
    ),
}  # fmt: skip


def programs(mask: mc.Mask) -> list[object]:
    """Return what a plan consists of, and how each kernel finds and treats its tiles."""
    problem = driver.problem(128, None, 8, "bfloat16")
    plan = driver.plan_kernel(mask, problem, TARGETS["sm_90a"])
    found: list[object] = []
    for each in (plan, *plan.alternatives):
        (own,) = each.masks
        most = None if own.intervals is None else len(own.intervals)
        found.append((
            each.target.name, each.form, each.direction, each.tile, each.use_ranges,
            each.distances, each.boxes, most, own.recipe.loops is None, each.schedule.modes,
        ))  # fmt: skip
    return [*found, [(part.stride, part.keys) for part in plan.parts]]


@pytest.mark.parametrize("name", PAIRS)
def test_equal_masks_have_equal_programs(name: str) -> None:
    left, right = PAIRS[name]
    assert left.equals(right)
    assert programs(left) == programs(right)


def test_other_masks_have_other_programs() -> None:
    """The comparison tells programs apart."""
    found = [programs(mask) for mask in (WINDOW, DILATED, SINKS, CAUSAL | mc.strided(64))]
    assert all(a != b for i, a in enumerate(found) for b in found[:i])


# ------------------------------------------------------------------ data


def drawn(n: int, seed: int) -> dict[str, np.ndarray]:
    """Arrays of two sequences: ids in no order, padding of -1, a length of zero."""
    rng = np.random.default_rng(seed)
    parents = np.maximum(np.arange(n) - 1 - rng.integers(0, 3, n), -1)
    tin, tout = walk_times("parents", parents)
    lengths = np.array([0, rng.integers(1, n + 1)])
    packed = np.sort(rng.integers(0, 5, (2, n)), axis=1)
    packed[1, n - n // 4 :] = -1
    return {
        "ids": rng.integers(-1, 4, (2, n)), "packed": packed, "lengths": lengths,
        "kept": np.arange(n) < lengths[:, None], "flags": rng.random((2, n)) < 0.05,
        "lo": rng.integers(-9, n, (2, n)), "hi": rng.integers(-9, n + 9, (2, n)),
        "table": rng.random((-(-n // 64), -(-n // 64))) < 0.4,
        "tin": np.stack([tin, tin]), "tout": np.stack([tout, tout]),
    }  # fmt: skip


DOC, FIRST = mc.documents("x", align="start"), mc.causal(align="start")
KEYS, QUERIES = mc.flags("x"), mc.flags("x", on="q", align="start")
NEAR = mc.window(64, 64, align="start")
DATA_PAIRS = {
    "documents": (DOC, "ids", lambda x: lambda b, h, q, k: x[b, q] == x[b, k]),
    "packed documents": (
        DOC & FIRST, "packed", lambda x: lambda b, h, q, k: (q >= k) & (x[b, k] == x[b, q]),
    ),
    "documents by bounds": (
        DOC & FIRST, "packed", lambda x: lambda b, h, q, k: (abs(x[b, q] - x[b, k]) < 1) & (q >= k),
    ),
    "other documents": (
        FIRST - DOC, "packed", lambda x: lambda b, h, q, k: (q >= k) & (x[b, k] != x[b, q]),
    ),
    "padding": (KEYS & FIRST, "kept", lambda x: lambda b, h, q, k: x[b, k] & (k <= q)),
    "no padding": (FIRST - KEYS, "kept", lambda x: lambda b, h, q, k: ~x[b, k] & (k <= q)),
    "global tokens": (
        KEYS | QUERIES | NEAR, "flags",
        lambda x: lambda b, h, q, k: x[b, k] | x[b, q] | (abs(q - k) <= 64),
    ),
    "intervals": (
        mc.intervals("x", align="start"), "lo hi",
        lambda x: lambda b, h, q, k: (x[0][b, q] <= k) & (k < x[1][b, q]),
    ),
    "table": (
        mc.block_table("x", 64) & FIRST, "table",
        lambda x: lambda b, h, q, k: x[q // 64, k // 64] & (q >= k),
    ),
    "tree": (
        mc.tree("x", align="start"), "tin tout",
        lambda x: lambda b, h, q, k: (x[0][b, k] <= x[0][b, q]) & (x[0][b, q] < x[1][b, k]),
    ),
}  # fmt: skip
"""Masks over the data x, what x is, and the same mask_mod over arrays that it captures."""


def both(name: str, n: int, seed: int) -> tuple[mc.Mask, Any, mc.Mask, np.ndarray]:
    """(a mask, its data, the mask_mod that equals it, the pairs by broadcasting)."""
    mask, names, make = DATA_PAIRS[name]
    arrays = drawn(n, seed)
    x = tuple(arrays[part] for part in names.split())
    data = x if len(x) > 1 else x[0]
    b, q, k = np.arange(2)[:, None, None], np.arange(n)[:, None], np.arange(n)
    kept = np.broadcast_to(make(data)(b, 0, q, k), (2, n, n))
    return mask, data, mc.from_mask_mod(make(data)), kept


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", DATA_PAIRS)
def test_captured_data_have_the_pairs_of_data_of_calls(name: str, seed: int) -> None:
    n = 70 + 61 * seed
    mask, data, captured, kept = both(name, n, seed)
    for pairs in (mask.dense(n, x=data), captured.dense(n)):
        np.testing.assert_array_equal(np.broadcast_to(pairs, kept.shape), kept)
    attn = captured.compile(16, dtype="float32", target="cpu")
    written = mask.compile(16, dtype="float32", target="cpu")
    for batch in range(2):
        by_capture = attn.layout(n, batch=batch, block=(16, 16))
        by_call = written.layout(n, batch=batch, block=(16, 16), x=data)
        np.testing.assert_array_equal(by_capture.to_dense(), by_call.to_dense())
        assert by_capture.nnz or not kept[batch].any()


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "cpu"])
@pytest.mark.parametrize("name", DATA_PAIRS)
def test_captured_data_have_the_programs_of_data_of_calls(name: str, target: str) -> None:
    n = 512
    mask, data, captured, _ = both(name, n, 5)
    assert programs(mask) == programs(captured)
    call = Call(target, 64, heads=(4, 2), batch=2)
    _, held = emptied(captured)
    assert held is not None
    inputs = {"x": data}, {HELD: held.of_call(2, 4, n, n)}
    for direction in Direction:
        decisions = [
            Decider(spelling, call).decision(direction, False, n, n, of_call)
            for spelling, of_call in zip((mask, captured), inputs, strict=True)
        ]
        assert decisions[0] == decisions[1]
        assert decisions[0][0]


def test_arrays_that_are_read_in_other_ways_stay_as_they_are() -> None:
    """One array serves all reads of it."""
    ids = drawn(70, 0)["ids"]
    mask = mc.from_mask_mod(lambda b, h, q, k: (ids[b, q] == ids[b, k]) & (ids[b, k] >= 0))
    (ir,) = driver.analyse_heads(mask).masks
    assert [decl.kind for decl in ir.data] == [DataKind.constant]
    wanted = (ids[:, :, None] == ids[:, None]) & (ids[:, None] >= 0)
    np.testing.assert_array_equal(mask.dense(70), wanted)


# ------------------------------------------------------------------ rules


NUMBERS = st.recursive(
    st.sampled_from([E.Q, E.K, E.N_KV]) | st.integers(-9, 9).map(E.const),
    lambda inner: st.one_of(
        st.builds(E.floordiv, inner, st.integers(2, 4)),
        st.builds(E.mod, inner, st.integers(2, 4)),
        st.builds(lambda a, c, b: E.add(a, E.scale(c, b)), inner, st.integers(-4, 4), inner),
        st.builds(E.maximum, inner, inner),
        st.builds(E.minimum, inner, inner),
    ),
    max_leaves=6,
)
AT = {"q": np.arange(-5, 23)[:, None], "k": np.arange(-7, 23)[None], "n_q": 20, "n_kv": 25}
TOKENS = AT | {"q": np.arange(28)[:, None], "k": np.arange(30)[None]}


@given(NUMBERS, NUMBERS, st.sampled_from([E.ge, E.lt, E.eq, E.ne]))
@settings(max_examples=examples(400))
def test_a_normal_spelling_says_the_same(left: Expr, right: Expr, compare) -> None:
    formula = compare(left, right)
    found, wanted = (np.broadcast_to(evaluate(x, AT), (28, 30)) for x in (normal(formula), formula))
    np.testing.assert_array_equal(found, wanted)


BLOCKS_APART = E.sub(E.floordiv(E.Q, 4), E.floordiv(E.K, 4))
NUMBERS_ON_LINES = (
    E.Q, E.sub(E.Q, E.K), E.sub(E.K, E.Q), E.floordiv(E.K, 4), E.mod(E.sub(E.K, E.Q), 4),
    BLOCKS_APART, E.add(BLOCKS_APART, E.N_KV, E.const(-25)),
)  # fmt: skip
BOUNDS = [
    compare(number, E.const(constant))
    for number in NUMBERS_ON_LINES for constant in (-1, 0, 1, 5)
    for compare in (E.ge, E.lt, E.eq, E.ne)
]  # fmt: skip
LINES = st.sampled_from(BOUNDS) | st.builds(
    E.member, st.sampled_from([E.Q, E.sub(E.K, E.Q)]), st.lists(st.integers(-4, 12), max_size=5)
)


def test_two_bounds_are_merged() -> None:
    kept = {bound: np.broadcast_to(evaluate(bound, TOKENS), (28, 30)) for bound in BOUNDS}
    for left, right in combinations(kept, 2):
        for join, by_hand in ((E.conj, np.logical_and), (E.disj, np.logical_or)):
            merged = np.broadcast_to(evaluate(normal(join(left, right)), TOKENS), (28, 30))
            assert (merged == by_hand(kept[left], kept[right])).all(), (join, left, right)


@given(st.recursive(
    LINES, lambda inner: st.lists(inner, min_size=2, max_size=4).flatmap(
        lambda terms: st.sampled_from([E.conj(*terms), E.disj(*terms)])), max_leaves=7,
))  # fmt: skip
@settings(max_examples=examples(600))
def test_bounds_of_one_number_are_merged(formula) -> None:
    merged, kept = (
        np.broadcast_to(evaluate(x, TOKENS), (28, 30)) for x in (normal(formula), formula)
    )
    np.testing.assert_array_equal(merged, kept)


@given(
    st.lists(st.tuples(NUMBERS, st.sampled_from([E.ge, E.lt, E.eq])), min_size=1, max_size=2),
    st.lists(st.tuples(st.sampled_from([E.Q, E.K]), st.sampled_from([E.ge, E.lt]),
                       st.integers(0, 12)), min_size=1, max_size=3),
)  # fmt: skip
@settings(max_examples=examples(400))
def test_bounds_of_tokens_settle_residues(compared, bounds) -> None:
    """Tokens are never negative."""
    terms = [compare(value, E.const(2)) for value, compare in compared]
    formula = E.conj(*terms, *(compare(token, E.const(n)) for token, compare, n in bounds))
    found, wanted = (
        np.broadcast_to(evaluate(x, TOKENS), (28, 30)) for x in (normal(formula), formula)
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (E.conj(E.lt(E.K, E.const(64)), E.le(E.mod(E.K, 64), E.Q)),
         E.conj(E.lt(E.K, E.const(64)), E.le(E.K, E.Q))),
        (E.le(E.K, E.add(E.scale(64, E.floordiv(E.Q, 64)), E.const(63))),
         E.le(E.floordiv(E.K, 64), E.floordiv(E.Q, 64))),
        (E.ge(E.K, E.sub(E.Q, E.mod(E.Q, 64))), E.ge(E.floordiv(E.K, 64), E.floordiv(E.Q, 64))),
        (E.eq(E.mod(E.Q, 4), E.mod(E.K, 4)), E.eq(E.mod(E.sub(E.Q, E.K), 4), E.ZERO)),
        (E.le(E.absolute(E.sub(E.Q, E.K)), E.const(3)),
         E.conj(E.le(E.sub(E.Q, E.K), E.const(3)), E.le(E.sub(E.K, E.Q), E.const(3)))),
        (E.disj(E.gt(E.Q, E.K), E.eq(E.Q, E.K)), E.ge(E.Q, E.K)),
        (E.disj(E.ge(E.Q, E.K), E.eq(E.floordiv(E.Q, 8), E.floordiv(E.K, 8))),
         E.disj(E.ge(E.Q, E.K), E.ge(E.floordiv(E.Q, 8), E.floordiv(E.K, 8)))),
        (E.eq(E.floordiv(E.sub(E.const(7), E.K), 8), E.ZERO),
         E.conj(E.ge(E.K, E.ZERO), E.le(E.K, E.const(7)))),
        (E.ge(E.const(2), E.floordiv(E.sub(E.Q, E.K), 8)), E.le(E.sub(E.Q, E.K), E.const(23))),
        (E.conj(E.ge(E.Q, E.K), E.ne(E.floordiv(E.Q, 8), E.floordiv(E.K, 8))),
         E.conj(E.ge(E.Q, E.K), E.gt(E.floordiv(E.Q, 8), E.floordiv(E.K, 8)))),
        (E.conj(E.eq(E.mod(E.sub(E.Q, E.K), 4), E.ZERO),
                E.ge(E.floordiv(E.Q, 4), E.floordiv(E.K, 4))),
         E.conj(E.eq(E.mod(E.sub(E.Q, E.K), 4), E.ZERO), E.ge(E.Q, E.K))),
        (E.ge(E.K, E.sub(E.Q, E.mod(E.add(E.Q, E.const(5)), 8))),
         E.ge(E.floordiv(E.add(E.K, E.const(5)), 8), E.floordiv(E.add(E.Q, E.const(5)), 8))),
        (E.ge(E.sub(E.Q, E.scale(8, E.floordiv(E.Q, 8))), E.const(2)),
         E.ge(E.mod(E.Q, 8), E.const(2))),
    ],
)  # fmt: skip
def test_what_becomes_of_a_spelling(written: Expr, wanted: Expr) -> None:
    assert normal(written) == wanted != written


# ------------------------------------------------------------------ planning time


@pytest.mark.parametrize("extent", [1, 5, 7, 30])
def test_boxes_are_known_from_smaller_ones(extent: int) -> None:
    rng = np.random.default_rng(extent)
    for share in (0.05, 0.9, 1):
        relation = rng.random((extent, extent)) < share
        of = sides_by_size(relation)
        for q, k in ((1, 1), (2, 3), (4, 8), (6, 5), (12, 1), (1, 96), (64, 64)):
            found, wanted = of(q, k), sides(relation, q, k)
            np.testing.assert_array_equal(found.live, wanted.live)
            np.testing.assert_array_equal(found.full, wanted.full)


def test_refuted_facts_ask_isl_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a mask contradict all facts here; causal masks without gaps are proved still."""
    from maskc.analysis import facts

    asked = []
    view = facts._view
    monkeypatch.setattr(facts, "_view", lambda *given: asked.append(given) or view(*given))
    strange = mc.where(lambda q, k: ((k % 5 == 0) | (k > q)) & (q % 7 != 0))
    (ir,) = driver.analyse_heads(strange).masks
    asked.clear()
    assert [fact.holds for fact in facts.analyse(ir)] == [False] * 4
    assert not asked
    (ir,) = driver.analyse_heads(CAUSAL).masks
    assert all(fact.holds for fact in facts.analyse(ir))


def test_bounds_do_not_move_what_a_table_is_read_at() -> None:
    """A table is read, and its length checked, for all pairs, also where a bound hides them."""
    table = np.array([[0, 1, 1], [1, 0, 0]])
    mask = mc.where(lambda q, k: table[q % 2, q % 3] == 0) & mc.where(lambda q, k: q < 1)
    q = np.arange(5)
    kept = (table[q % 2, q % 3] == 0) & (q < 1)
    np.testing.assert_array_equal(mask.dense(5, 4), np.broadcast_to(kept[:, None], (5, 4)))
    assert mask.count(5, 4) == 4 * kept.sum()
