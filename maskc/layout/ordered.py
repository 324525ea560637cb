"""The work list of a deterministic backward pass: an order in which nobody waits for what is later.

Columns of a head are taken in groups of COLUMNS, the groups ascending, descending inside of each;
additions to a tile of dq happen in that order too. Whoever waits for a turn then waits for an item
before its own, which is under way. Items that have a column's tiles between them write shares of
dk and dv of their own, which are added in the order of the items.
"""

from __future__ import annotations

import numpy as np

from maskc.core.abi import WORK_FIELDS
from maskc.core.bundle import WorkList
from maskc.core.errors import TooMuchWork
from maskc.layout.spans import Spans
from maskc.layout.work import MAX_ITEMS, Work, most_tiles

COLUMNS = 8
"""Of a head that are taken together: most masks let later columns reach a tile row first, so blocks
that start together seldom wait. The kernel's COLUMNS_TOGETHER."""
HEADS = 16
"""Key/value heads whose columns are taken side by side: with COLUMNS of each they occupy a card."""


def ordered_work(spans: Spans, of_head: np.ndarray, heads_kv: int, rule: WorkList) -> Work:
    """Items of a deterministic backward pass: tile columns of key/value heads.

    An item has all query heads of its key/value head and all their tiles, `count` in all; or,
    `shared`, from `first` on `count` tiles of one head's own list, counted inside of that list.

    Args:
        spans: the live tiles of every tile column.
        of_head: int [batch, heads_q] which list a head of a sequence has.
        heads_kv: key/value heads.

    Raises:
        TooMuchWork: more items than 32 bits index.
    """
    batch, heads_q = of_head.shape
    number, columns, size = batch * heads_kv, spans.count.shape[1], heads_q // heads_kv
    lists = of_head.reshape(number, size).astype(np.int64)
    most = size * most_tiles(spans, rule)  # parts of a column in memory are as many for any size
    head, column = _order(number, columns)
    own = lists[head]
    long = (spans.count > most)[own, column[:, None]].any(axis=1)
    whole = _fields(len(head))
    whole[:, 0], whole[:, 1], whole[:, 6] = column, head * size, size
    for each in range(size):
        whole[:, 3] += spans.count[own[:, each], column]
    if not long.any():
        return _checked(Work(whole, len(whole), False))
    parts, place = _parts(spans, most, own[long], column[long], head[long] * size)
    parts[:, 7] = np.arange(1, len(parts) + 1)
    rank = np.flatnonzero(long)[place]
    items = np.concatenate([whole[~long], parts])
    items = items[np.argsort(np.concatenate([np.flatnonzero(~long), rank]), kind="stable")]
    counts = np.bincount(place, minlength=int(long.sum()))
    merges = _fields(len(counts))
    merges[:, :2] = whole[long, :2]
    merges[:, 2], merges[:, 3] = np.cumsum(counts) - counts, counts
    return _checked(Work(items, len(items), True, merges))


def turns(ptr: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """How many columns add to a tile row's dq before each one of its columns does.

    Args:
        ptr, tiles: lists by columns, as `kernel_lists` gives them.

    Returns:
        int32, of the shape of `tiles`.
    """
    columns = ptr.shape[1] - 1
    taken = np.empty(columns, np.int64)
    taken[_order(1, columns)[1]] = np.arange(columns)
    owner = np.repeat(np.arange(ptr.shape[0] * columns), np.diff(ptr).ravel())
    row = (tiles >> 1).astype(np.int64)
    line = owner // max(columns, 1) * (row.max(initial=0) + 1) + row
    order = np.lexsort((taken[owner % max(columns, 1)], line))
    line = line[order]
    begins = np.flatnonzero(np.diff(line, prepend=-1))
    found = np.empty(len(tiles), np.int32)
    found[order] = np.arange(len(line)) - np.repeat(begins, np.diff(begins, append=len(line)))
    return found


def _checked(work: Work) -> Work:
    if len(work.items) > MAX_ITEMS:
        raise TooMuchWork(len(work.items), MAX_ITEMS)
    return work


def _fields(count: int) -> np.ndarray:
    return np.zeros((count, len(WORK_FIELDS)), np.int32)


def _order(heads: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(key/value head, column) of all, in the order in which they are taken."""
    head, column = (x.ravel() for x in np.indices((heads, columns)))
    order = np.lexsort((head, -column, column // COLUMNS, head // HEADS))
    return head[order], column[order]


def _parts(
    spans: Spans, most: np.ndarray, lists: np.ndarray, column: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Items of some columns, cut to size, and which of these columns each belongs to.

    Args:
        most: int64 [lists, columns] tiles of an item.
        lists: int64 [some, heads] of the heads of each.
        column, head: int64 [some], and its first query head.
    """
    each = np.arange(lists.shape[1])
    count, size = spans.count[lists, column[:, None]], most[lists, column[:, None]]
    cuts = -(-count // size)
    source = np.repeat(np.arange(cuts.size), cuts.ravel())
    ends = np.cumsum(cuts)
    position = (np.arange(len(source)) - (ends - cuts.ravel())[source]) * size.ravel()[source]
    place = source // lists.shape[1]
    items = _fields(len(source))
    items[:, 0], items[:, 1] = column[place], (head[:, None] + each).ravel()[source]
    items[:, 2] = position
    items[:, 3] = np.minimum(count.ravel()[source] - position, size.ravel()[source])
    items[:, 6] = 1
    return items, place
