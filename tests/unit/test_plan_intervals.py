"""Intervals per query and per key: their union is the mask, pair by pair."""

from __future__ import annotations

from collections.abc import Callable

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
from maskc.core.gathering import Span
from maskc.core.problem import Direction, TileShape
from maskc.core.target import TARGETS
from maskc.dsl.nodes import default_parameters
from maskc.dsl.slots import with_captured
from maskc.ir.lift import Lifted, lift
from maskc.layout import bind_arrays, held_arrays, sequence_arrays
from maskc.patterns import block_diffusion
from maskc.plan.data_intervals import RUN, DataIntervals, data_intervals
from maskc.plan.intervals import MAX_TERMS, Interval, intervals
from maskc.testing.strategies import data_for, lengths, masks, plain_atoms
from tests.support.thorough import examples

SIZES = [(0, 0), (1, 1), (1, 9), (9, 1), (0, 5), (5, 0), (7, 7), (24, 24), (13, 30), (30, 13)]


def union(spans: list[Span], variable: str, env: dict[str, int]) -> np.ndarray:
    """bool: which of one side's tokens lie in some interval of each of the other's.

    Bounds are cut off at the ends of the sequence, as a kernel does.
    """
    of, count = ("n_q", "n_kv") if variable == "ti" else ("n_kv", "n_q")
    rows, tokens = np.arange(env[of])[:, None], np.arange(env[count])[None]
    here = {**env, variable: rows}
    array = np.zeros((env[of], env[count]), dtype=bool)
    for span in spans:
        inside = (tokens >= evaluate(span.first, here)) & (tokens < evaluate(span.last, here))
        array |= evaluate(span.guard, here) & inside
    return array


def arguments(lifted: Lifted, env: dict[str, int]) -> dict[str, int]:
    return {f"c{i}": int(evaluate(arg, env)) for i, arg in enumerate(lifted.args)}


def check(mask: mc.Mask, n_q: int, n_kv: int, data: dict[str, object]) -> bool:
    """Compare with the dense mask; False where the mask has no intervals.

    `data` are values of parameters, and arrays, which the mask may declare but must not need.
    """
    keep = driver.lowered(mask).keep
    lifted = lift(keep)
    ranges = intervals(lifted.shape)
    if ranges is None:
        return False
    reads = {name for span in ranges for formula in formulas(span) for name in E.symbols(formula)}
    assert reads <= {"ti", "tj", "n_q", "n_kv", *(f"c{i}" for i in range(len(lifted.args)))}
    env = {name: value for name, value in data.items() if name in default_parameters(mask)}
    env |= {"n_q": n_q, "n_kv": n_kv}
    env |= arguments(lifted, env)
    dense = mask.dense(n_q, n_kv, **data)
    assert (union([x.keys for x in ranges], "ti", env) == dense).all()
    assert (dense == union([x.queries for x in ranges], "tj", env).T).all()
    return True


def formulas(span: Interval) -> list[E.Expr]:
    sides = (span.keys, span.queries)
    return [formula for side in sides for formula in (side.guard, side.first, side.last)]


SLOW = settings(max_examples=examples(200))


@SLOW
@given(st.data(), masks(max_depth=2), lengths(24))
def test_any_mask(data, mask, sizes):
    shape = lift(driver.lowered(mask).keep).shape
    if E.arrays(shape):
        assert intervals(shape) is None, "data decide"
    else:
        found = check(mask, *sizes, data.draw(data_for(mask, *sizes)))
        event(f"has intervals: {found}")


BANDS = st.one_of(
    st.just(mc.causal()),
    st.builds(mc.window, st.none() | st.integers(0, 6), st.none() | st.integers(0, 6)),
    st.builds(mc.sinks, st.integers(0, 6)),
    st.builds(mc.prefix, st.just(mc.n_kv // 2) | st.just(mc.param("w", 3))),
    st.builds(lambda n: mc.global_tokens(n).rows, st.integers(0, 5)),
    st.builds(lambda n, a: mc.window(n, 0, align=a), st.integers(0, 5), st.just("start")),
    st.builds(mc.block_diagonal, st.integers(1, 6)),
    st.builds(
        lambda n, a, b: mc.where(lambda q, k: (q + a) // n > (k + b) // n),
        st.integers(2, 6),
        st.integers(-4, 4),
        st.integers(-4, 4),
    ),
)


@SLOW
@given(st.data(), st.lists(BANDS, min_size=1, max_size=4), lengths(24))
def test_bands_joined(data, parts, sizes):
    """Masks that mostly have intervals: bands, blocks and corners under `&` and `|`."""
    mask = parts[0]
    for part in parts[1:]:
        mask = mask & part if data.draw(st.booleans()) else mask | part
    params = {name: data.draw(st.integers(0, 9)) for name in default_parameters(mask)}
    event(f"has intervals: {check(mask, *sizes, params)}")


@settings(SLOW, max_examples=examples(100))
@given(plain_atoms(), lengths(24))
def test_one_combinator(mask, sizes):
    check(mask, *sizes, {})


HAVE = {
    "full": (mc.full(), 1),
    "causal": (mc.causal(), 1),
    "window": (mc.window(5), 1),
    "window, both sides": (mc.window(5, 3), 1),
    "window, by a parameter": (mc.window(mc.param("w", 4), 1), 1),
    "streaming": (mc.causal() & (mc.sinks(4) | mc.window(6)), 2),
    "longformer": (mc.window(4, 4) | mc.global_tokens(3), 3),
    "prefix": (mc.prefix(4), 1),
    "prefix-LM": (mc.causal() | mc.prefix(mc.n_kv // 3), 2),
    "block diagonal": (mc.block_diagonal(5), 1),
    "sinks": (mc.sinks(3), 1),
    "nothing": (mc.sinks(0), 1),
    "aligned to the start": (mc.causal(align="start"), 1),
    "slashes": (mc.offsets([0, 3, 9]), 3),
    "stairs": (mc.where(lambda q, k: (q + 2) // 3 >= (k + 1) // 3), 1),
    "block diffusion": (block_diffusion(block=4), 3),
}


@pytest.mark.parametrize("name", HAVE)
def test_has_intervals(name):
    mask, most = HAVE[name]
    for n_q, n_kv in SIZES:
        assert check(mask, n_q, n_kv, {}), name
    assert len(intervals(lift(driver.lowered(mask).keep).shape)) <= most


HAVE_NOT = {
    "strided": mc.strided(4),
    "dilated": mc.dilated(3, stride=4),
    "many slashes": mc.offsets(range(0, 90, 5)),
    "outside a band": mc.full() - mc.window(3, 3) - mc.strided(2),
    "documents": mc.documents("doc"),
    "causal documents": mc.causal() & mc.documents("doc"),
    "flags": mc.causal() & mc.flags("seen"),
    "intervals as data": mc.intervals("span"),
    "tree": mc.tree("walk"),
    "block table": mc.block_table("grid", 4),
    "random blocks": mc.random_blocks(4, 1, 0),
}


@pytest.mark.parametrize("name", HAVE_NOT)
def test_has_none(name):
    assert intervals(lift(driver.lowered(HAVE_NOT[name]).keep).shape) is None


def union_of(count: int, part: Callable[[int], mc.Mask]) -> mc.Mask:
    mask = part(0)
    for i in range(1, count):
        mask = mask | part(i)
    return mask


def test_few_are_worth_it_and_many_are_not():
    """Corners that differ in both directions stay apart."""

    def corner(i: int) -> mc.Mask:
        return mc.where(lambda q, k: (q < 3 + 4 * i) & (k < 40 - 5 * i))

    few, many = union_of(MAX_TERMS, corner), union_of(MAX_TERMS + 1, corner)
    assert check(few, 45, 45, {})
    assert not check(many, 45, 45, {})


def test_constants_stay_symbolic():
    """Masks that differ in constants share their intervals."""
    shapes = [lift(driver.lowered(mc.window(n, 2 * n)).keep).shape for n in (3, 50)]
    assert intervals(shapes[0]) == intervals(shapes[1])


# ------------------------------------------------------------------ masks that read data


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


def check_runs(mask: mc.Mask, n_q: int, n_kv: int, data: dict[str, object]) -> tuple[bool, bool]:
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
def test_any_mask_with_data(data, mask, sizes):
    found = check_runs(mask, *sizes, data.draw(data_for(mask, *sizes)))
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
    event(f"has intervals: {check_runs(mask, *sizes, data.draw(data_for(mask, *sizes)))}")


def captured(values):
    return np.array(values, dtype=np.int64)


LENGTHS, IDS, ENDS = captured([4]), captured([0, 0, 3, 3, 3, 1, 1, 9]), captured([0, 9, 3] * 3)

HAVE_RUNS = {
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
HAVE_NO_RUNS = {
    "no data": CAUSAL,
    "tables by distance": mc.where(lambda q, k: IDS[abs(q - k) % 8] == 3),
    "strides of a query": mc.flags("seen") & mc.dilated(3, stride=4),
    "remainders of data": mc.where(lambda q, k: (q - k) % 5 == IDS[k] % 5),
}


@pytest.mark.parametrize("name", HAVE_RUNS)
def test_have(name):
    mask = HAVE_RUNS[name]
    rng = np.random.default_rng(0)
    given = {
        "seen": rng.random(8) < 0.6, "awake": rng.random(8) < 0.6,
        "span": (rng.integers(-3, 9, 8), rng.integers(-3, 12, 8)),
        "doc": np.sort(rng.integers(0, 4, 8)), "grid3": rng.random((3, 3)) < 0.5,
    }  # fmt: skip
    names = {decl.name for decl in driver.lowered(mask).data}
    data = {key: value for key, value in given.items() if key in names}
    assert check_runs(mask, 8, 8, data) == (True, True)


@pytest.mark.parametrize("name", HAVE_NO_RUNS)
def test_have_not(name):
    shape = lift(driver.lowered(HAVE_NO_RUNS[name]).keep).shape
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
        found = planned(HAVE_RUNS[name]).by_query
        assert {load.array for load in found.alike} == set(runs), name


def test_ends_stay_inside_32_bits():
    """An element is compared with tokens as it is, whatever it is, and one is never added to it
    where that would wrap."""
    far = captured([FAR, -FAR - 1, 3, FAR, 0, 1, -1, 2])
    mask = mc.where(lambda q, k: (k > far[q]) | (k <= far[7 - q]))
    assert check_runs(mask, 8, 8, {}) == (True, True)
    plan = planned(mask)
    bundle = driver.emit_bundle(plan)
    (unit,) = (unit for unit in bundle.units if unit.key == "sm_90a")
    assert not E.arrays(unit.reach[0]), "elements alone never need 64 bits"


def test_trees_are_tested_pair_by_pair():
    """Times of a walk differ from token to token: there are no runs."""
    plan = planned(mc.tree("walk"))
    assert plan.by_query is None


def test_reports_say_so():
    plan = planned(HAVE_RUNS["padding, intervals"])
    assert any("from the data; no test per pair" in reason for reason in plan.reasons)
    plan = planned(HAVE_RUNS["padding, documents and a window"])
    assert any("once for each run of equal data" in reason for reason in plan.reasons)
