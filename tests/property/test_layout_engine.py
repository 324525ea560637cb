"""Every way to a layout agrees with brute force, to the tile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL, PARTIAL, BlockLayout
from maskc.core.problem import TileShape
from maskc.layout import build, count
from maskc.layout.tiles import elements, expand, matching, refine, row_sweep, toeplitz
from maskc.layout.tiles.bounds import Analyst, PairBoxes
from maskc.layout.tiles.elements import Elements
from maskc.layout.tiles.expand import layout_of
from maskc.layout.tiles.ranges import extremes_of
from tests.support.thorough import examples

VECTOR = np.random.default_rng(1).integers(-9, 40, 37).astype(np.int32)
SORTED = np.sort(np.random.default_rng(2).integers(0, 6, 29)).astype(np.int32)
TABLE = (np.random.default_rng(3).random((7, 9)) < 0.6).astype(np.int32)
GRID = np.random.default_rng(4).integers(-20, 60, (5, 6)).astype(np.int32)
ARRAYS = {"vector": VECTOR, "sorted": SORTED, "table": TABLE, "grid": GRID}

WIDTH = E.Param("width", 3)
ATOMS = [E.Q, E.K, E.N_Q, E.N_KV, WIDTH, E.sub(E.Q, E.K), E.add(E.Q, E.sub(E.N_KV, E.N_Q))]

TILES = [(1, 1), (2, 3), (4, 4), (5, 8), (16, 8), (8, 16), (20, 20), (40, 3)]


def lengths_for(tile: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, 1, tile - 1, tile, tile + 1, 2 * tile + 3, 47, 64])


def load(name: str, index: list[Expr]) -> Expr:
    """A read that stays inside the array, as the engine demands."""
    sizes = ARRAYS[name].shape
    return E.Load(name, tuple(E.mod(i, size) for i, size in zip(index, sizes, strict=False)))


COMPARE = [E.ge, E.le, E.gt, E.lt, E.eq, E.ne]
INTEGERS = ["atom", "atom", "number", "sum", "floordiv", "mod", "minimum", "maximum", "load"]


@st.composite
def integer(draw: st.DrawFn, atoms: list[Expr], arrays: list[str], depth: int) -> Expr:
    inner = integer(atoms, arrays, depth - 1)
    match draw(st.sampled_from(INTEGERS[: len(INTEGERS) if depth else 3])):
        case "number":
            return E.const(draw(st.integers(-5, 60)))
        case "sum":
            factors = [draw(st.sampled_from([-3, -2, -1, 1, 2, 5])) for _ in range(2)]
            return E.linear(draw(st.integers(-40, 40)), [(f, draw(inner)) for f in factors])
        case "floordiv":
            return E.floordiv(draw(inner), draw(st.integers(2, 11)))
        case "mod":
            return E.mod(draw(inner), draw(st.integers(2, 11)))
        case "minimum":
            return E.minimum(draw(inner), draw(inner))
        case "maximum":
            return E.maximum(draw(inner), draw(inner))
        case "load":
            return load(draw(st.sampled_from(arrays)), [draw(inner), draw(inner)])
    return draw(st.sampled_from(atoms))


@st.composite
def formula(draw: st.DrawFn, atoms: list[Expr], arrays: list[str], depth: int = 2) -> Expr:
    inner, value = formula(atoms, arrays, depth - 1), integer(atoms, arrays, 2)
    kinds = ["compare", "compare", "member", "conj", "disj", "negate"]
    match draw(st.sampled_from(kinds[: len(kinds) if depth else 3])):
        case "conj":
            return E.conj(draw(inner), draw(inner))
        case "disj":
            return E.disj(draw(inner), draw(inner))
        case "negate":
            return E.negate(draw(inner))
        case "member":
            return E.member(draw(value), draw(st.lists(st.integers(-20, 40), max_size=9)))
    return draw(st.sampled_from(COMPARE))(draw(value), draw(value))


ANY_FORMULA = formula(ATOMS, list(ARRAYS))
INVARIANT = formula(
    [E.sub(E.K, E.Q), E.sub(E.N_KV, E.N_Q), WIDTH, E.N_KV], ["vector", "sorted", "grid"]
)


@st.composite
def grids(draw: st.DrawFn) -> tuple[int, int, TileShape]:
    tile = TileShape(*draw(st.sampled_from(TILES)))
    return draw(lengths_for(tile.q)), draw(lengths_for(tile.k)), tile


def dense(keep: Expr, n_q: int, n_kv: int, width: int = 3) -> np.ndarray:
    env = {**ARRAYS, "n_q": n_q, "n_kv": n_kv, "width": width}
    live = evaluate(keep, {**env, "q": np.arange(n_q)[:, None], "k": np.arange(n_kv)[None, :]})
    return np.broadcast_to(live, (n_q, n_kv))


def classes(live: np.ndarray, tile: TileShape) -> np.ndarray:
    """0, 1 or 2 per tile, one tile at a time."""
    n_q, n_kv = live.shape
    out = np.zeros((-(-n_q // tile.q), -(-n_kv // tile.k)), dtype=np.uint8)
    for i, j in np.ndindex(out.shape):
        part = live[i * tile.q : (i + 1) * tile.q, j * tile.k : (j + 1) * tile.k]
        out[i, j] = FULL if part.all() else PARTIAL if part.any() else 0
    return out


def check(layout: BlockLayout, expected: np.ndarray) -> None:
    assert layout.row_ptr.dtype == layout.col.dtype == np.int32
    assert layout.kind.dtype == np.uint8
    assert layout.row_ptr.shape == (expected.shape[0] + 1,)
    for row, (start, stop) in enumerate(zip(layout.row_ptr, layout.row_ptr[1:], strict=False)):
        assert layout.col[start:stop].tolist() == np.flatnonzero(expected[row]).tolist()
        assert layout.kind[start:stop].tolist() == expected[row][expected[row] > 0].tolist()
    other = layout.transpose()
    assert (other.to_dense() == expected).all()
    back = other.transpose()
    assert back.row_ptr.tolist() == layout.row_ptr.tolist()
    assert back.col.tolist() == layout.col.tolist()
    assert back.kind.tolist() == layout.kind.tolist()


def elements_of(keep: Expr, n_q: int, n_kv: int) -> Elements:
    values = {E.N_Q: E.const(n_q), E.N_KV: E.const(n_kv), WIDTH: E.const(3)}
    return Elements(E.substitute(keep, values), ARRAYS, n_q, n_kv)


def refined(keep: Expr, n_q: int, n_kv: int, tile: TileShape) -> BlockLayout:
    mask = elements_of(keep, n_q, n_kv)
    return layout_of(n_q, n_kv, tile, refine.refined_rows(mask, n_q, n_kv, tile))


@pytest.fixture(scope="module", autouse=True)
def small_steps() -> Iterator[None]:
    """Chunks and pyramids so small that small masks go through many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refine, "_COARSE", 4)
        patch.setattr(refine, "_OPEN", 64)
        patch.setattr(expand, "_CHUNK", 24)
        patch.setattr(elements, "_PAIRS", 600)
        patch.setattr(matching, "_TILES", 16)
        patch.setattr(matching, "_MANY", 3)
        patch.setattr(matching, "_PARTIAL", 3)
        patch.setattr(row_sweep, "_ROWS", 12)
        patch.setattr("maskc.layout.tiles.ranges._LONGEST", 16)
        yield


@settings(max_examples=examples(800))
@given(ANY_FORMULA, grids(), st.integers(0, 6))
def test_layout_of_any_formula(keep: Expr, grid: tuple[int, int, TileShape], width: int) -> None:
    n_q, n_kv, tile = grid
    recipe = LayoutRecipe(tile, keep, None)
    live = dense(keep, n_q, n_kv, width)
    check(build(recipe, n_q, n_kv, {"width": width}, ARRAYS), classes(live, tile))
    assert count(recipe, n_q, n_kv, {"width": width}, ARRAYS) == live.sum()


@settings(max_examples=examples(500))
@given(INVARIANT, grids())
def test_two_engines_on_differences(keep: Expr, grid: tuple[int, int, TileShape]) -> None:
    n_q, n_kv, tile = grid
    assert toeplitz.of_difference(keep) is not None
    expected = classes(dense(keep, n_q, n_kv), tile)
    check(build(LayoutRecipe(tile, keep, None), n_q, n_kv, {}, ARRAYS), expected)
    if expected.size:
        check(refined(keep, n_q, n_kv, tile), expected)


STRETCHES = formula(
    [E.Q, E.K, E.sub(E.Q, E.K), E.Load("sorted", (E.mod(E.Q, 29),)),
     E.minimum(E.Load("vector", (E.mod(E.Q, 37),)), E.const(30))],
    ["vector"], 1,
)  # fmt: skip


LAST_ROWS = E.le(E.minimum(E.Load("sorted", (E.mod(E.Q, 29),)), E.const(2)), E.K)
"""A formula whose last tile row has full tiles, with fewer queries than other rows."""


@settings(max_examples=examples(600))
@given(st.one_of(ANY_FORMULA, STRETCHES), grids())
@example(LAST_ROWS, (5, 12, TileShape(4, 4)))
def test_rows_in_stretches(keep: Expr, grid: tuple[int, int, TileShape]) -> None:
    """By the rows alone, by the columns alone, and tiles: whatever has that form."""
    n_q, n_kv, tile = grid
    if not n_q or not n_kv:
        return
    live = dense(keep, n_q, n_kv)
    keep = elements_of(keep, n_q, n_kv).keep
    for sizes, names in (((n_q, n_kv), "qk"), ((n_kv, n_q), "kq")):
        with suppress(row_sweep.NoStretches):
            assert row_sweep.Sweep(keep, ARRAYS, *sizes, *names).count() == live.sum()
    parts = row_sweep.tile_rows(keep, ARRAYS, n_q, n_kv, tile)
    if parts is not None:
        check(layout_of(n_q, n_kv, tile, parts), classes(live, tile))


@st.composite
def scattered(draw: st.DrawFn) -> Expr:
    """Ids of queries and keys compared in no order, or a table, combined with something else."""
    name, size = draw(st.sampled_from([("vector", 37), ("sorted", 29)]))
    sides = [E.mod(E.Load(name, (E.mod(axis, size),)), draw(st.sampled_from([2, 5, 9, 40])))
             for axis in (E.Q, E.K)]  # fmt: skip
    block = draw(st.sampled_from([2, 3, 16]))
    index = (E.mod(E.floordiv(E.Q, block), 7), E.mod(E.floordiv(E.K, block), 9))
    table = E.ne(E.Load("table", index), E.ZERO)
    if block == 16:
        index = (E.floordiv(E.Q, block), E.floordiv(E.K, block))
        table = E.ne(E.Load("table", index), E.ZERO)
    same = draw(st.sampled_from([E.eq(*sides), E.ne(*sides), table]))
    other = draw(formula(ATOMS, ["vector"], 1))
    joins = [lambda a, b: a, E.conj, E.disj, E.xor]
    return draw(st.sampled_from(joins))(same, other)


@settings(max_examples=examples(500))
@given(scattered(), grids())
def test_all_tiles_at_once(keep: Expr, grid: tuple[int, int, TileShape]) -> None:
    n_q, n_kv, tile = grid
    if not n_q or not n_kv:
        return
    live, mask = dense(keep, n_q, n_kv), elements_of(keep, n_q, n_kv)
    parts = matching.tile_rows(mask, n_q, n_kv, tile)
    if parts is not None:
        check(layout_of(n_q, n_kv, tile, parts), classes(live, tile))
    assert matching.count_pairs(mask, n_q, n_kv) in (None, live.sum())
    found = build(LayoutRecipe(tile, keep, None), n_q, n_kv, {}, ARRAYS)
    check(found, classes(live, tile))


def test_pairs_are_not_looked_at_where_stretches_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither counts nor layouts of intervals, flags and ids grow with n_q * n_kv."""
    n, draw = 6000, np.random.default_rng(0)
    ids, seen = draw.integers(0, 40, n), draw.random(n) < 0.5
    low, high = np.maximum(np.arange(n) - draw.integers(0, 900, n), 0), np.arange(n) + 1
    looked: list[int] = []
    real = Elements._at

    def counted(self: Elements, points: object, height: int, width: int) -> np.ndarray:
        looked.append(len(points[0]) * height * width)
        return real(self, points, height, width)

    monkeypatch.setattr(Elements, "_at", counted)
    assert mc.intervals("i").count(n, i=(low, high)) == (high - low).sum()
    assert (mc.causal() & mc.flags("f")).count(n, f=seen) == np.cumsum(seen).sum()
    assert mc.documents("d").count(n, d=ids) == (np.bincount(ids) ** 2).sum()
    assert looked == []
    assert mc.documents("d").layout(n, d=ids).nnz == 47 * 47
    mc.intervals("i").layout(n, i=(low, high))
    assert sum(looked) < n * n // 50


@settings(max_examples=examples(400))
@given(ANY_FORMULA, grids())
def test_fine_boxes_and_samples(keep: Expr, grid: tuple[int, int, TileShape]) -> None:
    """With boxes of 2 x 2 the elements of a tile are reached through all stages."""
    n_q, n_kv, tile = grid
    if not n_q or not n_kv:
        return
    live = dense(keep, n_q, n_kv)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "FINE", 2)
        patch.setattr(refine, "FINE", 2)
        check(refined(keep, n_q, n_kv, tile), classes(live, tile))
        assert refine.count_pairs(elements_of(keep, n_q, n_kv), n_q, n_kv) == live.sum()


@pytest.mark.parametrize("side", [1, 16, 17, 49, 65])
def test_fine_boxes_are_all_of_a_box(side: int) -> None:
    pairs = np.zeros((side, 3), np.int64)
    boxes = elements.fine(PairBoxes(*(np.array([at]) for at in (0, side - 1, 0, 2))))
    sides = boxes.q_low, boxes.q_high, boxes.k_low, boxes.k_high
    for q, q_last, k, k_last in zip(*sides, strict=True):
        assert max(q_last - q, k_last - k) < elements.FINE
        pairs[q : q_last + 1, k : k_last + 1] += 1
    assert (pairs == 1).all()


@settings(max_examples=examples(500))
@given(ANY_FORMULA, st.lists(st.tuples(*[st.integers(0, 49)] * 4), min_size=1, max_size=8))
def test_certain_answers_are_true(keep: Expr, corners: list[tuple[int, int, int, int]]) -> None:
    live = dense(keep, 50, 50)
    q, k = np.sort(np.array(corners)[:, :2]), np.sort(np.array(corners)[:, 2:])
    boxes = PairBoxes(q[:, 0], q[:, 1], k[:, 0], k[:, 1])
    may, must = Analyst(ARRAYS).verdict(elements_of(keep, 50, 50).keep, boxes)
    for box in range(len(boxes)):
        pairs = live[q[box, 0] : q[box, 1] + 1, k[box, 0] : k[box, 1] + 1]
        assert may[box] or not pairs.any()
        assert pairs.all() or not must[box]


@settings(max_examples=examples(60))
@given(st.integers(1, 90), st.data())
def test_ranges_of_a_vector(size: int, data: st.DataObject) -> None:
    array = np.random.default_rng(size).integers(-99, 99, size).astype(np.int32)
    low = np.array(data.draw(st.lists(st.integers(-3, size + 2), min_size=1, max_size=9)))
    high = low + np.arange(len(low))
    least, greatest = extremes_of(array)([(low, high)])
    for i, (a, b) in enumerate(np.clip([low, high], 0, size - 1).T):
        block = max(1, 1 << max(0, (size - 1).bit_length() - 4))
        around = array[a // block * block : (b // block + 1) * block]
        assert (least[i], greatest[i]) == (around.min(), around.max())


@pytest.mark.parametrize("name", ["table", "grid"])
def test_ranges_of_a_table(name: str) -> None:
    array = ARRAYS[name]
    corners = [
        (top, bottom, left, right)
        for top, left in np.ndindex(array.shape)
        for bottom in range(top, array.shape[0])
        for right in range(left, array.shape[1])
    ]
    top, bottom, left, right = np.array(corners).T
    least, greatest = extremes_of(array)([(top, bottom), (left, right)])
    for i, (a, b, c, d) in enumerate(corners):
        part = array[a : b + 1, c : d + 1]
        assert least[i] <= part.min() <= part.max() <= greatest[i]
        if name == "table" or part.size == 1:
            assert (least[i], greatest[i]) == (part.min(), part.max())
