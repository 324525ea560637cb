"""Check, with MASKC_CHECK=1, that tiles cover a mask and that full tiles contain live pairs
only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc.core.boxes import Boxes, tokens_of
from maskc.core.errors import CheckFailed
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL, BlockLayout
from maskc.layout.tiles.spans import Spans


def check_spans(spans: Spans, layout: BlockLayout) -> None:
    """Compare ranges of tiles with a layout by the same rows or columns.

    Raises:
        CheckFailed: other tiles are live, or one is not full.
    """
    kinds = layout.to_dense().T if layout.transposed else layout.to_dense()
    for tile, row in enumerate(kinds):
        first, full_first = int(spans.first[0, tile]), int(spans.full_first[0, tile])
        last, full_last = first + int(spans.count[0, tile]), int(spans.full_last[0, tile])
        live = np.flatnonzero(row)
        if (
            not np.array_equal(live, np.arange(first, last))
            or (row[full_first:full_last] != FULL).any()
        ):
            which = "column" if layout.transposed else "row"
            raise CheckFailed(
                f"the lists give tile {which} {tile} the tiles {first} to {last - 1}, with "
                f"{full_first} to {full_last - 1} full; it has {live.tolist()}"
            )


def check_layout(
    layout: BlockLayout, keep: Expr, env: Mapping[str, object],
    boxes: tuple[Boxes, tuple[int, ...]] | None = None,
) -> None:  # fmt: skip
    """Compare a layout with the mask pair by pair, a tile row at a time.

    Args:
        boxes: where tiles are boxes of a grid of these extents.

    Raises:
        CheckFailed: a live pair outside the live tiles, or a dead one in a full tile.
    """
    if boxes is None:
        rows = np.arange(layout.n_q + -layout.n_q % layout.tile.q).reshape(-1, layout.tile.q)
        rows[rows >= layout.n_q] = -1
        keys = np.arange(layout.n_kv)
    else:
        rows, keys = (tokens_of(boxes[1], box) for box in (boxes[0].q, boxes[0].k))
        keys = keys.ravel()
    classes = np.repeat(layout.to_dense(), layout.tile.k, axis=1)[:, : len(keys)]
    classes, keys = classes[:, keys >= 0], keys[keys >= 0]
    for queries, kinds in zip(rows, classes, strict=True):
        queries = queries[queries >= 0]
        live = evaluate(keep, {**env, "q": queries[:, None], "k": keys[None, :]})
        live = np.broadcast_to(live, (len(queries), len(keys)))
        wrong = np.where(kinds == 0, live, (kinds == FULL) & ~live)
        if wrong.any():
            query, key = np.argwhere(wrong)[0]
            kind = "empty" if kinds[key] == 0 else "full"
            pair = f"query {queries[query]}, key {keys[key]}"
            raise CheckFailed(f"the layout calls the tile of {pair} {kind}, which it is not")
