"""The content of a run-time selection: lists of chosen blocks that read like a block table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from maskc.layout.tiles.ranges import Bounds

NONE = np.int32(np.iinfo(np.int32).max)
"""Fills a list behind its last block."""

_TOKENS = 64
"""Least side, in tokens, of the cells in which chosen blocks are counted, if not a block's own."""
_MAX_CELLS = 1 << 22
"""The most cells of one table: sides double until there are no more."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Which blocks were chosen; reads like an int32 table [query blocks, key blocks] of 0 and 1.

    Memory is that of the lists; an entry is looked up by binary search.
    """

    lists: np.ndarray
    """int32 [batch or 1, heads or 1, query blocks, width], or without leading dimensions: for each
    block of queries the chosen blocks of keys, ascending, then NONE."""
    columns: int
    """Blocks of keys."""
    block: int
    """Keys per block."""
    q_block: int
    """Queries per block."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table it stands for."""
        return (*self.lists.shape[:-1], self.columns)

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
        return Chosen(self.lists[index], self.columns, self.block, self.q_block)

    # -------------------------------------------------------------- entries

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """int64: row and column of everything chosen, row by row."""
        rows, places = np.nonzero(self.lists != NONE)
        return rows, self.lists[rows, places].astype(np.int64)

    @cached_property
    def _keys(self) -> np.ndarray:
        """int64: one ascending number per entry."""
        rows, columns = self._entries
        keys: np.ndarray = rows * self.columns + columns
        return keys

    def __getitem__(self, index: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """int32: 1 where the block was chosen; indices broadcast."""
        row, column = (np.asarray(axis, dtype=np.int64) for axis in index)
        wanted, keys = row * self.columns + column, self._keys
        if not len(keys):
            return np.zeros(wanted.shape, np.int32)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        chosen: np.ndarray = (keys[place] == wanted).astype(np.int32)
        return chosen

    def bits(self) -> np.ndarray:
        """int32 [..., query blocks, words]: bit j of a row's word w is block 32 * w + j."""
        leading, width = self.lists.shape[:-1], self.lists.shape[-1]
        words = -(-self.columns // 32)
        rows = self.lists.reshape(-1, width)
        bits = np.zeros((len(rows), words), np.uint32)
        for column in rows.T:  # no two entries of a row are alike
            live = np.flatnonzero(column != NONE)
            block = column[live]
            bits[live, block >> 5] |= np.uint32(1) << (block & 31).astype(np.uint32)
        return bits.view(np.int32).reshape(*leading, words)

    # -------------------------------------------------------------- boxes

    def bounds(self, index: list[Bounds]) -> Bounds:
        """Least and greatest value in boxes; exact where boxes are made of whole cells."""
        (tall, wide), sums = self._cells
        rows, columns = self.shape
        (top, bottom), (left, right) = (
            (np.clip(low, 0, size - 1) // side, np.clip(high, 0, size - 1) // side + 1)
            for (low, high), size, side in zip(index, (rows, columns), (tall, wide), strict=True)
        )
        chosen = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        height = np.minimum(bottom * tall, rows) - top * tall
        width = np.minimum(right * wide, columns) - left * wide
        return (chosen == height * width).astype(np.int64), (chosen > 0).astype(np.int64)

    @cached_property
    def _cells(self) -> tuple[tuple[int, int], np.ndarray]:
        """(sides in blocks, int64 [rows + 1, columns + 1] chosen in all cells above and left)."""
        sides = max(1, _TOKENS // self.q_block), max(1, _TOKENS // self.block)
        rows, columns = (-(-n // side) for n, side in zip(self.shape, sides, strict=True))
        while rows * columns > _MAX_CELLS:
            sides = 2 * sides[0], 2 * sides[1]
            rows, columns = (-(-n // side) for n, side in zip(self.shape, sides, strict=True))
        row, column = (entries // side for entries, side in zip(self._entries, sides, strict=True))
        counts = np.bincount(row * columns + column, minlength=rows * columns)
        sums = np.zeros((rows + 1, columns + 1), np.int64)
        sums[1:, 1:] = counts.reshape(rows, columns).cumsum(axis=0).cumsum(axis=1)
        return sides, sums
