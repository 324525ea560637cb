"""The data of a picture: plain values, drawn by terminal.py and figure.py.

A raster holds one class per tile (or per element when the window is small) with the number of live
pairs. It is at most about 2048 x 2048. `fit` shrinks it exactly. A cell that covers several tiles
is full only if all of them are full, and empty only if all are empty. Otherwise it carries the
fraction of live pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core.dtypes import DType
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL, PARTIAL, BlockLayout
from maskc.core.problem import Problem, TileShape
from maskc.core.svg import sums
from maskc.dsl.mask import Mask
from maskc.layout import check_lengths, tile_shape
from maskc.layout.tiles.numbers import Numbers
from maskc.viz.made_scores import with_scores
from maskc.viz.view import View, ViewSpan, views

MAX_DRAWN_TILES = 2048
"""The most tiles in a row or a column of a raster."""
MAX_ELEMENTS = 256
"""Windows of at most this many queries and keys show their elements."""

_TILES_WANTED = 64
_SMALLEST, _LARGEST = 16, 128
_LARGEST_TILE = 1 << 16
"""The largest tile that a layout may have."""


@dataclass(frozen=True, eq=False)
class PairCells:
    """A raster shrunk to the drawn size."""

    classes: np.ndarray
    """uint8 [rows, columns]: 0 empty, 1 partial, 2 full."""
    share: np.ndarray
    """float64 [rows, columns]: share of the cell's pairs that are live."""
    covers: tuple[int, int]
    """Tiles (or elements) per cell, down and right; the last cells may have fewer."""


@dataclass(frozen=True, eq=False)
class Raster:
    """Classes of the tiles, or of the elements, of a window."""

    classes: np.ndarray
    """uint8 [rows, columns]: 0 empty, 1 partial, 2 full; elements are 0 or 2."""
    unit: tuple[int, int]
    """Queries and keys per entry; (1, 1) for elements."""
    live: np.ndarray
    """float64 [rows, columns]: live pairs of each entry."""
    pairs: np.ndarray
    """int64 [rows, columns]: all pairs of each entry; the last ones have fewer."""
    step: int = 1
    """1 if `live` is exact; otherwise partial tiles are estimated from one query in this many."""

    @staticmethod
    def of_elements(kept: np.ndarray) -> Raster:
        """The raster of bool [queries, keys]."""
        classes = kept.astype(np.uint8) * np.uint8(FULL)
        return Raster(classes, (1, 1), kept.astype(np.float64), np.ones(kept.shape, np.int64))

    @property
    def elements(self) -> bool:
        """Whether entries are single pairs."""
        return self.unit == (1, 1)

    def fit(self, rows: int, columns: int) -> PairCells:
        """The raster reduced to at most rows x columns cells."""
        down, right = (
            max(1, -(-size // most))
            for size, most in zip(self.classes.shape, (rows, columns), strict=True)
        )
        some = sums(self.classes > 0, down, right) > 0
        whole = sums(self.classes != FULL, down, right) == 0
        classes = np.where(whole, 2, some).astype(np.uint8)
        share = sums(self.live, down, right) / sums(self.pairs, down, right)
        return PairCells(classes, share, (down, right))


@dataclass(frozen=True, eq=False)
class Panel:
    """One set of pairs: that of all heads, or of some."""

    heads: tuple[int, ...]
    """() where all heads share it."""
    raster: Raster
    numbers: Numbers


@dataclass(frozen=True, eq=False)
class Picture:
    """Everything that a drawing shows."""

    name: str
    formula: str
    """The mask as it is written, with a note where a hull or one sequence of several is shown."""
    n_q: int
    n_kv: int
    span: ViewSpan
    """The window that is drawn."""
    head_dim: int
    head_dim_v: int
    dtype: DType
    panels: tuple[Panel, ...]
    kernel: str = ""
    """The target whose kernel has the tiles; '' where they are of no kernel."""
    alternatives: tuple[str, ...] = ()
    """Alternatives to that kernel that a call may choose."""

    @property
    def whole(self) -> bool:
        """Whether the window is all of the mask."""
        return self.span.shape == (self.n_q, self.n_kv)


@dataclass(frozen=True, slots=True)
class KernelTiles:
    """The tiles of a kernel that was planned for a mask."""

    target: str
    tile: TileShape
    alternatives: tuple[str, ...] = ()
    """Alternatives that a call may choose, in a few words each."""


def suitable_tile(n_q: int, n_kv: int) -> TileShape:
    """Tiles that show the structure: 16 to 128 a side, larger only beyond 2048 tiles a side."""

    def side(length: int) -> int:
        wanted = 1 << max(0, (length - 1) // _TILES_WANTED).bit_length()
        return _coarse(min(max(wanted, _SMALLEST), _LARGEST), length)

    return TileShape(side(n_q), side(n_kv))


def _coarse(side: int, length: int) -> int:
    """The side, doubled until a raster of the length stays small, or no larger tile exists."""
    while side * MAX_DRAWN_TILES < length and 2 * side <= _LARGEST_TILE:
        side *= 2
    return side


def picture(
    mask: Mask,
    n_q: int,
    n_kv: int | None = None,
    *,
    name: str = "mask",
    span: tuple[int, int, int, int] | None = None,
    tile: tuple[int, int] | None = None,
    kernel: KernelTiles | None = None,
    n_heads: int | None = None,
    batch: int = 0,
    head_dim: int = 128,
    head_dim_v: int | None = None,
    dtype: object = "bfloat16",
    data: Mapping[str, object] | None = None,
    seed: int = 0,
) -> Picture:
    """The picture of a mask at given lengths.

    Args:
        mask: any mask; run-time selections choose by made-up scores, unless `data` holds `scores`,
            and beyond 2^24 pairs all that they may choose is drawn.
        n_q, n_kv: queries and keys; as many keys as queries when None.
        name: a title.
        span: (q0, q1, k0, k1), the part to draw, ends not included; everything when None.
        tile: (queries, keys) of the tiles to draw and count; suitable ones when None. Given,
            tiles are drawn even where elements would fit. Doubled while there are more than 2048.
        kernel: tiles that take the place of suitable ones.
        n_heads: needed where heads differ and the mask does not say how many there are.
        batch: the sequence that is drawn, where they differ; the picture names it.
        head_dim, head_dim_v, dtype: for the costs.
        data: the arrays and parameters the mask names.
        seed: of made-up scores.

    Raises:
        MaskcError: a range outside the lengths, tiles that are too small, or as Mask.layout.
    """
    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    window = ViewSpan(*(span or (0, n_q, 0, n_kv))).check(n_q, n_kv)
    dims = head_dim, head_dim_v or head_dim
    kind = DType.parse(dtype)
    if tile is None and kernel is not None:
        counted = kernel.tile
    else:
        counted, kernel = tile_shape(tile) if tile else suitable_tile(*window.shape), None
    counted = TileShape(*map(_coarse, (counted.q, counted.k), window.shape))
    read, notes = with_scores(mask, n_q, n_kv, data or {}, seed)
    pictures = views(mask, n_q, n_kv, window, n_heads=n_heads, batch=batch, data=read)
    panels = tuple(
        _panel(heads, view, counted, tile is None, Problem(*dims, kind))
        for heads, view in pictures.by_heads.items()
    )
    if pictures.sequence is not None:
        notes = (*notes, f"sequence {pictures.sequence} of {pictures.sequences}")
    formula = f"{mask} ({', '.join(notes)})" if notes else str(mask)
    whose = (kernel.target, kernel.alternatives) if kernel else ("", ())
    return Picture(name, formula, n_q, n_kv, window, *dims, kind, panels, *whose)


def numbers_of(
    mask: Mask,
    n_q: int,
    n_kv: int,
    *,
    tile: tuple[int, int],
    n_heads: int | None,
    problem: Problem,
    data: Mapping[str, object],
) -> dict[tuple[int, ...], Numbers]:
    """Return the numbers that accompany pictures: the heads and numbers of each distinct set.

    Args:
        tile: (queries, keys), for example of a kernel's plan; never enlarged.
        problem: for the costs; the others as for `picture`.

    Raises:
        MaskcError: as Mask.layout.
    """
    n_q, n_kv = check_lengths(n_q, n_kv)
    shape, whole = tile_shape(tile), ViewSpan(0, n_q, 0, n_kv)
    pictures = views(mask, n_q, n_kv, whole, n_heads=n_heads, data=data)
    return {
        heads: _numbers(view, view.layout(shape), problem)
        for heads, view in pictures.by_heads.items()
    }


def _panel(
    heads: tuple[int, ...], view: View, tile: TileShape, elements: bool, problem: Problem
) -> Panel:
    layout = view.layout(tile)
    if elements and max(view.n_q, view.n_kv) <= MAX_ELEMENTS:
        raster = Raster.of_elements(view.elements())
    else:
        live, step = live_pairs(view.keep, view.arrays, layout)
        raster = Raster(layout.to_dense(), layout.block, live, tile_pairs(layout), step)
    return Panel(heads, raster, _numbers(view, layout, problem))


def _numbers(view: View, layout: BlockLayout, problem: Problem) -> Numbers:
    dims = problem.head_dim + problem.head_dim_v
    return Numbers.of(layout, view.count(), dims, problem.row_bytes)


# ------------------------------------------------------------------ pairs of tiles


MAX_PAIRS = 1 << 25
"""Pairs that are looked at: about a second. Beyond, queries at even distances stand for all."""
_AT_ONCE = 1 << 20
"""Pairs in memory at once."""


def tile_pairs(layout: BlockLayout) -> np.ndarray:
    """int64 [tile rows, tile columns]: queries times keys of each tile; the last have fewer."""
    heights, widths = (
        np.minimum(side, length - np.arange(0, length, side))
        for side, length in zip(layout.block, (layout.n_q, layout.n_kv), strict=True)
    )
    pairs: np.ndarray = heights[:, None] * widths
    return pairs


def live_pairs(
    keep: Expr, arrays: Mapping[str, np.ndarray], layout: BlockLayout, most: int = MAX_PAIRS
) -> tuple[np.ndarray, int]:
    """The live pairs of every tile.

    Args:
        keep: over q, k and arrays.
        arrays: one sequence's and one head's.
        layout: the mask's tiles, exact.
        most: pairs of partial tiles to look at.

    Returns:
        float64 [tile rows, tile columns] and a step: with 1 the numbers are exact; with more they
        follow from one query in so many, evenly spread over a partial tile.
    """
    rows, columns = layout.shape
    row = np.repeat(np.arange(rows), np.diff(layout.row_ptr))
    pairs, live = tile_pairs(layout), np.zeros((rows, columns))
    full, partial = (np.flatnonzero(layout.kind == kind) for kind in (FULL, PARTIAL))
    live[row[full], layout.col[full]] = pairs[row[full], layout.col[full]]
    height, width = layout.block
    step = min(max(1, -(-len(partial) * height * width // most)), height)
    looked = -(-height // step)
    at_once = max(1, _AT_ONCE // (looked * width))
    for start in range(0, len(partial), at_once):
        some = partial[start : start + at_once]
        i, j = row[some], layout.col[some].astype(np.int64)
        here = np.minimum(height, layout.n_q - i * height)[:, None]  # queries of each tile
        places = (
            np.arange(looked) if step == 1 else (2 * np.arange(looked) + 1) * here // (2 * looked)
        )
        q, k = i[:, None] * height + places, j[:, None] * width + np.arange(width)
        inside = (q < layout.n_q)[:, :, None] & (k < layout.n_kv)[:, None, :]
        env = {
            **arrays,
            "q": np.minimum(q, layout.n_q - 1)[:, :, None],
            "k": np.minimum(k, layout.n_kv - 1)[:, None, :],
        }
        kept = np.broadcast_to(evaluate(keep, env), inside.shape)
        counts = np.count_nonzero(kept & inside, axis=(1, 2))
        live[i, j] = counts * pairs[i, j] / np.count_nonzero(inside, axis=(1, 2))
    return live, step
