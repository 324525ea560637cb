"""Tile counts: the total of a pass, and the most of a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from maskc.core.cost import Items, Tally
from maskc.core.layout import FULL, BlockLayout
from maskc.core.problem import Direction
from maskc.layout.tiles.spans import Spans


def tally_of(layouts: Iterable[BlockLayout], direction: Direction) -> Tally:
    """Return the counts of lists by tile rows, for passes by rows and by columns."""
    rows = tiles = full = lone = queries = 0
    for layout in layouts:
        if direction is Direction.backward:
            counts = np.bincount(layout.col, minlength=1)
            queries += layout.shape[0]
        else:
            counts = np.diff(layout.row_ptr)
        rows += int(np.count_nonzero(counts))
        lone += int(np.count_nonzero(counts == 1))
        tiles += layout.nnz
        full += int(np.count_nonzero(layout.kind == FULL))
    return Tally(rows, tiles, tiles - full, lone, queries)


def tally_of_spans(spans: Spans, queries: int = 0) -> Tally:
    """Return the counts of closed-form ranges, whose rows are already those of the pass.

    Args:
        spans: of all lists.
        queries: tile rows of a list, for a backward pass.
    """
    full = int((spans.full_last - spans.full_first).clip(0).sum())
    rows, tiles = int(np.count_nonzero(spans.count)), int(spans.count.sum())
    lone, lists = int(np.count_nonzero(spans.count == 1)), len(spans.count)
    return Tally(rows, tiles, tiles - full, lone, lists * queries)


@dataclass(frozen=True, slots=True)
class Adders:
    """Which tile columns of a backward pass add to the same tile row of dq."""

    most: int
    """The most tiles that add to one tile row, of any list."""
    rows: int = 0
    """Tile rows that some column adds to, of all lists."""
    in_steps: int = 0
    """The number of tile columns if each begins at a later row than the previous one, or at the
    first row; 0 if not, or unknown."""

    def items(self, columns: Items, heads: float) -> Items:
        """Return the items of a launch by tile rows, which are never cut.

        Args:
            columns: the items of the launch by tile columns.
            heads: of all sequences, for each list.
        """
        return Items(round(heads * self.rows), columns.tiles, self.most)


def adders_of(layouts: Iterable[BlockLayout]) -> Adders:
    """The adders of lists by tile rows."""
    counts = [np.diff(layout.row_ptr) for layout in layouts]
    most = max((int(count.max(initial=0)) for count in counts), default=0)
    return Adders(most, sum(int(np.count_nonzero(count)) for count in counts))


def adders_of_spans(spans: Spans) -> Adders:
    """The adders of closed-form ranges by tile columns."""
    most, rows, steps = 0, 0, spans.count.shape[1]
    for first, count in zip(spans.first, spans.count, strict=True):
        first, end = first[count > 0], (first + count)[count > 0]
        change = np.zeros(1 + end.max(initial=0), np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, end, -1)
        added = np.cumsum(change)
        most, rows = max(most, int(added.max(initial=0))), rows + int(np.count_nonzero(added))
        later = np.diff(first, prepend=-1) > 0
        steps = steps if np.all(later | (np.maximum.accumulate(first) == 0)) else 0
    return Adders(most, rows, steps)
