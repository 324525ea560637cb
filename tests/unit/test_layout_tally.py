"""Sums over the tiles of a pass, and the longest row, against arrays of all tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskc as mc
from maskc.core.cost import Tally
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction, TileShape
from maskc.layout.tiles.spans import Spans
from maskc.layout.work.tile_counts import (
    Adders,
    adders_of,
    adders_of_spans,
    tally_of,
    tally_of_spans,
)

TILE = TileShape(64, 128)

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
        TILE.q * dense.shape[0], TILE.k * dense.shape[1], TILE, ptr.astype(np.int32),
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
    layout = mc.window(20).layout(n, n, block=(TILE.q, TILE.k))
    assert (adders_of([layout]).most == 1) == once
