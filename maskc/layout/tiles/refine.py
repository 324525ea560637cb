"""Tiles of any mask: boxes of tiles are divided into smaller ones until bounds decide them.

Work comes in stretches of tile rows, so that memory stays bounded and results are in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from maskc.core.errors import TooManyTiles
from maskc.core.layout import FULL, MAX_TILES, PARTIAL
from maskc.core.problem import TileShape
from maskc.layout.tiles.bounds import PairBoxes
from maskc.layout.tiles.elements import FINE, Elements
from maskc.layout.tiles.expand import RowLists, Runs, expand

_CUT = 4
"""An undecided box is cut into 4 x 4."""

_COARSE = 1 << 14
"""The most boxes to start from."""

_OPEN = 1 << 19
"""Boxes looked at together, unless one row of boxes has more."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """Full tiles: columns first .. stop - 1 of a row (of boxes, while boxes are large)."""

    row: np.ndarray
    first: np.ndarray
    stop: np.ndarray

    def __add__(self, other: Stretches) -> Stretches:
        return Stretches(
            np.concatenate([self.row, other.row]),
            np.concatenate([self.first, other.first]),
            np.concatenate([self.stop, other.stop]),
        )

    def cut(self, top: int, bottom: int, rows: int) -> Stretches:
        """The boxes of rows top .. bottom - 1, in `rows` rows a quarter as high."""
        mine = (self.row >= top) & (self.row < bottom)
        row = (self.row[mine, None] * _CUT + np.arange(_CUT)).ravel()
        first, stop = (np.repeat(ends[mine], _CUT) for ends in (self.first, self.stop))
        real = row < rows
        return Stretches(row[real], first[real], stop[real])


@dataclass(frozen=True, eq=False)
class TileLeaves:
    """Consecutive tile rows, classified as far as bounds go."""

    top: int
    bottom: int
    """Tile rows top .. bottom - 1."""
    full: Stretches
    row: np.ndarray
    col: np.ndarray
    """int64: tiles that bounds leave undecided."""


class Refinement:
    """One mask on one grid of tiles."""

    def __init__(self, mask: Elements, n_q: int, n_kv: int, tile: TileShape) -> None:
        self.mask = mask
        self.lengths = n_q, n_kv
        self.tile = tile

    def grid(self, size: int) -> tuple[int, int]:
        """Rows and columns of boxes of size x size tiles."""
        n_q, n_kv = self.lengths
        return -(-n_q // (self.tile.q * size)), -(-n_kv // (self.tile.k * size))

    def boxes(self, row: np.ndarray, col: np.ndarray, size: int = 1) -> PairBoxes:
        """The pairs, inside the lengths, of boxes of size x size tiles.

        Args:
            row, col: int64 [boxes]: the first tile row and tile column of each.
        """
        (n_q, n_kv), height, width = self.lengths, self.tile.q * size, self.tile.k * size
        q_low, k_low = row * height, col * width
        q_high, k_high = np.minimum(q_low + height, n_q), np.minimum(k_low + width, n_kv)
        return PairBoxes(q_low, q_high - 1, k_low, k_high - 1)

    def _coarse(self) -> int:
        """Tiles along a side of the boxes to start from."""
        size, (rows, columns) = 1, self.grid(1)
        while rows * columns > _COARSE:
            size *= _CUT
            rows, columns = self.grid(size)
        return size

    def scattered(self, parts: int) -> bool:
        """Whether bounds leave more than one in `parts` of the coarse boxes undecided."""
        size = self._coarse()
        row, col = (np.arange(count) for count in self.grid(size))
        may, must = self.mask.analyst.verdict(
            self.mask.keep, self.boxes(row[:, None], col[None, :], size)
        )
        return parts * int(np.count_nonzero(may & ~must)) > may.size

    def leaves(self) -> Iterator[TileLeaves]:
        """All tile rows, top to bottom."""
        size = self._coarse()
        rows, columns = self.grid(size)
        row, col = (axis.ravel() for axis in np.indices((rows, columns)))
        none = np.zeros(0, dtype=np.int64)
        yield from self._descend(size, 0, rows, row, col, Stretches(none, none, none))

    def _descend(
        self, size: int, top: int, bottom: int, row: np.ndarray, col: np.ndarray, full: Stretches
    ) -> Iterator[TileLeaves]:
        """Classify boxes of rows top .. bottom - 1, and divide undecided ones further."""
        may, must = self.mask.analyst.verdict(self.mask.keep, self.boxes(row, col, size))
        stop = np.minimum((col[must] + 1) * size, self.grid(1)[1])
        full += Stretches(row[must], col[must] * size, stop)
        undecided = may & ~must
        row, col = row[undecided], col[undecided]
        if size == 1:
            yield TileLeaves(top, bottom, full, row, col)
            return
        smaller = size // _CUT
        rows, columns = self.grid(smaller)
        for first, last in _portions(row, top, bottom):
            mine = (row >= first) & (row < last)
            child_row, child_col = _children(row[mine], col[mine], rows, columns)
            yield from self._descend(
                smaller, first * _CUT, min(last * _CUT, rows), child_row, child_col,
                full.cut(first, last, rows),
            )  # fmt: skip


def _portions(row: np.ndarray, top: int, bottom: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rows, each with few enough boxes to cut all of them at once."""
    before = np.concatenate([[0], np.cumsum(np.bincount(row - top, minlength=bottom - top))])
    first = 0
    while first < bottom - top:
        last = int(np.searchsorted(before, before[first] + _OPEN // _CUT**2, side="right")) - 1
        last = max(last, first + 1)
        yield top + first, top + last
        first = last


def _children(
    row: np.ndarray, col: np.ndarray, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    steps = np.arange(_CUT)
    shape = (len(row), _CUT, _CUT)
    child_row = np.broadcast_to((row[:, None] * _CUT + steps)[:, :, None], shape).ravel()
    child_col = np.broadcast_to((col[:, None] * _CUT + steps)[:, None, :], shape).ravel()
    real = (child_row < rows) & (child_col < columns)
    return child_row[real], child_col[real]


class UndecidedTiles(Exception):
    """Bounds leave more tiles undecided than their pairs are worth being looked at."""


def refined_rows(
    mask: Elements, n_q: int, n_kv: int, tile: TileShape, exact: bool = True,
    most: int | None = None,
) -> list[RowLists]:  # fmt: skip
    """All tile rows of any mask; if not `exact`, tiles that bounds leave undecided are partial.

    Raises:
        TooManyTiles: more than 2^30 live tiles.
        Undecided: there are more than `most` tiles whose pairs must be looked at.
    """
    looked_at = 0
    refinement = Refinement(mask, n_q, n_kv, tile)
    columns = refinement.grid(1)[1]
    parts: list[RowLists] = []
    total = 0
    for leaves in refinement.leaves():
        looked_at += len(leaves.row)
        if most is not None and looked_at > most:
            raise UndecidedTiles(str(looked_at))
        if exact:
            kinds = mask.kinds(refinement.boxes(leaves.row, leaves.col))
        else:
            kinds = np.full(len(leaves.row), PARTIAL, np.uint8)
        runs = _runs(leaves, kinds, columns)
        part = expand(runs, leaves.top, leaves.bottom - leaves.top, columns)
        total += len(part.col)
        if total > MAX_TILES:
            raise TooManyTiles(f"at least {total}")
        parts.append(part)
    return parts


def _runs(leaves: TileLeaves, kinds: np.ndarray, columns: int) -> Runs:
    live, full = kinds > 0, leaves.full
    row = np.concatenate([full.row, leaves.row[live]])
    first = np.concatenate([full.first, leaves.col[live]])
    count = np.concatenate([full.stop - full.first, np.ones(np.count_nonzero(live), np.int64)])
    kind = np.concatenate([np.full(len(full.row), FULL, np.uint8), kinds[live]])
    order = np.argsort(row * columns + first)
    by_row = (axis[order].astype(np.int32) for axis in (row, first, count))
    rows, firsts, counts = by_row
    return Runs(rows, firsts, counts, kind=kind[order])


def count_pairs(mask: Elements, n_q: int, n_kv: int) -> int:
    """Live pairs of any mask, exact; in bounded memory."""
    refinement = Refinement(mask, n_q, n_kv, TileShape(FINE, FINE))
    total = 0
    for leaves in refinement.leaves():
        full = refinement.boxes(leaves.full.row, leaves.full.first)
        height = full.q_high - full.q_low + 1
        width = np.minimum(leaves.full.stop * FINE, n_kv) - full.k_low
        total += int((height * width).sum()) + mask.count(refinement.boxes(leaves.row, leaves.col))
    return total
