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
from maskc.core.evaluator import evaluate
from maskc.dsl.nodes import default_parameters
from maskc.ir.lift import Lifted, lift
from maskc.patterns import block_diffusion
from maskc.plan.intervals import MOST, Interval, intervals
from maskc.plan.ranges import TileRange
from maskc.testing.strategies import data_for, lengths, masks, plain_atoms
from tests.support.thorough import examples

SIZES = [(0, 0), (1, 1), (1, 9), (9, 1), (0, 5), (5, 0), (7, 7), (24, 24), (13, 30), (30, 13)]


def union(spans: list[TileRange], variable: str, env: dict[str, int]) -> np.ndarray:
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

    few, many = union_of(MOST, corner), union_of(MOST + 1, corner)
    assert check(few, 45, 45, {})
    assert not check(many, 45, 45, {})


def test_constants_stay_symbolic():
    """Masks that differ in constants share their intervals."""
    shapes = [lift(driver.lowered(mc.window(n, 2 * n)).keep).shape for n in (3, 50)]
    assert intervals(shapes[0]) == intervals(shapes[1])
