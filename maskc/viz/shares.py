"""How many pairs of each tile are live: what the shades of partial tiles say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc.core.evaluate import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL, PARTIAL, BlockLayout

MOST_PAIRS = 1 << 25
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
    keep: Expr, arrays: Mapping[str, np.ndarray], layout: BlockLayout, most: int = MOST_PAIRS
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
        found = np.count_nonzero(kept & inside, axis=(1, 2))
        live[i, j] = found * pairs[i, j] / np.count_nonzero(inside, axis=(1, 2))
    return live, step
