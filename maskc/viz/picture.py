"""The data of a picture: plain values, drawn by terminal.py and figure.py.

A raster holds one class per tile (or per element when the window is small) and is never larger
than about 2048 x 2048. `fit` shrinks it exactly: a cell that covers several tiles is full only
if all of them are full, empty only if all are empty, and else carries the share that is live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core.dtypes import DType
from maskc.core.layout import FULL, BlockLayout
from maskc.core.problem import Problem, TileShape
from maskc.driver import selects
from maskc.dsl.mask import Mask
from maskc.layout import check_lengths, tile_shape
from maskc.viz.view import Span, View, Views, views

MOST_TILES = 2048
"""The most tiles in a row or a column of a raster."""
MOST_ELEMENTS = 256
"""Windows of at most this many queries and keys show their elements."""

_TILES_WANTED = 64
_SMALLEST, _LARGEST = 16, 128
_LARGEST_TILE = 1 << 16
"""The largest tile that a layout may have."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A raster shrunk to what is drawn."""

    classes: np.ndarray
    """uint8 [rows, columns]: 0 empty, 1 partial, 2 full."""
    share: np.ndarray
    """float64 [rows, columns]: share of the cell's tiles (or elements) that are live."""
    covers: tuple[int, int]
    """Tiles (or elements) per cell, down and right; the last cells may have fewer."""


@dataclass(frozen=True, eq=False)
class Raster:
    """Classes of the tiles, or of the elements, of a window."""

    classes: np.ndarray
    """uint8 [rows, columns]: 0 empty, 1 partial, 2 full; elements are 0 or 2."""
    unit: tuple[int, int]
    """Queries and keys per entry; (1, 1) for elements."""

    @property
    def elements(self) -> bool:
        """Whether entries are single pairs."""
        return self.unit == (1, 1)

    def fit(self, rows: int, columns: int) -> Cells:
        """The raster reduced to at most rows x columns cells."""
        down, right = (
            max(1, -(-size // most))
            for size, most in zip(self.classes.shape, (rows, columns), strict=True)
        )
        live = _sums(self.classes > 0, down, right)
        full = _sums(self.classes == FULL, down, right)
        heights, widths = (
            np.minimum(step, size - np.arange(0, size, step))
            for size, step in zip(self.classes.shape, (down, right), strict=True)
        )
        size = heights[:, None] * widths
        classes = np.where(full == size, 2, np.minimum(live, 1)).astype(np.uint8)
        return Cells(classes, live / size, (down, right))


def _sums(flags: np.ndarray, down: int, right: int) -> np.ndarray:
    """Sums over blocks of down x right entries; the last ones may be smaller."""
    starts = [np.arange(0, n, step) for n, step in zip(flags.shape, (down, right), strict=True)]
    if not flags.size:
        return np.zeros([len(start) for start in starts], dtype=np.int64)
    by_row = np.add.reduceat(flags, starts[0], axis=0, dtype=np.int64)
    return np.add.reduceat(by_row, starts[1], axis=1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers next to a panel, all exact, for one head and the window."""

    live: int
    """Live pairs."""
    pairs: int
    """All pairs."""
    tile: tuple[int, int]
    """Queries and keys of the tiles counted below."""
    full: int
    partial: int
    empty: int
    executed: int
    """Pairs inside live tiles: what runs."""
    flops: int
    """Forward: 2 * (head_dim + head_dim_v) * live."""
    bytes: int
    """Forward: q and out once, k and v of every live tile."""

    @property
    def live_share(self) -> float:
        """Live pairs over all pairs; 0 where there are none."""
        return self.live / max(1, self.pairs)

    @property
    def waste(self) -> float:
        """Executed pairs over live pairs; 1 is perfect."""
        return self.executed / max(1, self.live)


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
    span: Span
    """The window that is drawn."""
    head_dim: int
    head_dim_v: int
    dtype: DType
    panels: tuple[Panel, ...]

    @property
    def whole(self) -> bool:
        """Whether the window is all of the mask."""
        return self.span.shape == (self.n_q, self.n_kv)


def suitable_tile(n_q: int, n_kv: int) -> TileShape:
    """Tiles that show the structure: 16 to 128 a side, larger only beyond 2048 tiles a side."""
    return TileShape(_suitable(n_q), _suitable(n_kv))


def _suitable(length: int) -> int:
    wanted = 1 << max(0, (length - 1) // _TILES_WANTED).bit_length()
    side = min(max(wanted, _SMALLEST), _LARGEST)
    return _coarse(side, length)


def _coarse(side: int, length: int) -> int:
    """The side, doubled until a raster of the length stays small, or no larger tile exists."""
    while side * MOST_TILES < length and 2 * side <= _LARGEST_TILE:
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
    n_heads: int | None = None,
    batch: int = 0,
    head_dim: int = 128,
    head_dim_v: int | None = None,
    dtype: object = "bfloat16",
    data: Mapping[str, object] | None = None,
) -> Picture:
    """The picture of a mask at given lengths.

    Args:
        mask: any mask; of run-time selections the hull, unless `data` holds `scores`.
        n_q, n_kv: queries and keys; as many keys as queries when None.
        name: a title.
        span: (q0, q1, k0, k1), the part to draw, ends not included; everything when None.
        tile: (queries, keys) of the tiles to draw and count; suitable ones when None. Given,
            tiles are drawn even where elements would fit. Doubled while there are more than 2048.
        n_heads: needed where heads differ and the mask does not say how many there are.
        batch: the sequence that is drawn, where they differ; the picture names it.
        head_dim, head_dim_v, dtype: for the costs.
        data: the arrays and parameters the mask names.

    Raises:
        MaskcError: a range outside the lengths, tiles that are too small, or as Mask.layout.
    """
    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    window = Span(*(span or (0, n_q, 0, n_kv))).check(n_q, n_kv)
    dims = head_dim, head_dim_v or head_dim
    kind = DType.parse(dtype)
    counted = tile_shape(tile) if tile else suitable_tile(*window.shape)
    counted = _coarse_enough(counted, window)
    found = views(mask, n_q, n_kv, window, n_heads=n_heads, batch=batch, data=data or {})
    panels = tuple(
        _panel(heads, view, counted, tile is None, sum(dims) * kind.itemsize, sum(dims))
        for heads, view in found.by_heads.items()
    )
    return Picture(name, _formula(mask, data or {}, found), n_q, n_kv, window, *dims, kind, panels)


def _formula(mask: Mask, data: Mapping[str, object], found: Views) -> str:
    """The mask as it is written, whether all that selections may choose is shown, and of which
    sequence."""
    notes = ["all that topk may choose"] if selects(mask) and "scores" not in data else []
    notes += [f"sequence {found.sequence} of {found.sequences}"] * (found.sequence is not None)
    return f"{mask} ({', '.join(notes)})" if notes else str(mask)


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
    """What stands beside pictures, without one: for each distinct set its heads and its numbers.

    Args:
        tile: (queries, keys), of a kernel's plan for instance; never enlarged.
        problem: for the costs; the others as for `picture`.

    Raises:
        MaskcError: as Mask.layout.
    """
    n_q, n_kv = check_lengths(n_q, n_kv)
    shape, whole = tile_shape(tile), Span(0, n_q, 0, n_kv)
    dims = problem.head_dim + problem.head_dim_v
    found = views(mask, n_q, n_kv, whole, n_heads=n_heads, data=data)
    return {
        heads: _numbers(view, view.layout(shape), dims * problem.dtype.itemsize, dims)
        for heads, view in found.by_heads.items()
    }


def _coarse_enough(tile: TileShape, span: Span) -> TileShape:
    n_q, n_kv = span.shape
    return TileShape(_coarse(tile.q, n_q), _coarse(tile.k, n_kv))


def _panel(
    heads: tuple[int, ...], view: View, tile: TileShape, elements: bool, width: int, dims: int
) -> Panel:
    layout = view.layout(tile)
    if elements and max(view.n_q, view.n_kv) <= MOST_ELEMENTS:
        raster = Raster(view.elements().astype(np.uint8) * np.uint8(FULL), (1, 1))
    else:
        raster = Raster(layout.to_dense(), (tile.q, tile.k))
    return Panel(heads, raster, _numbers(view, layout, width, dims))


def _numbers(view: View, layout: BlockLayout, width: int, dims: int) -> Numbers:
    """`width` bytes and `dims` elements of a row of q and v together."""
    from maskc.plan.explain import executed_pairs

    live = view.count()
    full = int(np.count_nonzero(layout.kind == FULL))
    rows, columns = layout.shape
    return Numbers(
        live=live,
        pairs=view.n_q * view.n_kv,
        tile=layout.block,
        full=full,
        partial=layout.nnz - full,
        empty=rows * columns - layout.nnz,
        executed=executed_pairs(layout),
        flops=2 * dims * live,
        bytes=width * (view.n_q + layout.tile.k * layout.nnz),
    )
