"""Intervals of masks that read data: run by run their union is the mask, whatever the data are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.captured import HELD
from maskc.core.evaluator import evaluate
from maskc.core.problem import Direction, TileShape
from maskc.core.target import TARGETS
from maskc.dsl.nodes import default_parameters
from maskc.dsl.slots import with_captured
from maskc.ir.lift import lift
from maskc.layout import bind_arrays, held_arrays, sequence_arrays
from maskc.plan.data_intervals import RUN, DataIntervals, data_intervals
from maskc.testing.strategies import data_for, lengths, masks
from tests.support.thorough import examples

CAUSAL, FAR = mc.causal(), 2**31 - 1


def seen(found: DataIntervals, along: int, env: dict[str, object], tile: int) -> np.ndarray:
    """bool [rows, columns]: what a kernel sees that has tiles of so many columns."""
    rows, columns = (env["n_q"], env["n_kv"])[:: 1 - 2 * along]
    row, column = ("ti", "k") if along == 0 else ("tj", "q")
    live = np.zeros((rows, columns), dtype=bool)
    at = np.arange(columns)
    counts = [np.broadcast_to(evaluate(c.column, {**env, column: at}), columns)
              for c in found.intervals]  # fmt: skip
    same = np.ones(columns, dtype=bool)
    for each in found.alike:
        values = np.broadcast_to(evaluate(each, {**env, column: at}), columns)
        same[1:] &= values[1:] == values[:-1]
    begins = np.flatnonzero(~same | (at % tile == 0))
    own = np.arange(rows)[:, None]
    for begin, end in zip(begins, [*begins[1:], columns], strict=True):
        here = {**env, row: own, RUN.name: begin}
        for each, count in zip(found.intervals, counts, strict=True):
            first, last = (evaluate(x, here) for x in (each.span.first, each.span.last))
            assert np.all(first >= 0) or not E.arrays(each.span.first)
            inside = (at >= np.maximum(first, begin)) & (at < np.minimum(last, end))
            live |= evaluate(each.span.guard, here) & inside & count
    return live


def check(mask: mc.Mask, n_q: int, n_kv: int, data: dict[str, object]) -> tuple[bool, bool]:
    """Compare with the dense mask: whether queries, and whether keys have intervals."""
    inner, full = with_captured(mask, data, None, n_q, n_kv)
    ir = driver.lowered(inner)
    lifted = lift(ir.keep, lists=False)
    env: dict[str, object] = {n: x for n, x in data.items() if n in default_parameters(mask)}
    wanted = {decl.name for decl in ir.data if decl.from_caller}
    arrays = {name: value for name, value in full.items() if name in wanted}
    read = bind_arrays(ir.data, arrays, n_q, n_kv)
    if HELD in full:
        read |= held_arrays(full[HELD], env, n_q, n_kv)
    env |= {"n_q": n_q, "n_kv": n_kv}
    env |= sequence_arrays(LayoutRecipe(TileShape(8, 8), ir.keep, None), read, 0, 0)
    env |= {f"c{i}": int(evaluate(arg, env)) for i, arg in enumerate(lifted.args)}
    dense = np.asarray(mask.dense(n_q, n_kv, **data))
    sides = []
    for along in (0, 1):
        found = data_intervals(lifted.shape, along)
        sides.append(found is not None)
        if found is not None and n_q and n_kv:
            want = dense.T if along else dense
            for tile in (4, 64):
                assert (seen(found, along, env, tile) == want).all(), (along, found)
    return sides[0], sides[1]


@settings(max_examples=examples(300))
@given(st.data(), masks(max_depth=2), lengths(24))
def test_any_mask(data, mask, sizes):
    found = check(mask, *sizes, data.draw(data_for(mask, *sizes)))
    event(f"has intervals: {found}")


ATOMS = st.sampled_from([
    mc.documents("doc"), mc.flags("seen"), mc.flags("awake", on="q"), mc.intervals("span"), CAUSAL,
    mc.window(5), mc.window(3, 3), mc.prefix(4), mc.strided(3), mc.block_table("grid3", 3),
])  # fmt: skip


@settings(max_examples=examples(200))
@given(st.data(), st.lists(ATOMS, min_size=2, max_size=4), lengths(24))
def test_data_and_bands(data, parts, sizes):
    """Intersections and unions of what comes with batches."""
    mask = parts[0]
    for part in parts[1:]:
        mask = mask & part if data.draw(st.booleans()) else mask | part
    event(f"has intervals: {check(mask, *sizes, data.draw(data_for(mask, *sizes)))}")


def captured(values):
    return np.array(values, dtype=np.int64)


LENGTHS, IDS, ENDS = captured([4]), captured([0, 0, 3, 3, 3, 1, 1, 9]), captured([0, 9, 3] * 3)

HAVE = {
    "padding, flags": mc.flags("seen") & CAUSAL,
    "padding of both sides": mc.flags("seen") & mc.flags("awake", on="q"),
    "padding, intervals": mc.intervals("span") & CAUSAL,
    "prefix": mc.intervals("span") | CAUSAL,
    "documents": mc.documents("doc"),
    "padding, documents and a window": mc.flags("seen") & mc.documents("doc") & mc.window(5),
    "images in a window": mc.window(5) | mc.intervals("span") & mc.window(5, 5),
    "flagged keys and a window": CAUSAL & (mc.window(3) | mc.flags("seen")),
    "a table": mc.block_table("grid3", 3) & CAUSAL,
    "strided keys": mc.flags("seen") & mc.strided(3),
    "lengths": mc.from_mask_mod(lambda b, h, q, k: (k <= q) & (k < LENGTHS[b])),
    "ends of queries": mc.where(lambda q, k: (k > ENDS[q]) & (k <= ENDS[q] + 4)),
    "ends of keys": mc.where(lambda q, k: (q >= ENDS[k]) & (k <= q)),
    "ids": mc.where(lambda q, k: (IDS[q] == IDS[k]) & (abs(q - k) < 3)),
    "more ids than keys": mc.where(lambda q, k: (IDS[q] > IDS[k]) | (k == q)),
}
HAVE_NOT = {
    "no data": CAUSAL,
    "tables by distance": mc.where(lambda q, k: IDS[abs(q - k) % 8] == 3),
    "strides of a query": mc.flags("seen") & mc.dilated(3, stride=4),
    "remainders of data": mc.where(lambda q, k: (q - k) % 5 == IDS[k] % 5),
}


@pytest.mark.parametrize("name", HAVE)
def test_have(name):
    mask = HAVE[name]
    rng = np.random.default_rng(0)
    given = {
        "seen": rng.random(8) < 0.6, "awake": rng.random(8) < 0.6,
        "span": (rng.integers(-3, 9, 8), rng.integers(-3, 12, 8)),
        "doc": np.sort(rng.integers(0, 4, 8)), "grid3": rng.random((3, 3)) < 0.5,
    }  # fmt: skip
    names = {decl.name for decl in driver.lowered(mask).data}
    data = {key: value for key, value in given.items() if key in names}
    assert check(mask, 8, 8, data) == (True, True)


@pytest.mark.parametrize("name", HAVE_NOT)
def test_have_not(name):
    shape = lift(driver.lowered(HAVE_NOT[name]).keep).shape
    assert data_intervals(shape, 0) is None or data_intervals(shape, 1) is None


def planned(mask, direction=Direction.forward):
    problem = driver.problem(64, None, 4, "bfloat16")
    plan = driver.plan_kernel(mask, problem, TARGETS["sm_90a"])
    return next(p for p in (plan, *plan.alternatives) if (p.direction, p.form) == (direction, ""))


def test_who_has_no_runs():
    """Where no data of columns meet rows, a tile is one run and no kernel tests pairs."""
    for name, runs in {
        "padding, flags": (), "padding of both sides": (), "padding, intervals": (), "prefix": (),
        "images in a window": (), "flagged keys and a window": (), "lengths": (),
        "padding, documents and a window": ("doc.k",),
    }.items():  # fmt: skip
        found = planned(HAVE[name]).by_query
        assert {load.array for load in found.alike} == set(runs), name


def test_ends_stay_inside_32_bits():
    """An element is compared with tokens as it is, whatever it is, and one is never added to it
    where that would wrap."""
    far = captured([FAR, -FAR - 1, 3, FAR, 0, 1, -1, 2])
    mask = mc.where(lambda q, k: (k > far[q]) | (k <= far[7 - q]))
    assert check(mask, 8, 8, {}) == (True, True)
    plan = planned(mask)
    bundle = driver.emit_bundle(plan)
    (unit,) = (unit for unit in bundle.units if unit.key == "sm_90a")
    assert not E.arrays(unit.reach[0]), "elements alone never need 64 bits"


def test_trees_are_tested_pair_by_pair():
    """Times of a walk differ from token to token: there are no runs."""
    plan = planned(mc.tree("walk"))
    assert plan.by_query is None


def test_reports_say_so():
    plan = planned(HAVE["padding, intervals"])
    assert any("from the data; no test per pair" in reason for reason in plan.reasons)
    plan = planned(HAVE["padding, documents and a window"])
    assert any("once for each run of equal data" in reason for reason in plan.reasons)
