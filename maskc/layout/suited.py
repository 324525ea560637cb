"""Which tiles suit documents.

No bit of a document's rows may depend on its neighbours, so neither may the tiles that it has. They
are chosen by what its neighbours do not change: the mask, its parameters, and the longest document
that a call promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from maskc.core.bundle import LayoutRecipe
from maskc.core.cost import Source, Tally, cheapest
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.layout.tiles.build import build
from maskc.layout.tiles.document_tiles import document_lists

LONGEST = 16384
"""Tokens of a document: longer ones count as one of these. Their rows are long, too, or a window
makes them short."""
SAMPLE = 4096
"""Tokens of the packed documents on which tiles are compared, or more where one is longer."""
_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples, but for their whole parts, are spread evenly."""


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
    layout = build(LayoutRecipe(tile, beside, None), len(ids), len(ids), params, {})
    lists = document_lists(layout, ids, ids)
    rows = -(-len(ids) // tile.k) if backward else int(np.count_nonzero(np.diff(lists.row_ptr)))
    return Tally(rows, len(lists.words), int(np.count_nonzero(~lists.words & 1)))
