"""Layouts from recipes: closed forms written by hand, refusals, packing for kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskc.core import errors
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe, TileLoop
from maskc.core.data import DataDecl, DataKind
from maskc.core.evaluator import evaluate
from maskc.core.layout import FULL, PARTIAL, BlockLayout
from maskc.core.problem import TileShape
from maskc.layout import (
    bind_arrays,
    build,
    count,
    extents,
    kernel_lists,
    sequence_arrays,
    tile_shape,
)
from maskc.layout.tiles import expand, refine
from tests.support.thorough import examples

TILE = TileShape(8, 8)
TI = E.Sym("ti")
COLUMNS = E.floordiv(E.add(E.N_KV, E.const(7)), 8)
GAP = E.sub(E.Q, E.K)
CAUSAL = E.ge(GAP, E.ZERO)


def loop(
    first: E.Expr, last: E.Expr, full: bool, guard: E.Expr = E.ALWAYS, step: int = 1
) -> TileLoop:
    return TileLoop(guard, first, last, step, full)


def back(tiles: int) -> E.Expr:
    """The tile so many before the diagonal, not before the first."""
    return E.maximum(E.ZERO, E.sub(TI, E.const(tiles)))


DIAGONAL = loop(TI, TI, False)
BLOCK = E.scale(3, E.floordiv(TI, 3))
HAND_WRITTEN = {
    "causal": (CAUSAL, (loop(E.ZERO, E.sub(TI, E.const(1)), True), DIAGONAL)),
    "window of 23": (
        E.conj(CAUSAL, E.le(GAP, E.const(23))),
        (loop(back(2), E.sub(TI, E.const(1)), True), DIAGONAL,
         loop(E.sub(TI, E.const(3)), E.sub(TI, E.const(3)), False, E.ge(TI, E.const(3)))),
    ),
    "sinks and window": (
        E.conj(CAUSAL, E.disj(E.le(GAP, E.const(15)), E.lt(E.K, E.const(4)))),
        (loop(back(1), E.sub(TI, E.const(1)), True), DIAGONAL,
         loop(E.sub(TI, E.const(2)), E.sub(TI, E.const(2)), False, E.ge(TI, E.const(2))),
         loop(E.ZERO, E.ZERO, False, E.ge(TI, E.const(3)))),
    ),
    "diagonals that take turns": (
        E.disj(E.eq(E.mod(GAP, 16), E.ZERO), E.eq(E.mod(GAP, 32), E.const(8))),
        (loop(E.mod(TI, 2), E.sub(COLUMNS, E.const(1)), False, step=2),
         loop(E.mod(E.add(TI, E.const(3)), 4), E.sub(COLUMNS, E.const(1)), False, step=4)),
    ),
    "blocks of 24": (
        E.eq(E.floordiv(E.Q, 24), E.floordiv(E.K, 24)),
        (loop(BLOCK, E.minimum(E.add(BLOCK, E.const(2)), E.sub(COLUMNS, E.const(1))), True),),
    ),
    "a global query": (
        E.disj(E.eq(E.Q, E.ZERO), E.eq(E.floordiv(E.Q, 8), E.floordiv(E.K, 8))),
        (loop(E.const(1), E.sub(COLUMNS, E.const(1)), False, E.eq(TI, E.ZERO)),
         loop(TI, TI, True)),
    ),
}  # fmt: skip


def dense_classes(keep: E.Expr, n: int, arrays: dict[str, np.ndarray] | None = None) -> np.ndarray:
    env = {**(arrays or {}), "q": np.arange(n)[:, None], "k": np.arange(n), "n_q": n, "n_kv": n}
    live = np.broadcast_to(evaluate(keep, env), (n, n))
    tiles = live.reshape(n // 8, 8, n // 8, 8).swapaxes(1, 2)
    return tiles.any(axis=(2, 3)).astype(np.uint8) + tiles.all(axis=(2, 3))


@pytest.mark.parametrize("name", HAND_WRITTEN)
@pytest.mark.parametrize("n", [8, 16, 40, 48, 120])
def test_loops_agree_with_the_numbers(name: str, n: int) -> None:
    keep, loops = HAND_WRITTEN[name]
    expected = dense_classes(keep, n)
    forms = build(LayoutRecipe(TILE, keep, loops), n, n, {}, {})
    assert forms.to_dense().tolist() == expected.tolist()
    numbers = build(LayoutRecipe(TILE, keep, None), n, n, {}, {})
    for field in ("row_ptr", "col", "kind"):
        assert getattr(forms, field).tolist() == getattr(numbers, field).tolist()


@settings(max_examples=examples(120))
@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 30), st.data())
def test_interleaving_loops(step: int, rows: int, columns: int, data: st.DataObject) -> None:
    """Loops over different residues take turns in a row; entries still ascend."""
    expected = np.zeros((rows, columns), dtype=np.uint8)
    loops = []
    for residue in range(step):
        full = data.draw(st.booleans())
        stride, shift = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 9))
        guard = E.ne(E.mod(TI, stride + 1), E.const(0))
        begin = E.floordiv(E.add(TI, E.const(shift)), stride)
        first = E.add(E.scale(step, E.mod(begin, 4)), E.const(residue))
        last = E.minimum(E.add(first, E.mod(TI, 7 * step)), E.const(columns - 1))
        loops.append(loop(first, last, full, guard, step))
        for row in range(rows):
            env = {"ti": row}
            if evaluate(guard, env):
                tiles = slice(evaluate(first, env), evaluate(last, env) + 1, step)
                expected[row, tiles] = FULL if full else PARTIAL
    recipe = LayoutRecipe(TILE, E.ALWAYS, tuple(loops))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expand, "_CHUNK", 16)
        layout = build(recipe, rows * 8, columns * 8 - 3, {}, {})
    assert layout.to_dense().tolist() == expected.tolist()
    assert all(
        (np.diff(layout.col[start:stop]) > 0).all()
        for start, stop in zip(layout.row_ptr, layout.row_ptr[1:], strict=False)
    )


def test_loops_hold_for_their_parameters_and_lengths_only() -> None:
    width = E.Param("width", 8)
    keep = E.conj(CAUSAL, E.lt(GAP, width))
    wrong = (loop(E.ZERO, E.ZERO, False),)
    recipe = LayoutRecipe(TILE, keep, wrong, fixed=(("width", 8),))
    assert build(recipe, 24, 24, {}, {}).col.tolist() == [0, 0, 0]
    assert build(recipe, 24, 24, {"width": 8}, {}).col.tolist() == [0, 0, 0]
    assert build(recipe, 24, 24, {"width": 1}, {}).col.tolist() == [0, 1, 2]
    square = LayoutRecipe(TILE, keep, wrong, square=True)
    assert build(square, 16, 16, {"width": 1}, {}).col.tolist() == [0, 0]
    assert build(square, 16, 24, {"width": 1}, {}).col.tolist() == [0, 1]


def test_loops_outside_the_grid_are_a_defect() -> None:
    for first, last in ((TI, TI), (E.const(-1), E.ZERO)):
        recipe = LayoutRecipe(TILE, E.ALWAYS, (loop(first, last, True),))
        with pytest.raises(ValueError, match="tile loop 0 leaves the 3 x 2 grid"):
            build(recipe, 24, 16, {}, {})


@pytest.mark.parametrize(("n_q", "n_kv", "rows"), [(0, 0, 0), (0, 9, 0), (9, 0, 2)])
def test_no_queries_or_no_keys(n_q: int, n_kv: int, rows: int) -> None:
    layout = build(LayoutRecipe(TILE, E.ALWAYS, None), n_q, n_kv, {}, {})
    assert layout.row_ptr.tolist() == [0] * (rows + 1)
    assert layout.transpose().row_ptr.tolist() == [0] * (-(-n_kv // 8) + 1)
    assert layout.nnz == 0
    assert count(LayoutRecipe(TILE, E.ALWAYS, None), n_q, n_kv, {}, {}) == 0


# ------------------------------------------------------------------ exactness of the arithmetic


def test_large_values_do_not_wrap() -> None:
    twice = E.scale(2, E.Load("a", (E.Q,)))
    keep = E.ge(E.absolute(twice), E.ZERO)  # 2^31, which 32 bits read as -2^31
    arrays = {"a": np.array([2**30, -(2**30)] * 8, dtype=np.int32)}
    recipe = LayoutRecipe(TILE, keep, None)
    assert build(recipe, 16, 16, {}, arrays).to_dense().tolist() == [[FULL, FULL]] * 2
    assert count(recipe, 16, 16, {}, arrays) == 256


@pytest.mark.parametrize("inside", [True, False])
def test_a_pocket_between_the_samples(inside: bool) -> None:
    """Tiles that look uniform at every sample, with a few other pairs in the middle."""
    pocket = E.conj(*(
        bound
        for x in (E.Q, E.K)
        for bound in (E.ge(E.floordiv(x, 16), E.const(1)), E.le(E.floordiv(x, 16), E.const(1)))
    ))  # fmt: skip
    keep = pocket if inside else E.negate(pocket)
    layout = build(LayoutRecipe(TileShape(1024, 1024), keep, None), 2048, 1024, {}, {})
    assert layout.to_dense().tolist() == [[PARTIAL], [0 if inside else FULL]]
    live = count(LayoutRecipe(TILE, keep, None), 2048, 1024, {}, {})
    assert live == (256 if inside else 2048 * 1024 - 256)


def test_long_sequences_without_a_table() -> None:
    """Beyond the longest table over k - q, bounds decide."""
    keep = E.conj(CAUSAL, E.le(GAP, E.const(1000)))
    n = 1 << 26
    layout = build(LayoutRecipe(TileShape(1 << 14, 1 << 14), keep, None), n, n, {}, {})
    assert layout.nnz == 2 * 4096 - 1
    assert (layout.kind == PARTIAL).all()


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("block", [(0, 8), (8,), (8, 65537), (8.0, 8), (True, 8), 128, "88", None])
def test_blocks_are_two_integers(block: object) -> None:
    with pytest.raises(errors.BadBlock) as caught:
        tile_shape(block)
    assert str(caught.value) == (
        f"MC307 block  block must be two integers in 1..65536, found {block!r}\n"
        "    hint: pass for example block=(128, 128)"
    )


def test_lengths_and_tiles_are_checked_by_build() -> None:
    with pytest.raises(errors.BadLength, match=r"n_kv must be an integer in 0..1073741824, found"):
        build(LayoutRecipe(TILE, E.ALWAYS, None), 8, 2**30 + 1, {}, {})
    with pytest.raises(errors.BadBlock):
        build(LayoutRecipe(TileShape(0, 8), E.ALWAYS, None), 8, 8, {}, {})


def test_too_many_tiles_is_noticed_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    one = TileShape(1, 1)
    everything = (loop(E.ZERO, E.sub(E.N_KV, E.const(1)), True),)
    for loops in (None, everything):
        with pytest.raises(errors.TooManyTiles) as caught:
            build(LayoutRecipe(one, E.ALWAYS, loops), 1 << 16, 1 << 16, {}, {})
        assert str(caught.value) == (
            "MC308  the layout has 4294967296 live tiles, more than 2^30\n"
            "    hint: use larger tiles, or shorter lengths"
        )
    monkeypatch.setattr(refine, "MAX_TILES", 50)
    with pytest.raises(errors.TooManyTiles, match="the layout has at least 64 live tiles"):
        build(LayoutRecipe(one, E.ge(E.add(E.Q, E.K), E.ZERO), None), 8, 8, {}, {})


def test_reads_beyond_an_array_are_refused() -> None:
    array = np.arange(8, dtype=np.int32)

    def read(index: E.Expr, n: int = 8, **arrays: np.ndarray) -> int:
        keep = E.gt(E.Load("a", (index,)), E.ZERO)
        return count(LayoutRecipe(TILE, keep, None), n, n, {}, arrays or {"a": array})

    halves = E.sub(E.Q, E.scale(2, E.floordiv(E.Q, 2)))
    assert read(halves, 64) == 32 * 64  # bounds alone would refuse it
    assert read(E.minimum(E.K, E.const(7)), 64) == 63 * 64
    with pytest.raises(errors.DataRange) as caught:
        read(E.K, 9)
    assert str(caught.value) == (
        "MC305 a  'a': dimension 0 is read at 0..8, it has 8 entries\n"
        "    hint: give a longer array, or clamp the index with min() and max()"
    )
    for index in (GAP, E.floordiv(E.sub(E.Q, E.const(1)), 8), E.add(E.Q, E.K)):
        with pytest.raises(errors.DataRange, match="dimension 0 is read at"):
            read(index)
    with pytest.raises(errors.DataMissing, match="the mask needs 'a'"):
        read(E.K, b=array)
    with pytest.raises(errors.DataShape, match="expected 1 dimensions: those of one sequence"):
        read(E.K, a=array[None])


# ------------------------------------------------------------------ transposition and packing


@pytest.mark.parametrize("width", [40, 400])
def test_transposing_long_lists(width: int) -> None:
    """Both ways to sort, and more columns than 16 bits count."""
    ahead = E.sub(E.K, E.scale(230, E.Q))
    keep = E.conj(E.ge(ahead, E.ZERO), E.lt(ahead, E.const(width)))
    layout = build(LayoutRecipe(TileShape(1, 1), keep, None), 300, 70000, {}, {})
    other = layout.transpose()
    rows = np.repeat(np.arange(len(layout.row_ptr) - 1), np.diff(layout.row_ptr))
    order = np.lexsort((rows, layout.col))
    assert (other.col == rows[order]).all()
    assert (other.kind == layout.kind[order]).all()
    assert (np.diff(other.row_ptr) == np.bincount(layout.col, minlength=other.shape[1])).all()
    assert (other.transpose().col == layout.col).all()


def test_layouts_are_packed_for_kernels() -> None:
    recipes = [LayoutRecipe(TILE, keep, None) for keep in (CAUSAL, E.NEVER, E.ALWAYS)]
    layouts = [build(recipe, 16, 16, {}, {}) for recipe in recipes]
    ptr, entries = kernel_lists(layouts)
    assert ptr.dtype == entries.dtype == np.int32
    assert ptr.tolist() == [[0, 1, 3], [3, 3, 3], [3, 5, 7]]
    assert entries.tolist() == [0, 1, 2, 1, 3, 1, 3]
    assert layouts[0].row_ptr.tolist() == [0, 1, 3]
    assert kernel_lists([layouts[0].transpose()])[1].tolist() == [0, 3, 2]


def test_packing_too_many_tiles() -> None:
    none = np.zeros(1, np.int32)
    huge = np.broadcast_to(none, 2**29 + 1)
    layout = BlockLayout(0, 0, TILE, none, huge, huge)
    with pytest.raises(errors.TooManyTiles, match="1073741826 live tiles"):
        kernel_lists([layout, layout])


DOC = DataDecl("doc", DataKind.documents, ("doc.q", "doc.k"))
TABLE = DataDecl("table", DataKind.table, ("table",), block=8)
SAME_DOC = E.eq(E.Load("doc.q", (E.Q,)), E.Load("doc.k", (E.K,)))
OF_DATA = E.conj(SAME_DOC, E.ne(E.Load("table", (E.floordiv(E.Q, 8), E.floordiv(E.K, 8))), E.ZERO))


def test_one_layout_per_sequence_and_head() -> None:
    recipe = LayoutRecipe(TILE, OF_DATA, None)
    docs = np.array([[0] * 16, [0] * 8 + [1] * 8])
    tables = np.array([[[1, 1], [1, 1]], [[0, 1], [1, 1]], [[1, 0], [0, 0]]])
    arrays = bind_arrays((DOC, TABLE), {"doc": docs, "table": tables}, 16, 16)
    assert extents(recipe, arrays) == (2, 3)
    for head in range(3):
        for sequence in range(2):
            chosen = sequence_arrays(recipe, arrays, sequence, head)
            layout = build(recipe, 16, 16, {}, chosen)
            same = np.kron(np.eye(2, dtype=int), np.ones((1, 1), int)) if sequence else 1
            assert (layout.to_dense() == 2 * tables[head] * same).all()
            assert chosen["doc.q"].tolist() == docs[sequence].tolist()
            assert chosen["table"].tolist() == tables[head].tolist()


def test_shared_arrays_give_one_layout() -> None:
    recipe = LayoutRecipe(TILE, OF_DATA, None)
    table = np.ones((2, 1, 2, 2), bool)
    arrays = bind_arrays((DOC, TABLE), {"doc": [[0] * 16], "table": table}, 16, 16)
    assert extents(recipe, arrays) == (2, 1)
    assert sequence_arrays(recipe, arrays, 1, 5)["table"].tolist() == [[1, 1], [1, 1]]
    del arrays["table"]
    only_doc = LayoutRecipe(TILE, SAME_DOC, None)
    assert extents(only_doc, arrays) == (1, 1)
