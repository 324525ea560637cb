"""Pairs that Hopper's kernels hide in partial tiles are those that the mask hides, lane by lane."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.bundle import Bundle
from maskc.core.evaluator import evaluate
from maskc.core.problem import Direction
from maskc.layout import Chosen
from maskc.layout.tiles.chosen_blocks import NONE
from maskc.layout.tiles.relative_bits import PAD, distance_count, distance_words
from maskc.plan.explain import explain
from maskc.plan.runs import run_length
from tests.support.host_bits import HostBits
from tests.support.sm90a_plans import HEADS, SM_90A, emitted, planned
from tests.support.thorough import alternating, each, more

SIZES = [(1, 1), (64, 65), (130, 128), (333, 777), (777, 333), (191, 500)]
BY_DISTANCE = {
    "dilated": mc.dilated(7, 7, stride=5),
    "strided": mc.causal() & (mc.window(20) | mc.where(lambda q, k: (q - k) % 37 == 0)),
    "exponential": reduce(or_, (mc.dilated(30, stride=2**i) for i in range(5))),
    "slashes": mc.offsets([0, 3, 9, 27, 81, 243, -5]),
    "from the start": mc.where(lambda q, k: (q - k) % 11 < 3),
    "per head": mc.per_head([mc.dilated(40, stride=3), mc.dilated(9, 9, stride=16)]),
    "with a parameter": mc.dilated(mc.param("w", 12), stride=4),
}
MIXED = {
    "dilated in blocks": mc.causal() & (mc.dilated(30, stride=5) | mc.block_diagonal(40)),
    "dilated and global": mc.dilated(9, 9, stride=3) | mc.sinks(5) | mc.where(lambda q, k: q < 3),
    "both kinds of heads": mc.per_head([mc.dilated(40, stride=3), mc.causal() & mc.sinks(70)]),
    "many slashes and a column": mc.offsets([0, 9, 27, 81, 243]) | mc.where(lambda q, k: k == 7),
}
"""Bits over k - q, and intervals beside them."""
IN_RUNS = {
    "blocks of both": mc.where(lambda q, k: (q // 64 + k // 64) % 3 != 1),
    "blocks of keys": mc.where(lambda q, k: (k // 32) % 2 == q % 2),
    "blocks of queries": mc.where(lambda q, k: (q // 16) % 3 == k % 3) & mc.causal(),
    "a table": mc.block_table("t", 64),
    "short blocks": mc.where(lambda q, k: (k // 8 + q // 8) % 2 == 0),
}
"""Pairs are tested, but one for many."""
LONGNET = mc.load(Path(__file__).parents[2] / "patterns" / "longnet.py")["longnet"]
OTHERWISE = {
    "a long formula": LONGNET(segments=(16, 64, 256), rates=(1, 2, 4)),
    "intervals": mc.causal() & (mc.window(100) | mc.sinks(5)),
    "pairs": mc.causal() & mc.strided(7, 2),
    "both axes": mc.window(3) | mc.where(lambda q, k: q // 50 == k // 50),
    "data": mc.documents("d") & mc.causal(),
    "data in any order": mc.documents("d") & mc.window(80, 40),
    "data and pairs": mc.documents("d") & mc.strided(3),
    "data or not": mc.documents("d") | mc.window(20),
    "heads of one interval and of two": mc.per_head([mc.causal(), mc.window(99) | mc.sinks(5)]),
    "heads of two runs": mc.per_head([mc.block_diagonal(64), mc.where(lambda q, k: k // 16 == q)]),
}


@cache
def bundle_of(mask: mc.Mask, dim: int) -> Bundle:
    problem = driver.problem(dim, None, HEADS, "bfloat16")
    return driver.emit_bundle(driver.plan_kernel(mask, problem, SM_90A))


def bits_of(mask: mc.Mask, dim: int, direction: Direction, packed: int = 1) -> HostBits:
    bundle = bundle_of(mask, dim)
    unit = bundle.unit("sm_90a", direction)
    assert unit is not None
    return HostBits(bundle, unit, packed)


@pytest.mark.parametrize(
    ("name", "dim", "direction"),
    [*each([*BY_DISTANCE, *MIXED, *IN_RUNS, *OTHERWISE], [64, 128, 192], list(Direction)),
     *(more(name, 256, way) for name in BY_DISTANCE | MIXED | IN_RUNS | OTHERWISE
       for way in Direction)],
)  # fmt: skip
def test_bits_are_the_mask(name, dim, direction):
    """In forward tiles of 192 x 128, 128 x 128 and 128 x 96, backward of 128 x 128, 64 x 128 and
    64 x 64; at 256 these are the same, and a forward thread has two thirds of the keys."""
    mask = (BY_DISTANCE | MIXED | IN_RUNS | OTHERWISE)[name]
    bits = bits_of(mask, dim, direction)
    for n_q, n_kv in SIZES:
        data = {}
        if "data" in name:
            rng = np.random.default_rng(n_q)
            ids = [rng.integers(0, 9, n).astype("i4") for n in (n_q, n_kv)]
            data = {"d": tuple(ids if "any order" in name else map(np.sort, ids))}
        if name == "a table":
            shape = -(-n_q // 64), -(-n_kv // 64)
            data = {"t": np.random.default_rng(n_q).integers(0, 2, shape).astype(bool)}
        want = mask.dense(n_q, n_kv, n_heads=HEADS, **data)
        want = np.broadcast_to(want, (HEADS, n_q, n_kv))
        np.testing.assert_array_equal(bits.live(n_q, n_kv, HEADS, **data), want, str((n_q, n_kv)))


def flags(rng, n_q, n_kv):
    return rng.random(n_kv) < 0.5


def query_flags(rng, n_q, n_kv):
    return rng.random(n_q) < 0.5


def ends(rng, n_q, n_kv):
    """One padding for all queries."""
    return np.full(n_q, rng.integers(0, n_kv // 2 + 1)), np.full(n_q, rng.integers(n_kv + 1))


def spans(rng, n_q, n_kv):
    low = rng.integers(-9, n_kv, n_q)
    return low, low + rng.integers(-3, 90, n_q)


def packed_ids(mean):
    def made(rng, n_q, n_kv):
        cuts = rng.integers(1, 2 * mean, max(n_q, n_kv))
        ids = np.repeat(np.arange(len(cuts)), cuts)
        return ids[:n_q].astype("i4"), ids[:n_kv].astype("i4")

    return made


def any_ids(rng, n_q, n_kv):
    return rng.integers(0, 3, n_q).astype("i4"), rng.integers(0, 3, n_kv).astype("i4")


CAUSAL = mc.causal()
OF_DATA = {
    "padding, flags": (mc.flags("x") & CAUSAL, {"x": flags}),
    "padding, intervals": (mc.intervals("x") & CAUSAL, {"x": ends}),
    "prefix": (mc.intervals("x") | CAUSAL, {"x": ends}),
    "images in a window": (
        mc.window(100) | mc.intervals("x") & mc.window(100, 100), {"x": spans},
    ),
    "long documents, flags and a window": (
        mc.documents("d") & mc.flags("x") & mc.window(90, 20), {"d": packed_ids(90), "x": flags},
    ),
    "short documents": (mc.documents("d") & CAUSAL, {"d": packed_ids(9)}),
    "documents in any order": (mc.documents("d") & mc.flags("x"), {"d": any_ids, "x": flags}),
    "documents or flags": (
        mc.documents("d") & CAUSAL | mc.flags("x") & mc.window(50),
        {"d": packed_ids(60), "x": flags},
    ),
    "two rulers": (
        mc.documents("d") & mc.documents("e") & CAUSAL,
        {"d": packed_ids(200), "e": packed_ids(70)},
    ),
    "two flags of queries": (
        mc.flags("x", on="q") & CAUSAL | mc.flags("y", on="q") & mc.window(50, 50),
        {"x": query_flags, "y": query_flags},
    ),
}  # fmt: skip
"""Masks of batches, with long runs of columns that have the same data, short ones and none."""


@pytest.mark.parametrize(
    ("name", "dim", "direction"), alternating(list(OF_DATA), [64, 192, more(128)], list(Direction))
)
def test_bits_of_data_are_the_mask(name, dim, direction):
    mask, makers = OF_DATA[name]
    bundle = bundle_of(mask, dim)
    units = {u.key: u for u in bundle.units}
    unit = units["sm_90a" + ("_backward" if direction is Direction.backward else "")]
    if not unit.by_documents:
        assert "add_data" in unit.source
    bits = HostBits(bundle, unit)
    for n_q, n_kv in SIZES:
        rng = np.random.default_rng(n_q)
        data = {key: make(rng, n_q, n_kv) for key, make in makers.items()}
        want = np.broadcast_to(mask.dense(n_q, n_kv, **data), (HEADS, n_q, n_kv))
        np.testing.assert_array_equal(bits.live(n_q, n_kv, HEADS, **data), want, str((n_q, n_kv)))


@pytest.mark.parametrize("heads", [2, 3, 8])
@pytest.mark.parametrize("name", ["dilated", "blocks of queries", "intervals", "pairs"])
def test_packed_heads_have_the_same_rows(name, heads):
    """The queries of several heads, one head after another, are rows of one tile."""
    mask = (BY_DISTANCE | IN_RUNS | OTHERWISE)[name]
    bits = bits_of(mask, 128, Direction.forward, packed=heads)
    for n_q, n_kv in ((1, 1), (1, 300), (5, 260), (16, 16), (16, 9)):
        want = np.tile(mask.dense(n_q, n_kv), (heads, 1))
        np.testing.assert_array_equal(bits.live(n_q, n_kv, 1)[0], want, str((n_q, n_kv)))


@pytest.mark.parametrize("name", [*BY_DISTANCE, *MIXED])
def test_these_masks_come_as_bits(name):
    plan = driver.plan_kernel(
        (BY_DISTANCE | MIXED)[name], driver.problem(64, None, HEADS, "bfloat16"), SM_90A
    )
    assert plan.distances
    assert any(
        other.distances for other in plan.alternatives if other.direction is Direction.backward
    )
    assert any("bits from a table over k - q" in reason for reason in plan.reasons)


@pytest.mark.parametrize("name", OTHERWISE)
def test_others_do_not(name):
    plan = driver.plan_kernel(OTHERWISE[name], driver.problem(64, None, HEADS, "bfloat16"), SM_90A)
    assert not plan.distances


@pytest.mark.parametrize(
    ("mask", "text"),
    [(MIXED["both kinds of heads"], "a table over k - q and of 1 interval per row"),
     (mc.per_head([mc.causal(), OTHERWISE["intervals"]]), "bits of 2 intervals per row")],
    ids=["distances", "intervals"],
)  # fmt: skip
def test_reports_count_the_intervals_of_the_head_with_most(mask, text):
    plan = driver.plan_kernel(mask, driver.problem(64, None, HEADS, "bfloat16"), SM_90A)
    assert text in " ".join(plan.reasons)


RUNS = {
    "blocks of both": (64, 64), "blocks of keys": (32, 1), "blocks of queries": (1, 1),
    "a table": (64, 64), "short blocks": (8, 8), "pairs": (1, 1), "data": (1, 1),
    "data in any order": (1, 1), "data and pairs": (1, 1), "data or not": (1, 1),
    "heads of two runs": (16, 1),
}  # fmt: skip
"""Of keys, of queries."""


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_keys_and_queries_that_are_alike(name):
    mask = (IN_RUNS | OTHERWISE)[name]
    plan = driver.plan_kernel(mask, driver.problem(64, None, HEADS, "bfloat16"), SM_90A)
    assert plan.runs == RUNS[name]


@pytest.mark.parametrize(("formula", "run"), [
    (lambda q, k: (k < 64) | (k // 32 == q), 32),
    (lambda q, k: (k >= 40) & (k // 16 != 3), 8),
    (lambda q, k: k >= 64 * (q // 64) - 32, 32),
    (lambda q, k: (k + 1) // 64 == q, 1),
    (lambda q, k: k == 64, 1),
    (lambda q, k: (k % 64 < 32) & (q < 3), 1),
])  # fmt: skip
def test_runs_are_those_that_the_formula_shows(formula, run):
    keep = driver.lowered(mc.where(formula)).keep
    assert run_length(keep, E.K) == run
    dense = mc.where(formula).dense(70, 400)
    np.testing.assert_array_equal(dense, dense[:, np.arange(400) // run * run])


@pytest.mark.parametrize("n_q", [0, 1, 31, 32, 100])
@pytest.mark.parametrize("n_kv", [0, 1, 33, 200])
def test_words_are_padded_bits_by_difference(n_q, n_kv):
    mask = mc.where(lambda q, k: (k - q) % 3 == 1)
    words = distance_words(driver.lowered(mask).keep, n_q, n_kv, {})
    assert words.dtype == np.int32
    assert len(words) == distance_count(n_q, n_kv)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    d = np.arange(1 - n_q, n_kv) if n_q and n_kv else np.zeros(0, int)
    np.testing.assert_array_equal(bits[PAD : PAD + len(d)], d % 3 == 1)
    assert not bits[:PAD].any()
    assert not bits[PAD + len(d) :].any()
    assert len(bits) - PAD - len(d) >= PAD


def test_words_are_of_the_part_by_distance():
    """Of a mask that has none they are dead."""
    keep = driver.lowered(mc.dilated(3, stride=2) | mc.where(lambda q, k: k == 5)).keep
    own = driver.lowered(mc.dilated(3, stride=2)).keep
    np.testing.assert_array_equal(distance_words(keep, 10, 10, {}), distance_words(own, 10, 10, {}))
    none = driver.lowered(mc.causal() & mc.strided(3)).keep
    assert not distance_words(none, 10, 10, {}).any()


# ------------------------------------------------------------------ chosen blocks


LONG_SIZES = [(1, 1), (64, 65), (130, 128), (333, 777), (777, 333), (191, 2300)]


def top(block: int, q_block: int, of: mc.Mask = CAUSAL) -> mc.Mask:
    return mc.topk(3, of=of, score="block_mean", block=block, q_block=q_block)


BY_CELLS = {
    "alone": top(64, 16),
    "a row each": top(64, 1),
    "a few rows": top(32, 4, mc.full()),
    "wide": top(256, 128),
    "narrow": top(16, 8),
    "no power of two": top(24, 24),
    "wider than a tile": top(136, 40, mc.window(500, 20)),
    "beside others": mc.window(90) | top(64, 32) | mc.sinks(5),
    "in one way or the other": mc.window(90) ^ top(64, 16, mc.full()),
    "beside chunks": mc.chunked(64) | top(64, 1, mc.where(lambda q, k: k // 64 < q // 64)),
    "beside near blocks": top(32, 16) | (CAUSAL & mc.where(lambda q, k: q // 32 - k // 32 <= 2)),
    "without": mc.causal() - top(40, 16),
}
FEW_PAIRS = "if (keep(mask, q, k, p.n_q, p.n_kv))\n                exact +="
PAIRS = {
    "blocks that share cells": top(20, 16),
    "two selections": top(64, 16) | top(32, 16, mc.full()),
    "several formulas": mc.per_head([top(64, 16), mc.window(9)]),
    "too many intervals": mc.offsets(range(0, 70, 9)) | top(64, 16),
}


def tables(mask: mc.Mask, n_q: int, n_kv: int, rng: np.random.Generator) -> dict[str, Chosen]:
    """A random third of all blocks is chosen, whatever its scores."""
    found = {}
    for one in driver.lowered(mask).selections:
        rows, columns = -(-n_q // one.q_block), -(-n_kv // one.block)
        blocks = np.where(rng.random((HEADS, rows, columns)) < 1 / 3, np.arange(columns), NONE)
        lists = np.sort(blocks.astype(np.int32), axis=-1)[None]
        found[one.name] = Chosen(lists, columns, one.block, one.q_block)
    return found


def live(mask: mc.Mask, n_q: int, n_kv: int, chosen: dict[str, Chosen]) -> np.ndarray:
    """bool [heads, n_q, n_kv]: the formula itself."""
    env = {"q": np.arange(n_q)[:, None], "k": np.arange(n_kv), "n_q": n_q, "n_kv": n_kv}
    array = np.zeros((HEADS, n_q, n_kv), bool)
    for head in range(HEADS):
        own = {name: table.part(0).part(head) for name, table in chosen.items()}
        array[head] = evaluate(driver.lowered(mask).keep, env | own)
    return array


@pytest.mark.parametrize(
    ("name", "dim", "source"), each(list(BY_CELLS), [64, 128, 192], ["large", "small", "backward"])
)
def test_bits_of_chosen_blocks_are_the_mask(name, dim, source):
    judge_cells(BY_CELLS[name], dim, source, LONG_SIZES)


def test_blocks_that_end_with_a_word_of_their_table():
    """Tiles of 96 keys begin in one word and end in the next, except for the last tile."""
    judge_cells(BY_CELLS["narrow"], 192, "large", [(9, 512), (9, 530)])


def judge_cells(mask, dim, source, sizes):
    bundle = emitted(mask, dim)
    direction = Direction.backward if source == "backward" else Direction.forward
    form = "small" if source == "small" else ""
    units = [x for x in bundle.choice("sm_90a", direction) if x.form == form]
    if not units:
        pytest.skip("there are no smaller tiles")
    bits = HostBits(bundle, units[0])
    rng = np.random.default_rng(dim)
    for n_q, n_kv in sizes:
        chosen = tables(mask, n_q, n_kv, rng)
        want = live(mask, n_q, n_kv, chosen)
        found = bits.live(n_q, n_kv, HEADS, chosen=chosen)
        np.testing.assert_array_equal(found, want, str((n_q, n_kv)))


@pytest.mark.parametrize("name", ["alone", "a row each", "no power of two"])
def test_packed_heads_have_the_same_rows_of_chosen_blocks(name):
    """The queries of several heads, one head after another, are rows of one tile."""
    mask = BY_CELLS[name]
    bundle = emitted(mask)
    bits = HostBits(bundle, bundle.unit("sm_90a", Direction.forward), packed=3)
    rng = np.random.default_rng(0)
    for n_q, n_kv in ((1, 300), (5, 260), (16, 9)):
        chosen = tables(mask, n_q, n_kv, rng)
        want = np.tile(live(mask, n_q, n_kv, chosen), (1, 3, 1))
        np.testing.assert_array_equal(bits.live(n_q, n_kv, HEADS, chosen=chosen), want)


@pytest.mark.parametrize("name", BY_CELLS)
def test_no_pair_is_tested(name):
    """Explain says so."""
    plan = planned(BY_CELLS[name])
    assert "and of the chosen blocks, no test per pair" in " ".join(explain(plan).split())
    for unit in driver.emit_bundle(plan).units:
        # Where a call has few pairs, delta is summed anew pair by pair, by a launch of its own.
        text = unit.source.replace("FN i32 keep(", "").replace(FEW_PAIRS, "")
        assert unit.target != "sm_90a" or "keep(" not in text


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_tested_of(name):
    assert "partial tiles: test each" in " ".join(explain(planned(PAIRS[name])).split())


def test_what_is_both_chosen_and_not_is_nothing():
    mask = top(64, 16) & (mc.window(9) | (mc.causal() - top(64, 16)))
    (one,) = planned(mask).masks
    assert {interval.chosen for interval in one.intervals} == {True}
    assert E.arrays(one.lifted.shape)
