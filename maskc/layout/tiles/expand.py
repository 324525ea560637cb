"""Runs of tiles written out as the arrays of a block-sparse row list."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskc.core.errors import TooManyTiles
from maskc.core.layout import FULL, MAX_TILES, BlockLayout, frozen
from maskc.core.problem import TileShape

_CHUNK = 1 << 18
"""Entries written at once: temporaries stay in the cache."""


@dataclass(frozen=True, eq=False)
class Palette:
    """Tiles that many rows share, up to a shift: a run then counts entries of this table."""

    col: np.ndarray
    """int32: tile column less the shift."""
    kind: np.ndarray
    """uint8: 1 partial, 2 full."""
    shift: np.ndarray
    """int32 [tile rows]."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The tiles first, first + step, ... (`count` of them) of a row; runs ascend by row, `first`.

    With a palette, `first` is an index into it, and its entries hold column and kind.
    """

    row: np.ndarray
    """int32 [runs]: tile row."""
    first: np.ndarray
    """int32 [runs]."""
    count: np.ndarray
    """int32 [runs], every one >= 1."""
    step: np.ndarray | int = 1
    """int32 [runs], or one step for all."""
    kind: np.ndarray | int = 0
    """uint8 [runs], or one kind for all."""
    palette: Palette | None = None


@dataclass(frozen=True, eq=False)
class RowLists:
    """Consecutive tile rows: entries per row, and the entries."""

    counts: np.ndarray
    """int [rows]."""
    col: np.ndarray
    """int32 [entries]."""
    kind: np.ndarray
    """uint8 [entries]."""


def layout_of(n_q: int, n_kv: int, tile: TileShape, parts: list[RowLists]) -> BlockLayout:
    """Concatenate the rows of `parts` to a layout. The list is emptied on the way to limit
    memory."""
    rows = -(-n_q // tile.q)
    ptr = np.zeros(rows + 1, dtype=np.int32)
    if parts:
        np.cumsum(np.concatenate([part.counts for part in parts]), out=ptr[1:])
    if len(parts) == 1:
        col, kind = parts[0].col, parts[0].kind
    else:
        col, kind = np.empty(ptr[-1], np.int32), np.empty(ptr[-1], np.uint8)
        stop = int(ptr[-1])
        while parts:
            part = parts.pop()
            first = stop - len(part.col)
            col[first:stop], kind[first:stop], stop = part.col, part.kind, first
    return BlockLayout(n_q, n_kv, tile, frozen(ptr), frozen(col), frozen(kind))


def numbered(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (owner, index within the owner) of all entries if owner i has counts[i] entries: int64
    [sum of counts] each."""
    ends = np.cumsum(counts)
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (ends - counts)[owner]


def expand(runs: Runs, top: int, rows: int, columns: int) -> RowLists:
    """Write the runs of tile rows top .. top + rows - 1 out, ascending in every row.

    Runs of one row may interleave; they never share a tile.

    Raises:
        TooManyTiles: more than 2^30 entries.
    """
    ends = np.cumsum(runs.count, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total > MAX_TILES:
        raise TooManyTiles(total)
    starts = np.searchsorted(runs.row, np.arange(top, top + rows + 1))
    row_ptr = np.concatenate([[0], ends])[starts]
    out = RowLists(np.diff(row_ptr), np.empty(total, np.int32), np.empty(total, np.uint8))
    mixed = _interleaving(runs)
    row = 0
    while row < rows:
        stop = int(np.searchsorted(row_ptr, row_ptr[row] + _CHUNK, side="right")) - 1
        stop = min(max(stop, row + 1), rows)
        chosen, place = slice(starts[row], starts[stop]), slice(row_ptr[row], row_ptr[stop])
        _write(runs, chosen, out.col[place], out.kind[place])
        if mixed[chosen].any():
            _sort_rows(out.counts[row:stop], columns, out.col[place], out.kind[place])
        row = stop
    return out


def _interleaving(runs: Runs) -> np.ndarray:
    """bool [runs]: the next run of the same row starts before this one ends."""
    mixed = np.zeros(len(runs.row), dtype=bool)
    if runs.palette is None and len(mixed):
        last = runs.first + (runs.count - 1) * runs.step
        mixed[:-1] = (runs.row[1:] == runs.row[:-1]) & (runs.first[1:] < last[:-1])
    return mixed


def _write(runs: Runs, chosen: slice, col: np.ndarray, kind: np.ndarray) -> None:
    """Write some runs to their place."""
    if not len(col):
        return
    first, count = runs.first[chosen], runs.count[chosen]
    step = runs.step if isinstance(runs.step, int) else runs.step[chosen]
    col[...] = step if isinstance(step, int) else np.repeat(step, count)
    col[0] = first[0]
    col[np.cumsum(count)[:-1]] = first[1:] - (first + (count - 1) * step)[:-1]
    np.cumsum(col, dtype=np.int32, out=col)  # steps inside a run, jumps between runs
    if runs.palette is not None:
        np.take(runs.palette.kind, col, out=kind)
        col[...] = runs.palette.col[col]
        col += np.repeat(runs.palette.shift[runs.row[chosen]], count)
    elif isinstance(runs.kind, int):
        kind[...] = runs.kind
    else:
        kind[...] = np.repeat(runs.kind[chosen], count)


def _sort_rows(counts: np.ndarray, columns: int, col: np.ndarray, kind: np.ndarray) -> None:
    """Sort every row by column, kinds alongside."""
    owner = np.repeat(np.arange(len(counts)), counts)
    keys = (owner * columns + col) * 2 + (kind == FULL)
    keys.sort()
    kind[...] = (keys & 1) + 1
    col[...] = (keys >> 1) - owner * columns
