"""The content of a run-time selection: lists of chosen blocks that read like a table of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from maskc.layout.ranges import Bounds

NONE = np.int32(np.iinfo(np.int32).max)
"""Fills a list behind its last block."""

_CELL = 64
"""Least side, in tokens, of the cells in which chosen pairs are counted."""
_MOST_CELLS = 1 << 22
"""Most cells of one table: sides double until there are no more."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Which pairs lie in chosen blocks; reads like an int32 table [n_q, n_kv] of 0 and 1.

    Memory is that of the lists; a pair is looked up by binary search.
    """

    lists: np.ndarray
    """int32 [batch or 1, heads or 1, query blocks, width], or without leading dimensions: for each
    block of queries the chosen blocks of keys, ascending, then NONE."""
    block: int
    """Keys per block."""
    q_block: int
    """Queries per block."""
    n_q: int
    n_kv: int

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the table it stands for."""
        return (*self.lists.shape[:-2], self.n_q, self.n_kv)

    @property
    def ndim(self) -> int:
        return self.lists.ndim

    @property
    def nbytes(self) -> int:
        return self.lists.nbytes

    def min(self) -> int:
        """No value is less."""
        return 0

    def max(self) -> int:
        """No value is greater."""
        return 1

    def part(self, index: int) -> Chosen:
        """One entry of the first dimension."""
        return Chosen(self.lists[index], self.block, self.q_block, self.n_q, self.n_kv)

    # -------------------------------------------------------------- pairs

    @cached_property
    def _columns(self) -> int:
        """Blocks of keys."""
        return max(1, -(-self.n_kv // self.block))

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """int64: block of queries and block of keys of everything chosen, row by row."""
        rows, places = np.nonzero(self.lists != NONE)
        return rows, self.lists[rows, places].astype(np.int64)

    @cached_property
    def _keys(self) -> np.ndarray:
        """int64: one ascending number per entry."""
        rows, columns = self._entries
        return rows * self._columns + columns

    def __getitem__(self, index: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """int32: 1 where the pair lies in a chosen block; indices broadcast."""
        q, k = (np.asarray(axis, dtype=np.int64) for axis in index)
        wanted = q // self.q_block * self._columns + k // self.block
        keys = self._keys
        if not len(keys):
            return np.zeros(wanted.shape, np.int32)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return (keys[place] == wanted).astype(np.int32)

    # -------------------------------------------------------------- boxes

    def bounds(self, index: list[Bounds]) -> Bounds:
        """Least and greatest value in boxes; exact where boxes are made of whole cells."""
        side, sums = self._cells
        (top, bottom), (left, right) = (
            (np.clip(low, 0, size - 1) // side, np.clip(high, 0, size - 1) // side + 1)
            for (low, high), size in zip(index, (self.n_q, self.n_kv), strict=True)
        )
        pairs = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        height = np.minimum(bottom * side, self.n_q) - top * side
        width = np.minimum(right * side, self.n_kv) - left * side
        return (pairs == height * width).astype(np.int64), (pairs > 0).astype(np.int64)

    @cached_property
    def _cells(self) -> tuple[int, np.ndarray]:
        """(side, int64 [rows + 1, columns + 1] chosen pairs in all cells above and to the left)."""
        side = _CELL
        while -(-self.n_q // side) * -(-self.n_kv // side) > _MOST_CELLS:
            side *= 2
        rows, columns = -(-self.n_q // side), -(-self.n_kv // side)
        counts = np.zeros(rows * columns, np.int64)
        by_q, by_k = (
            list(_overlaps(entry, step, length, side))
            for entry, step, length in zip(
                self._entries, (self.q_block, self.block), (self.n_q, self.n_kv), strict=True
            )
        )
        for (row, height), (column, width) in product(by_q, by_k):
            area = height * width
            cell = np.where(area > 0, row * columns + column, 0)
            counts += np.bincount(cell, area, minlength=len(counts)).astype(np.int64)
        sums = np.zeros((rows + 1, columns + 1), np.int64)
        sums[1:, 1:] = counts.reshape(rows, columns).cumsum(axis=0).cumsum(axis=1)
        return side, sums


def _overlaps(
    entry: np.ndarray, step: int, length: int, side: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(cell, tokens in it) of blocks of `step` tokens, for each cell that a block may reach."""
    start, stop = entry * step, np.minimum((entry + 1) * step, length)
    reach = 1 if side % step == 0 else -(-step // side) + 1
    for number in range(reach):
        cell = start // side + number
        inside = np.minimum(stop, (cell + 1) * side) - np.maximum(start, cell * side)
        yield cell, np.maximum(inside, 0)
