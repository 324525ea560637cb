"""Which source a pass has whose mask is known when it runs: chosen blocks of keys, documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from maskc.core.bundle import Bundle, LayoutRecipe, SourceUnit
from maskc.core.cost import Source, Tally, cheapest
from maskc.core.expr import ALWAYS, Expr
from maskc.core.problem import TileShape
from maskc.core.selection import Selection
from maskc.core.sizes import Sizes
from maskc.layout import tile_codes
from maskc.layout.tiles.build import build
from maskc.layout.tiles.document_tiles import document_lists
from maskc.layout.topk.tile_codes import _FULL

_MOST_TILES = 1 << 20
"""The most larger tiles that are counted; longer sequences have the first source."""


def foreseen(
    bundle: Bundle, units: Sequence[SourceUnit], params: Mapping[str, int], sizes: Sizes
) -> SourceUnit:
    """The source that is predicted to take least for choices at random: the same whatever is
    chosen, and wherever it is.

    Args:
        units: the one with the largest tiles first.
        params: a value for every parameter.
        sizes: of the call.
    """
    rows, columns = units[0].tiles(sizes.n_q, sizes.n_kv)
    if rows * columns > _MOST_TILES:
        return units[0]

    def tally(unit: SourceUnit) -> Tally:
        """The tile counts of all masks, as heads have them."""
        rest = (bundle.selections, unit.tile)
        lengths = (sizes.n_q, sizes.n_kv)
        masks = [
            expected(tile_codes(each.keep, *rest, *lengths, params), *rest)
            for each in bundle.variants
        ]
        return Tally(
            sum(each.rows for each in masks),
            sum(each.tiles for each in masks),
            sum(each.masked for each in masks),
        )

    return cheapest(units, tally, sizes.n_kv)


def expected(codes: np.ndarray, selections: tuple[Selection, ...], tile: TileShape) -> Tally:
    """The tiles of a mask if every block of queries chose at random among its candidates.

    Args:
        codes: [tile rows, tile columns].
        tile: their shape.
    """
    free = np.ones(codes.shape)  # how likely nothing of a tile is live
    whole = (codes >> _FULL & 1).astype(bool)
    settled = (codes & 1).astype(bool)
    alone = settled.copy()
    for i, each in enumerate(selections):
        reached = (codes >> (1 << i) & 1).astype(bool) & ~settled
        keys = reached.sum(axis=1, keepdims=True) * tile.k
        share = np.minimum(1, each.k * each.block / np.maximum(keys, 1))
        cells = max(1, tile.q // each.q_block) * max(1, tile.k // each.block)
        alone |= reached
        free *= np.where(reached, (1 - share) ** cells, 1)
        if cells == 1:
            whole |= reached & (codes >> (_FULL + (1 << i)) & 1).astype(bool)
    # what lives only where several have chosen, or lives anyway, counts as one tile
    live = np.where(settled | ~alone & ((codes & 0xFF) > 0), 1.0, 1 - free)
    rows = int(live.any(axis=1).sum())
    return Tally(rows, round(live.sum()), round(live[~whole].sum()))


LONGEST = 16384
"""The longest document in tokens: longer ones count as one of these. Their rows are long, too, or a
window makes them short."""
SAMPLE = 4096
"""Tokens of the packed documents on which tiles are compared, or more where one is longer."""
_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio's inverse: its multiples, but for their whole parts, are spread evenly."""


def suited(
    sources: Sequence[Source], beside: Expr | None, params: Mapping[str, int], longest: int | None,
    backward: bool = False,
) -> Source:  # fmt: skip
    """The source that takes least for packed documents of about one length.

    Args:
        sources: the one with the largest tiles first.
        beside: what the mask asks besides documents, see `beside_documents`.
        params: a value for every parameter.
        longest: tokens of the longest document; None takes LONGEST.
        backward: whether they are of a backward pass, which takes tile columns.
    """
    ids = _packed(min(longest or LONGEST, LONGEST))
    return cheapest(sources, lambda each: _tally(each.tile, beside, params, ids, backward),
                    len(ids))  # fmt: skip


def _packed(longest: int) -> np.ndarray:
    """int32 [tokens]: ids of documents of three quarters of a length, to all of it. So they begin
    anywhere in tiles, as those of one length do not."""
    number = np.arange(1 + SAMPLE // longest)
    lengths = longest - (longest / 4 * (number * _GOLDEN % 1)).astype(np.int64)
    return np.repeat(number.astype(np.int32), lengths)[: max(SAMPLE, longest)]


def _tally(
    tile: TileShape, beside: Expr | None, params: Mapping[str, int], ids: np.ndarray,
    backward: bool,
) -> Tally:  # fmt: skip
    recipe = LayoutRecipe(tile, ALWAYS if beside is None else beside, None)
    layout = build(recipe, len(ids), len(ids), params, {})
    lists = document_lists(layout, ids, ids)
    rows = -(-len(ids) // tile.k) if backward else int(np.count_nonzero(np.diff(lists.row_ptr)))
    return Tally(rows, len(lists.words), int(np.count_nonzero(~lists.words & 1)))
