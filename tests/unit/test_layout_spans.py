"""Ranges of live tiles per row and per column against the layouts they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core.bundle import LayoutRecipe, TileLoop, WorkList
from maskc.core.cost import Tally
from maskc.core.expr_text import parse_expr
from maskc.core.layout import FULL, BlockLayout
from maskc.core.problem import Direction, TileShape
from maskc.layout import backward_work, build, forward_work, range_spans, stack_spans
from maskc.layout.tiles import spans as spans_module
from maskc.layout.tiles.spans import Spans, layout_spans
from maskc.layout.work.tile_counts import (
    Adders,
    adders_of,
    adders_of_spans,
    tally_of,
    tally_of_spans,
)
from tests.support.thorough import examples
from tests.unit.test_layout_work import TILE, check_cover, layout_from


def band(first: str, last: str, full_first: str, full_last: str) -> tuple[TileLoop, ...]:
    """Live tiles of a row as up to three closed forms: before, inside and behind the full ones."""
    some = parse_expr("n_kv > 2*ti - 9")

    def loop(a: str, b: str, full: bool) -> TileLoop:
        return TileLoop(some, parse_expr(a), parse_expr(b), 1, full)

    return (
        loop(first, f"min({full_first} - 1, {last})", False),
        loop(full_first, full_last, True),
        loop(f"max({full_last} + 1, {full_first})", last, False),
    )


KEEP = "(k <= q + 4) & (k >= q - 9)"


def recipes() -> list[LayoutRecipe]:
    """A band, with and without closed forms."""
    keep = parse_expr(KEEP)
    first, last = (
        "max((2*ti - 9) // 3, 0)",
        "min((min(2*ti + 5, n_q + 3)) // 3, (n_kv + 2) // 3 - 1)",
    )
    full = "max((2*ti - 6) // 3, 0)", "min((2*ti + 2) // 3, (n_kv + 2) // 3 - 1)"
    return [LayoutRecipe(TILE, keep, None), LayoutRecipe(TILE, keep, band(first, last, *full))]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("n_q", "n_kv"), [(1, 1), (7, 9), (40, 40), (41, 5), (3, 60), (60, 31)])
def test_ranges_are_the_layouts(monkeypatch, columns, n_q, n_kv):
    """With closed forms, which make no layout, and without; not all full tiles need be known."""
    layout = build(recipes()[0], n_q, n_kv, {}, {})
    kinds = layout.to_dense().T if columns else layout.to_dense()
    for recipe in recipes():
        if recipe.loops:
            monkeypatch.setattr(spans_module, "build", None)
        spans = range_spans(recipe, n_q, n_kv, {}, {}, columns)
        assert spans.count.shape == (1, len(kinds))
        heads = np.zeros((1, 4), int)
        rule = WorkList(100, 2)
        if columns:
            made = backward_work(spans, heads, 2, 50, rule)
        else:
            made = forward_work(spans, heads, 2, 50, 50, rule)
        check_cover(made, None, [kinds] * 4, 2 if columns else 1, True)
        inner = np.flatnonzero((kinds == FULL).sum(axis=1) > 1)
        assert (spans.full_last > spans.full_first)[0, inner].all()


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 30), st.integers(1, 6), st.integers(1, 8), st.booleans())
def test_ranges_of_explicit_tiles(seed, rows, columns, by_column):
    """The longest run of full tiles counts, wherever it is."""
    rng = np.random.default_rng(seed)
    kinds = np.zeros((rows, columns), np.uint8)
    for row in kinds:
        low, high = np.sort(rng.integers(0, columns + 1, 2))
        row[low:high] = rng.integers(1, 3, high - low)
    spans = layout_spans(layout_from(kinds))
    for i, row in enumerate(kinds):
        assert spans.count[0, i] == (row > 0).sum()
        low, high = spans.full_first[0, i], spans.full_last[0, i]
        assert (row[low:high] == FULL).all()
        runs = "".join("f" if kind == FULL else "." for kind in row).split(".")
        assert high - low == max(map(len, runs))


@pytest.mark.parametrize(("n_q", "n_kv"), [(0, 0), (7, 0), (0, 7)])
def test_ranges_of_nothing(n_q, n_kv):
    for recipe in recipes():
        for columns, tiles in ((False, -(-n_q // 2)), (True, -(-n_kv // 3))):
            spans = range_spans(recipe, n_q, n_kv, {}, {}, columns)
            assert spans.count.shape == (1, tiles)
            assert not spans.count.any()


def test_gaps_are_a_defect():
    with pytest.raises(ValueError, match="not consecutive"):
        layout_spans(layout_from(np.array([[1, 0, 1]], np.uint8)))


def test_loops_that_leave_gaps_give_way_to_the_layout():
    """A stride inside a row, and a column whose rows are not consecutive, are no closed form."""
    always = parse_expr("True")
    keep = parse_expr("k <= q")
    odd = TileLoop(always, parse_expr("0"), parse_expr("0"), 2, False)
    for columns in (False, True):
        spans = range_spans(LayoutRecipe(TileShape(4, 4), keep, (odd,)), 16, 16, {}, {}, columns)
        np.testing.assert_array_equal(spans.count[0], [1, 1, 1, 1] if not columns else [4, 0, 0, 0])


def test_lists_of_several_sequences():
    keep = parse_expr("k <= q")
    parts = [range_spans(LayoutRecipe(TILE, keep, None), 8, n, {}, {}, False) for n in (6, 6)]
    assert stack_spans(parts).first.shape == (2, 4)


# ------------------------------------------------------------------ sums over tiles


TALL_TILE = TileShape(64, 128)

kinds = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda shape: st.lists(
        st.lists(st.sampled_from([0, 0, 1, 2]), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0], max_size=shape[0],
    )
)  # fmt: skip


def layout_of(dense: np.ndarray) -> BlockLayout:
    rows, columns = np.nonzero(dense)
    ptr = np.searchsorted(rows, np.arange(len(dense) + 1))
    return BlockLayout(
        TALL_TILE.q * dense.shape[0], TALL_TILE.k * dense.shape[1], TALL_TILE, ptr.astype(np.int32),
        columns.astype(np.int32), dense[rows, columns].astype(np.uint8),
    )  # fmt: skip


@given(kinds, kinds)
def test_lists(one, other):
    dense = [np.array(one), np.array(other)]
    layouts = [layout_of(each) for each in dense]
    for direction, axis in ((Direction.forward, 1), (Direction.backward, 0)):
        lines = sum(int((each > 0).any(axis).sum()) for each in dense)
        tiles, masked = (sum(int(cond(x).sum()) for x in dense)
                         for cond in (lambda x: x > 0, lambda x: x == 1))  # fmt: skip
        lone = sum(int(((each > 0).sum(axis) == 1).sum()) for each in dense)
        queries = sum(len(each) for each in dense) if axis == 0 else 0
        assert tally_of(layouts, direction) == Tally(lines, tiles, masked, lone, queries)
    counts = [(each > 0).sum(1) for each in dense]
    assert adders_of(layouts) == Adders(
        max(x.max() for x in counts), sum((x > 0).sum() for x in counts)
    )


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=5))
def test_ranges(columns):
    first, count = np.array(columns).T
    spans = Spans(first[None], count[None], first[None], (first + count)[None])
    rows = np.zeros(20, int)
    for start, length in columns:
        rows[start : start + length] += 1
    starts = [start for start, length in columns if length]
    later = [start for start in starts if start]
    steps = len(columns) if sorted(starts) == starts and sorted(set(later)) == later else 0
    assert adders_of_spans(spans) == Adders(rows.max(), (rows > 0).sum(), steps)
    lines = sum(length > 0 for _, length in columns)
    lone = sum(length == 1 for _, length in columns)
    assert tally_of_spans(spans) == Tally(lines, int(rows.sum()), 0, lone)
    assert tally_of_spans(spans, 7).queries == 7


@pytest.mark.parametrize(("n", "once"), [(64, True), (128, True), (129, False), (1000, False)])
def test_a_window_within_a_tile_of_keys(n, once):
    layout = mc.window(20).layout(n, n, block=(TALL_TILE.q, TALL_TILE.k))
    assert (adders_of([layout]).most == 1) == once
