"""Masks that depend on k - q only: a table over the difference classifies all tiles at once.

A tile contains all differences between two bounds, so a prefix sum over the table shows whether
none, some or all of them are live. Tile rows repeat one list of tiles, shifted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.layout.tiles.expand import Palette, RowLists, Runs, expand

MAX_TABLE = 1 << 26
"""Longest table of differences worth making."""

DIFFERENCE = E.Sym("k - q")
"""A name that no parameter and no array can have."""


def of_difference(keep: Expr) -> Expr | None:
    """The mask as a formula over d = k - q, or None if it depends on more than that."""
    shifted = E.substitute(keep, {E.K: E.add(DIFFERENCE, E.Q)})
    return None if "q" in E.symbols(shifted) else shifted


def live_differences(formula: Expr, env: Mapping[str, object], n_q: int, n_kv: int) -> np.ndarray:
    """bool [n_q + n_kv - 1]: whether the difference d = entry - (n_q - 1) is live."""
    differences = np.arange(1 - n_q, n_kv)
    live = evaluate(formula, {**env, DIFFERENCE.name: differences})
    return np.broadcast_to(live, differences.shape)


def count_differences(live: np.ndarray, n_q: int, n_kv: int) -> int:
    """Count live pairs.

    Args:
        live: bool [n_q + n_kv - 1], by k - q, as `live_differences` makes it.
    """
    d = np.flatnonzero(live) - (n_q - 1)
    pairs = np.minimum(n_q, n_kv - d) - np.maximum(0, -d)  # queries q with 0 <= q + d < n_kv
    return int(pairs.sum(dtype=np.int64))


def difference_rows(live: np.ndarray, n_q: int, n_kv: int, tile: TileShape) -> RowLists:
    """Make all tile rows from bool [n_q + n_kv - 1] by k - q, as `live_differences` makes it.

    Tiles of the last row and the last column may be cut off, so they are classified one by one. The
    others come from palettes, since the class is constant along a diagonal of tiles. With q queries
    and k keys per tile, row i starts at query i*q = m*k + r, and rows of equal r see the same tiles
    up to a shift by m.
    """
    rows, columns = -(-n_q // tile.q), -(-n_kv // tile.k)
    live_before = np.zeros(len(live) + 1, dtype=np.int64)
    np.cumsum(live, out=live_before[1:])

    def kinds(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """uint8: 0 no difference in low..high is live, 1 some, 2 all."""
        low = np.clip(low + n_q - 1, 0, len(live) - 1)
        high = np.clip(high + n_q - 1, 0, len(live) - 1)
        live_keys = live_before[high + 1] - live_before[low]
        kind: np.ndarray = (live_keys > 0).astype(np.uint8) + (live_keys == high - low + 1)
        return kind

    begin = np.arange(rows, dtype=np.int64) * tile.q
    end = np.minimum(begin + tile.q, n_q) - 1
    keys = np.arange(columns, dtype=np.int64) * tile.k
    shift, phase = np.divmod(begin, tile.k)
    phases, of_row = np.unique(phase, return_inverse=True)
    reach = int(shift[-1])
    diagonals = np.arange(-reach, columns - 1)
    start = diagonals * tile.k - phases[:, None]  # key 0 of the tile less query 0
    inner = kinds(start - (tile.q - 1), start + tile.k - 1)
    edge = kinds(keys[-1] - end, n_kv - 1 - begin)
    bottom = kinds(keys - end[-1], np.minimum(keys + tile.k, n_kv) - 1 - begin[-1])

    inner_before = np.concatenate([[0], np.cumsum(inner.ravel() > 0)])
    base = of_row * len(diagonals) + reach - shift
    first, stop = inner_before[base], inner_before[base + columns - 1]
    shared = int(inner_before[-1])
    first[-1], stop[-1] = shared + rows, shared + rows + np.count_nonzero(bottom)
    edge[-1] = 0

    # The palette: the diagonals of every phase, then the last column's tile of every row, then
    # the last row. A row takes a stretch of the first, and its own tile of the second.
    palette = Palette(
        col=np.concatenate([
            np.broadcast_to(diagonals, inner.shape)[inner > 0],
            columns - 1 - shift,
            np.flatnonzero(bottom) - reach,
        ]).astype(np.int32),
        kind=np.concatenate([inner[inner > 0], edge, bottom[bottom > 0]]),
        shift=shift.astype(np.int32),
    )  # fmt: skip
    firsts = np.stack([first, shared + np.arange(rows)], axis=1)
    counts = np.stack([stop - first, edge > 0], axis=1)
    used = counts > 0
    runs = Runs(
        row=np.nonzero(used)[0].astype(np.int32),
        first=firsts[used].astype(np.int32),
        count=counts[used].astype(np.int32),
        palette=palette,
    )
    return expand(runs, 0, rows, columns)
