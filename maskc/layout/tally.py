"""How many tiles a pass has in all, and whether any row has several."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from maskc.core.cost import Tally
from maskc.core.layout import FULL, BlockLayout
from maskc.core.problem import Direction
from maskc.layout.spans import Spans


def tally_of(layouts: Iterable[BlockLayout], direction: Direction) -> Tally:
    """Of lists by tile rows, whichever way the pass goes through them."""
    rows = tiles = full = 0
    for layout in layouts:
        if direction is Direction.backward:
            rows += len(np.unique(layout.col))
        else:
            rows += int(np.count_nonzero(np.diff(layout.row_ptr)))
        tiles += layout.nnz
        full += int(np.count_nonzero(layout.kind == FULL))
    return Tally(rows, tiles, tiles - full)


def tally_of_spans(spans: Spans) -> Tally:
    """Of closed-form ranges, whose rows are already those of the pass."""
    full = int((spans.full_last - spans.full_first).clip(0).sum())
    tiles = int(spans.count.sum())
    return Tally(int(np.count_nonzero(spans.count)), tiles, tiles - full)


def at_most_once(layouts: Iterable[BlockLayout]) -> bool:
    """Whether no tile row of lists by rows has several tiles."""
    return all(np.diff(layout.row_ptr).max(initial=0) <= 1 for layout in layouts)


def apart(spans: Spans) -> bool:
    """The same of closed-form ranges by tile columns."""
    for first, count in zip(spans.first, spans.count, strict=True):
        order = np.argsort(first[count > 0], kind="stable")
        starts, ends = (x[count > 0][order] for x in (first, first + count))
        if np.any(ends[:-1] > starts[1:]):
            return False
    return True
