"""Count what a plan asks isl: questions bound the time of the masks that ask most."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import islpy as isl
import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.problem import TileShape
from maskc.core.target import TARGETS
from maskc.ir import decompose as decomposing
from maskc.ir import relayout, sampled_rows
from maskc.ir import simplify as simplifying
from maskc.ir.sampled_points import sampled_points
from maskc.layout import build
from maskc.plan import intervals, masks, ranges, recipe
from maskc.plan.recipe import difficulty

FRAME, HEADS = 1350, 16
SPATIAL = mc.where(lambda q, k: (abs(q // FRAME - k // FRAME) <= 1) | (k // FRAME == 0))
TEMPORAL = mc.where(lambda q, k: (abs(q % FRAME - k % FRAME) <= 48) | (k // FRAME == 0))
VIDEO_HEADS = mc.per_head([SPATIAL if head % 2 else TEMPORAL for head in range(HEADS)])
"""Sparse VideoGen: some heads look at near frames, others at one place of all frames."""
SCATTERED = (
    mc.dilated(5, 1, stride=5, align="start") | mc.offsets([-25, 37, 58])
) & mc.global_tokens([8, 22, 26, 47, 56, 66, 88], align="start").columns
"""The partial tiles of 2 x 64 are 822 disjoint conjunctions."""


@pytest.fixture
def asked(monkeypatch):
    """Count how often each question was asked, nothing being remembered from other tests."""
    counts: Counter[str] = Counter()

    def counted(module, name):
        real = getattr(module, name)

        def question(*given, **named):
            counts[name] += 1
            return real(*given, **named)

        monkeypatch.setattr(module, name, question)

    for remembers in (
        driver._analyse_heads, decomposing.pieces_of, simplifying.simplify, recipe.layout_recipe,
        ranges._ranges, intervals.intervals, intervals.intervals_alongside,
    ):  # fmt: skip
        remembers.cache_clear()
    counted(recipe, "_full_and_partial")
    counted(recipe, "tile_loops")
    counted(ranges, "solid_tiles")
    counted(decomposing, "_exact")
    proves = simplifying._Simplifier._proves

    def proved(simplifier, *given):
        counts["proofs"] += 1
        return proves(simplifier, *given)

    monkeypatch.setattr(simplifying._Simplifier, "_proves", proved)
    return counts


def plan(mask: mc.Mask, heads: int | None = None):
    problem = driver.problem(64, None, heads, "bfloat16")
    return driver.plan_kernel(mask, problem, TARGETS["sm_90a"])


@pytest.mark.parametrize(
    ("name", "lengths", "loops"), [("sta", 1, 0), ("natten_3d", 2, 2)], ids=["sta", "natten_3d"]
)
def test_a_mask_too_hard_for_closed_forms_is_tried_at_one_tile(asked, name, lengths, loops):
    """At all lengths, and at equal ones unless isl would need too long; full and partial tiles."""
    made = plan(getattr(mc.patterns, name)())
    tiles = {each.tile for each in (made, *made.alternatives)}
    assert len(tiles) > 2
    assert asked["_full_and_partial"] == lengths
    assert asked["tile_loops"] == 2 * loops
    assert asked["solid_tiles"] == 0, "rows with gaps are no intervals"


def test_heads_that_differ_in_a_phase_ask_little(asked):
    """LongNet has 12 different sets on 16 heads."""
    made = plan(mc.patterns.longnet(), 16)
    assert len(made.masks) == 12
    assert asked["_full_and_partial"] == 1
    assert asked["solid_tiles"] <= 3, "the one term without gaps is the same on all heads"
    assert asked["proofs"] == 0, "points refute everything that would make a formula shorter"
    assert asked["_exact"] == 0, "only a mask that all heads share can run in parts"


def test_equal_heads_are_planned_once(asked):
    made = plan(VIDEO_HEADS, HEADS)
    assert len(made.masks) == 2
    tiles = {each.tile for each in (made, *made.alternatives)}
    # the temporal mask is too hard, the spatial one is tried at all lengths and at equal ones
    assert asked["_full_and_partial"] <= 2 + 2 * len(tiles)
    assert asked["_exact"] == 0


def test_pieces_of_heads_are_found_when_somebody_reads_them(asked):
    heads = driver.analyse_heads(VIDEO_HEADS, HEADS)
    assert all(not ir.pieces for ir in heads.masks)
    assert all(decomposing.pieces_of(ir) for ir in heads.masks)
    assert asked["_exact"] == 2


def test_loops_are_sought_for_few_disjoint_conjunctions(monkeypatch):
    """isl needs a minute for these, and cannot be stopped while it makes loops."""
    made = []
    build = isl.AstBuild.node_from_schedule_map
    monkeypatch.setattr(
        isl.AstBuild, "node_from_schedule_map",
        lambda builder, schedule: made.append(schedule) or build(builder, schedule),
    )  # fmt: skip
    recipe.layout_recipe.cache_clear()
    tile_recipe = recipe.layout_recipe(driver.lowered(SCATTERED).keep, TileShape(2, 64))
    most = [len(tiles.domain().make_disjoint().get_basic_sets())
            for schedule in made for tiles in _maps(schedule)]  # fmt: skip
    assert max(most, default=0) <= recipe._MAX_PARTS
    layout = SCATTERED.layout(130, 120, block=(2, 64))
    dense = np.pad(SCATTERED.dense(130, 120), ((0, 0), (0, 8)))
    live = dense.reshape(65, 2, 2, 64).any(axis=(1, 3))
    np.testing.assert_array_equal(layout.to_dense() > 0, live)
    assert tile_recipe.keep is not None


def _maps(schedule: isl.UnionMap) -> list[isl.Map]:
    maps: list[isl.Map] = []
    schedule.foreach_map(maps.append)
    return maps


@pytest.mark.parametrize("mask", [mc.window(9), mc.strided(3) | mc.causal(), SPATIAL])
def test_sampled_points_are_of_the_mask(mask):
    """Points that lie inside the lengths see live and dead pairs, so that they can contradict."""
    keep = driver.lowered(mask).keep
    at = sampled_points(keep)
    inside = (at["q"] >= 0) & (at["q"] < at["n_q"]) & (at["k"] >= 0) & (at["k"] < at["n_kv"])
    holds = np.broadcast_to(evaluate(keep, at), inside.shape)[inside]
    assert holds.any()
    assert not holds.all()


def test_formulas_that_might_leave_64_bits_have_no_points():
    keep = driver.lowered(mc.where(lambda q, k: (q + 2**62 >= k) & (k < 3))).keep
    assert keep == driver.lowered(mc.prefix(3)).keep, "isl proves what no point may refute"
    wide = E.ge(E.sub(E.const(2**62), E.Q), E.scale(3, E.K))
    assert sampled_points(wide)["q"].size == 0


@pytest.mark.parametrize("dilation", [(1, 2, 2), (2, 2, 2)])
def test_points_tell_neighbours_on_the_outer_axes_of_a_grid_apart(asked, dilation):
    """isl is asked only about what is true: that rounded coordinates are not negative."""
    driver.analyse_heads(mc.patterns.natten_3d(dilation=dilation), None)
    assert asked["proofs"] <= 3


TAIL = mc.window(9, align="start") & (mc.where(lambda q, k: k != 100) | mc.prefix(3))
"""Only row 100 does not keep the key at its own position."""


@pytest.mark.parametrize("mask", [
    mc.window(9), mc.causal(), mc.patterns.natten_2d(), TAIL,
    mc.patterns.natten_3d(height=4, width=4, kernel=(3, 3, 3), dilation=(2, 2, 2)),
])  # fmt: skip
def test_a_row_that_keeps_its_own_key_is_not_empty(mask):
    (facts,) = driver.analyse_heads(mask, None).facts
    assert facts.no_empty_row.holds
    assert mask.dense(192).any(1).all()


@pytest.mark.parametrize("hidden", [7, 4095])
def test_one_row_that_hides_all_keys_is_found(hidden):
    """Other rows keep the keys at their own positions, and samples miss this row."""
    mask = mc.causal() & mc.where(lambda q, k: q != hidden)
    (facts,) = driver.analyse_heads(mask, None).facts
    assert facts.no_empty_row.holds is False


def test_rows_without_keys_are_found_at_unequal_lengths():
    (facts,) = driver.analyse_heads(mc.causal(), None).facts
    assert facts.no_empty_row.where == "n_q = n_kv"
    assert not mc.causal().dense(9, 4).any(1).all()


def test_gaps_are_seen_in_rows():
    rows = np.array([[0, 1, 1, 0], [1, 0, 0, 0]], dtype=bool)
    assert not sampled_rows.have_gaps(rows)
    assert sampled_rows.have_gaps(np.array([[1, 0, 1, 0]], dtype=bool))
    assert sampled_rows.have_gaps(np.array([[0, 1, 0, 1]], dtype=bool))


@pytest.mark.parametrize(
    ("mask", "moves"),
    [(mc.window(9), True), (mc.dilated(7, stride=4), True), (mc.patterns.natten_2d(), False),
     (mc.causal() - mc.prefix(3), False)],
)  # fmt: skip
def test_rows_move_along_with_queries(mask, moves):
    keep = driver.lowered(mask).keep
    samples = sampled_rows.sampled_rows(keep, E.params(keep))
    assert all(sampled_rows.move_along(rows, after) for _, rows, after in samples) is moves


def test_pieces_that_rows_contradict_are_not_compared_as_sets(monkeypatch):
    """isl would need 0.4 s to find that a neighbourhood on a video has borders."""
    asked = []
    monkeypatch.setattr(relayout._Line, "inside", lambda line, *given: asked.append(given))
    plan(mc.patterns.natten_3d(height=4, width=4, kernel=(3, 3, 3), dilation=(2, 2, 2)))
    assert not asked
    plan(mc.dilated(7, stride=4))
    assert asked


def test_blocks_are_cut_by_rows():
    rows = np.array([[0, 0, 1, 1, 1], [1, 1, 0, 0, 1]], dtype=bool)
    assert not sampled_rows.cross_blocks(rows, 2)
    assert sampled_rows.cross_blocks(rows, 4)
    assert sampled_rows.cross_blocks(rows[:1], 3)


# ------------------------ heads for which closed forms are sought


LONGNET = mc.load(Path(__file__).parents[2] / "patterns" / "longnet.py")["longnet"]


@pytest.fixture
def sought(monkeypatch):
    """Count how often closed forms were sought, by tile."""
    found = Counter()

    def counted(keep, tile, real=masks.layout_recipe):
        found[tile] += 1
        return real(keep, tile)

    monkeypatch.setattr(masks, "layout_recipe", counted)
    return found


def planned(mask, heads, target="cpu"):
    return driver.plan_kernel(mask, driver.problem(64, None, heads, "float32"), TARGETS[target])


def test_in_vain_for_one_head_of_those_that_are_alike(sought):
    plan = planned(LONGNET(), 8)
    assert len(plan.masks) == 8
    assert len({difficulty(mask.ir.keep) for mask in plan.masks}) == 1
    assert all(mask.recipe.loops is None for mask in plan.masks)
    assert all(mask.recipe.keep == mask.ir.keep for mask in plan.masks)
    assert sought[plan.tile] == 1


def test_for_every_head_where_they_are_found(sought):
    plan = planned(mc.per_head([mc.causal() & mc.window(width) for width in (3, 40, 500)]), 3)
    assert all(mask.recipe.loops for mask in plan.masks)
    assert sought[plan.tile] == 3


def test_for_others_beside_one_that_is_too_hard(sought):
    hard = mc.where(lambda h, q, k: (q * 2 + h) // 7 % 5 == k // 3 % 5) & LONGNET(causal=False)
    plan = planned(mc.per_head([hard, mc.window(9), hard, mc.window(30)]), 4)
    closed = [mask.recipe.loops is not None for mask in plan.masks]
    assert sorted(closed) == [False] * (len(closed) - 2) + [True, True]


@pytest.mark.parametrize("n", [1, 130, 700])
def test_lists_are_exact_without_closed_forms(n):
    """Segments short enough for these lengths."""
    mask = LONGNET(segments=(64, 128, 256), rates=(1, 3, 5))
    bundle = driver.emit_bundle(planned(mask, 4))
    unit = bundle.units[0]
    dense = np.asarray(mask.dense(n, n_heads=4))
    for head in range(4):
        variant = bundle.variants[bundle.head_variant[head] if bundle.head_variant else 0]
        layout = build(variant.recipe(unit.tile), n, n, {}, {})
        rows, columns = layout.shape
        padded = np.zeros((rows * unit.tile.q, columns * unit.tile.k), bool)
        padded[:n, :n] = dense[head]
        live = padded.reshape(rows, unit.tile.q, columns, unit.tile.k).any(axis=(1, 3))
        np.testing.assert_array_equal(layout.to_dense() > 0, live)
