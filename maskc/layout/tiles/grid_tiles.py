"""Products over the axes of a grid in tiles that are boxes of it.

Two boxes have a live pair if their sides have one on every axis, and all pairs if they have all of
them on every axis: lists of tiles are products of the lists of the axes. In a partial tile a pair
is live if a bit of every axis is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from math import prod

import numpy as np

from maskc.core.boxes import Boxes, boxes_along, steps_of
from maskc.core.errors import TooManyTiles
from maskc.core.layout import FULL, MAX_TILES, PARTIAL, BlockLayout, frozen
from maskc.core.problem import TileShape
from maskc.layout.tiles.expand import numbered


@dataclass(frozen=True, eq=False)
class Sides:
    """The tiles of one axis."""

    live: np.ndarray
    """bool [boxes of queries, boxes of keys]: some pair is live."""
    full: np.ndarray
    """bool: all keys are inside the grid, and live for all queries that are."""


def sides(relation: np.ndarray, q: int, k: int) -> Sides:
    """Classify the boxes of `q` queries and `k` keys on one axis.

    Args:
        relation: bool [extent, extent]: which places of the axis see which.
    """
    extent = len(relation)
    rows, columns = -(-extent // q), -(-extent // k)

    def by_box(beyond: bool) -> np.ndarray:
        padded = np.zeros((rows * q, columns * k), bool)
        padded[extent:] = beyond
        padded[:, extent:] = False
        padded[:extent, :extent] = relation
        return padded.reshape(rows, q, columns, k)

    live: np.ndarray = np.any(by_box(False), axis=(1, 3))
    full: np.ndarray = np.all(by_box(True), axis=(1, 3))
    return Sides(live, full)


def sides_by_size(relation: np.ndarray) -> Callable[[int, int], Sides]:
    """Return a function that computes `sides` of one axis for boxes of many sizes, from the counts
    of smaller boxes."""

    @cache
    def of(q: int, k: int) -> Sides:
        axis, side = (0, q) if q > 1 else (1, k)
        if side == 1:
            return Sides(relation, relation)
        several = next(factor for factor in range(2, side + 1) if side % factor == 0)
        inner = of(q // several, k) if axis == 0 else of(q, k // several)
        some = _neighbours(inner.live, axis, several, False)
        every = _neighbours(inner.full, axis, several, axis == 0)
        live: np.ndarray = np.any(some, axis=axis + 1)
        full: np.ndarray = np.all(every, axis=axis + 1)
        return Sides(live, full)

    return of


def _neighbours(boxes: np.ndarray, axis: int, several: int, beyond: bool) -> np.ndarray:
    """Insert an axis of `several` neighbours after `axis`; `beyond` fills places after the last
    box."""
    missing = -boxes.shape[axis] % several
    widths = [(0, missing if side == axis else 0) for side in (0, 1)]
    padded = np.pad(boxes, widths, constant_values=beyond)
    rows, columns = padded.shape
    if axis == 0:
        return padded.reshape(rows // several, several, columns)
    return padded.reshape(rows, columns // several, several)


def box_layout(boxes: Boxes, relations: Sequence[np.ndarray]) -> BlockLayout:
    """List the live tiles of a product; tiles are numbered as boxes of the grid, row by row.

    Its lengths are those of all boxes, which may be more than there are tokens.

    Args:
        boxes: the sides of a box by axis.
        relations: bool [extent, extent] of each axis: which places see which.

    Raises:
        TooManyTiles: there are more than 2^30 (MC308).
    """
    along = [_lists(sides(*axis)) for axis in zip(relations, boxes.q, boxes.k, strict=True)]
    ptr, col, kind, _ = reduce(_product, along)
    tile = TileShape(prod(boxes.q), prod(boxes.k))
    grid = tuple(map(len, relations))
    n_q, n_kv = (
        prod(boxes_along(grid, box)) * size for box, size in ((boxes.q, tile.q), (boxes.k, tile.k))
    )
    rows, columns = frozen(ptr.astype(np.int32)), frozen(col.astype(np.int32))
    return BlockLayout(n_q, n_kv, tile, rows, columns, frozen(kind))


_Lists = tuple[np.ndarray, np.ndarray, np.ndarray, int]
"""row_ptr, col, kind, columns."""


def _lists(axis: Sides) -> _Lists:
    rows, col = np.nonzero(axis.live)
    ptr = np.searchsorted(rows, np.arange(len(axis.live) + 1))
    kind = np.where(axis.full[rows, col], FULL, PARTIAL).astype(np.uint8)
    return ptr, col, kind, axis.live.shape[1]


def _product(outer: _Lists, inner: _Lists) -> _Lists:
    """Rows and columns of both, those of `inner` next to each other."""
    counts = np.multiply.outer(np.diff(outer[0]), np.diff(inner[0])).ravel()
    total = int(counts.sum())
    if total > MAX_TILES:
        raise TooManyTiles(total)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    row, place = numbered(counts)
    high, low = np.divmod(row, len(inner[0]) - 1)
    left, right = np.divmod(place, np.diff(inner[0])[low])
    left += outer[0][high]
    right += inner[0][low]
    col = outer[1][left] * inner[3] + inner[1][right]
    return ptr, col, np.minimum(outer[2][left], inner[2][right]), outer[3] * inner[3]


def box_words(boxes: Boxes, relations: Sequence[np.ndarray], keys: bool) -> np.ndarray:
    """Return the words that kernels read in partial tiles, int32: bits of the columns of a tile,
    axis by axis.

    A tile has queries as rows and keys as columns, or the other way round. The innermost axis comes
    first. An axis has [boxes of columns, coordinates of rows (of whole boxes), parts of a box of
    `boxes.seen` columns, 4] words. Bit 2 i + e of word c is column 8 i + 2 c + e of the part: the
    columns of one thread of a quad. Beyond the grid bits are 0.

    Args:
        keys: whether rows are keys, as in a backward pass.
    """
    row_box, column_box = (boxes.k, boxes.q) if keys else (boxes.q, boxes.k)
    columns, words = np.arange(prod(column_box)).reshape(-1, boxes.seen // 8, 4, 2), []
    axes = zip(relations, row_box, column_box, steps_of(column_box), strict=True)
    for relation, row_side, side, step in reversed(list(axes)):
        extent = len(relation)
        rows, count = -(-extent // row_side) * row_side, -(-extent // side)
        padded = np.zeros((rows, count * side), bool)
        padded[:extent, :extent] = relation.T if keys else relation
        cells = columns // step % side
        by_box = padded.reshape(rows, count, side).transpose(1, 0, 2)
        live = (
            by_box[:, :, cells].transpose(0, 1, 2, 4, 3, 5).reshape(count, rows, len(cells), 4, -1)
        )
        bits = np.zeros((*live.shape[:-1], 32), np.uint8)
        bits[..., : live.shape[-1]] = live
        words.append(np.packbits(bits, axis=-1, bitorder="little").view("<i4").ravel())
    return np.concatenate(words).astype(np.int32)
