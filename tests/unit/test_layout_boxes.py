"""Tiles that are boxes of a grid: their classes, lists and bits against brute force."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskc.core.boxes import MAX_ALONG, Boxes, boxes_along, steps_of, sub_box, tokens_of
from maskc.core.layout import FULL, PARTIAL
from maskc.layout.tiles.grid_tiles import box_layout, box_words, sides
from tests.support.host_bits import places
from tests.support.thorough import examples

BOXES = {
    1: [((8, 8), (4, 16)), ((2, 32), (64, 1)), ((1, 64), (8, 8))],
    2: [((4, 4, 4), (1, 8, 8)), ((2, 8, 4), (8, 2, 4))],
}
"""By trailing axes: boxes of 64 queries and of 64 keys."""


@st.composite
def products(draw):
    """A grid, boxes of it, and a relation for each axis."""
    trailing = draw(st.sampled_from([1, 2]))
    grid = tuple(draw(st.integers(1, 9 if trailing == 2 else 21)) for _ in range(trailing + 1))
    q, k = draw(st.sampled_from(BOXES[trailing]))
    seed, density = draw(st.integers(0, 1 << 16)), draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))
    rng = np.random.default_rng(seed)
    relations = [rng.random((extent, extent)) < density for extent in grid]
    return Boxes(grid[1:], q, k, draw(st.sampled_from([32, 64]))), grid, relations


def dense(grid, relations) -> np.ndarray:
    at = np.unravel_index(np.arange(prod(grid)), grid)
    live = np.ones((prod(grid),) * 2, dtype=bool)
    for own, relation in zip(at, relations, strict=True):
        live &= relation[own[:, None], own[None, :]]
    return live


def by_place(boxes: Boxes, grid, live: np.ndarray, beyond_q: bool) -> np.ndarray:
    """bool [tile rows, 64, tile columns, 64]; keys beyond the grid are dead."""
    rows, columns = places(grid, boxes.q), places(grid, boxes.k)
    found = live[np.maximum(rows, 0)][:, np.maximum(columns, 0)]
    found[rows < 0] = beyond_q
    found[:, columns < 0] = False
    return found.reshape(-1, prod(boxes.q), len(columns) // prod(boxes.k), prod(boxes.k))


@settings(max_examples=examples(60))
@given(products())
def test_lists_are_the_classes_of_all_pairs_of_boxes(case):
    boxes, grid, relations = case
    layout = box_layout(boxes, relations)
    live = dense(grid, relations)
    some = by_place(boxes, grid, live, False).any(axis=(1, 3))
    every = by_place(boxes, grid, live, True).all(axis=(1, 3))
    want = np.where(some, np.where(every, FULL, PARTIAL), 0)
    np.testing.assert_array_equal(layout.to_dense(), want)
    assert layout.shape == boxes.counts(prod(grid)) == want.shape
    for row in range(len(want)):
        own = layout.col[layout.row_ptr[row] : layout.row_ptr[row + 1]]
        assert (np.diff(own) > 0).all()
    np.testing.assert_array_equal(layout.transpose().to_dense(), want)


@settings(max_examples=examples(40))
@given(products(), st.booleans())
def test_words_of_all_axes_together_are_the_pairs(case, keys):
    """Read as kernels read them: axis by axis, the innermost first."""
    boxes, grid, relations = case
    words = box_words(boxes, relations, keys)
    assert words.dtype == np.int32
    row, column = (boxes.k, boxes.q) if keys else (boxes.q, boxes.k)
    parts, found, start = prod(column) // boxes.seen, [], 0
    for axis in reversed(range(len(grid))):
        count, rows = -(-grid[axis] // column[axis]), -(-grid[axis] // row[axis]) * row[axis]
        size = count * rows * parts * 4
        found.insert(0, words[start : start + size].reshape(count, rows, parts, 4).view(np.uint32))
        start += size
    assert start == len(words)
    live = dense(grid, relations)
    live = by_place(boxes, grid, live, False)
    live = live.transpose(2, 3, 0, 1) if keys else live
    row_counts, column_counts = boxes_along(grid, row), boxes_along(grid, column)
    for tile in np.ndindex(live.shape[0], live.shape[2]):
        own = np.unravel_index(tile[0], row_counts), np.unravel_index(tile[1], column_counts)
        for r in range(0, prod(row), 7):
            inner = np.unravel_index(r, row)
            bits = np.full((parts, 4), ~np.uint32(0))
            for axis, table in enumerate(found):
                bits &= table[own[1][axis], own[0][axis] * row[axis] + inner[axis]]
            columns = np.arange(boxes.seen)
            bit = columns // 8 * 2 + columns % 2
            got = bits[:, columns % 8 // 2] >> bit.astype(np.uint32) & 1
            np.testing.assert_array_equal(got.ravel(), live[tile[0], r, tile[1]])


def test_sides_of_a_ragged_axis():
    """Queries beyond the end keep nothing from being full, keys do."""
    found = sides(np.ones((5, 5), bool), 4, 4)
    np.testing.assert_array_equal(found.live, np.ones((2, 2)))
    np.testing.assert_array_equal(found.full, [[True, False], [True, False]])
    only = np.zeros((5, 5), bool)
    only[4, 0] = True
    np.testing.assert_array_equal(sides(only, 4, 4).live, [[False, False], [True, False]])


@pytest.mark.parametrize(("box", "tokens", "want"), [
    ((16, 8), 64, (8, 8)), ((8, 16), 64, (4, 16)), ((2, 8, 8), 64, (1, 8, 8)),
    ((12, 16), 64, (4, 16)), ((4, 16), 64, (4, 16)), ((128, 1), 64, (64, 1)),
    ((8, 24), 64, None), ((3, 64), 64, (1, 64)), ((1, 128), 64, (1, 64)), ((6, 16), 96, (6, 16)),
])  # fmt: skip
def test_the_first_tokens_of_a_box(box, tokens, want):
    assert sub_box(box, tokens) == want
    if want:
        first = np.array([np.ravel_multi_index(at, box) for at in np.ndindex(*want)])
        np.testing.assert_array_equal(first, np.arange(tokens))
    assert steps_of(box)[-1] == 1


@pytest.mark.parametrize(("grid", "box"), [
    ((5, 20), (4, 8)), ((1, 7), (2, 4)), ((3, 9, 10), (2, 4, 4)), ((4, 8, 8), (4, 8, 8)),
])  # fmt: skip
def test_tokens_of_boxes(grid, box):
    np.testing.assert_array_equal(tokens_of(grid, box).ravel(), places(grid, box))


def test_which_lengths_are_a_grid():
    boxes = Boxes((6, 10), (2, 8, 8), (2, 8, 8), 128)
    assert boxes.hold(60, 60)
    assert boxes.hold(60 * MAX_ALONG, 60 * MAX_ALONG)
    for n_q, n_kv in ((0, 0), (61, 61), (60, 120), (60 * (MAX_ALONG + 1),) * 2):
        assert not boxes.hold(n_q, n_kv)
    assert boxes.grid(180) == (3, 6, 10)
    assert boxes.counts(180) == (2 * 1 * 2, 2 * 1 * 2)
