"""In which order tile columns come to their tiles, tried out step by step.

Some columns of a head are under way at a time, from the last one on, and every step each adds one
of its tiles to dq. All steps take as long as each other here.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

LATER = 2
"""Steps after which others know that a column has added to a tile of dq."""
CALM = 4
"""Steps after which nobody will wait for it, even if not all steps take as long as each other."""
BETWEEN = 2
"""Steps that a block takes from one column to the next."""


def in_given_turn(
    ptr: list[int], following: np.ndarray, turn: np.ndarray, at_once: int
) -> tuple[np.ndarray, int]:
    """Order the tiles of columns for a given order of additions to each tile of dq.

    A column takes its first tile for which all earlier additions are done.

    Args:
        ptr: where the columns of a list begin in the tiles of all lists.
        following: int64 [tiles]: which tile is next to be added to the same tile of dq; -1 for
            none.
        turn: int64 [tiles]: how many are before.
        at_once: columns under way.

    Returns:
        int64 [tiles of the list], in that order, by columns; and how many steps columns wait.
    """
    after, columns = following[ptr[0] : ptr[-1]].tolist(), len(ptr) - 1
    column_of = np.repeat(np.arange(columns), np.diff(ptr)).tolist()
    ready = [[i for i in range(a, b) if not turn[i]] for a, b in pairwise(ptr)]
    left = np.diff(ptr).tolist()
    waiting = iter(range(columns - 1, -1, -1))
    under_way: list[int] = []
    taken: list[list[int]] = [[] for _ in left]
    told: deque[list[int]] = deque([[] for _ in range(LATER)], LATER)
    steps = 0
    while sum(left):
        under_way = [column for column in under_way if left[column]]
        under_way += [c for _, c in zip(range(at_once - len(under_way)), waiting, strict=False)]
        for i in told.popleft():
            heappush(ready[column_of[i - ptr[0]]], i)
        steps += sum(left[column] > 0 for column in under_way)
        added = []
        for column in under_way:
            if ready[column]:
                i = heappop(ready[column])
                taken[column].append(i)
                left[column] -= 1
                added += [after[i - ptr[0]]] * (after[i - ptr[0]] >= 0)
        told.append(added)
    return _flat(taken), steps - len(column_of)


def in_any_turn(
    ptr: list[int], sums: np.ndarray, row: np.ndarray, at_once: int
) -> tuple[np.ndarray, np.ndarray]:
    """Order the tiles of columns if columns may add to a tile of dq in any order.

    A column takes its first tile for which the last addition to dq was long ago, or the one with
    the oldest last addition.

    Args:
        ptr: where the columns of a list begin in the tiles of all lists.
        sums: int [rows], tiles of dq of every row, which its columns take in turn.
        row: int64, of the tiles of all lists.
        at_once: columns under way.

    Returns:
        int64, the tiles of the list in that order, by columns; and how many columns add to the row
        of each before.
    """
    _, _, ends = _one_head(ptr, sums, row, [0] * at_once)
    # Most heads are not the first: blocks come to them as they are through with others.
    taken, rank, _ = _one_head(ptr, sums, row, [end - min(ends) for end in ends])
    return taken, rank


class _Additions:
    """The additions to the tiles of dq of a head, so far."""

    def __init__(self, sums: np.ndarray) -> None:
        self._when = [[-CALM] * count for count in sums.tolist()]
        self._count, self._last = [0] * len(sums), [-CALM] * len(sums)

    def best(self, rows: list[int], now: int) -> int | None:
        """Return the row that a column should take next; None if none can be taken yet."""
        last = self._last
        for at, row in enumerate(rows):
            if now - last[row] >= CALM:
                return at
        at = min(range(len(rows)), key=lambda i: last[rows[i]])
        return at if now - last[rows[at]] >= LATER else None

    def add(self, row: int, now: int) -> int:
        """Add to a tile of dq; return the number of earlier additions."""
        rank, when = self._count[row], self._when[row]
        when[rank % len(when)] = now
        self._count[row] += 1
        self._last[row] = when[(rank + 1) % len(when)]
        return rank


def _one_head(
    ptr: list[int], sums: np.ndarray, row: np.ndarray, free: list[int]
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The order, and when blocks are through, which are free for columns at such times."""
    left = [(list(range(a, b)), row[a:b].tolist()) for a, b in pairwise(ptr)]
    taken: list[list[int]] = [[] for _ in left]
    ranks: list[list[int]] = [[] for _ in left]
    waiting = deque(column for column in range(len(left) - 1, -1, -1) if left[column][0])
    under_way: dict[int, int] = {}  # columns by block
    free, additions, now = list(free), _Additions(sums), 0
    while waiting or under_way:
        for block in sorted(range(len(free)), key=free.__getitem__):
            if waiting and block not in under_way and free[block] <= now:
                under_way[block], free[block] = waiting.popleft(), now + BETWEEN
        for block, column in sorted(under_way.items()):
            tiles, rows = left[column]
            at = additions.best(rows, now) if free[block] <= now else None
            if at is None:
                continue
            taken[column].append(tiles.pop(at))
            ranks[column].append(additions.add(rows.pop(at), now))
            if not tiles:
                free[block] = now + 1
                del under_way[block]
        now += 1
    return _flat(taken), _flat(ranks), free


def _flat(lists: list[list[int]]) -> np.ndarray:
    return np.array([i for part in lists for i in part], np.int64)
