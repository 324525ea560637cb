"""Typical tile counts for masks with data that the host has not read.

A call must choose its program before it knows which keys are selected, where documents begin or
which blocks of a table are live. It uses the counts of typical data. They depend on shapes only, so
a result never depends on the data of other sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import Bundle, LayoutRecipe
from maskc.core.cost import Tally
from maskc.core.data import DataDecl, DataKind
from maskc.core.expr import Expr
from maskc.core.layout import PARTIAL, BlockLayout
from maskc.core.problem import Direction, TileShape
from maskc.core.selection import Selection
from maskc.core.sizes import Sizes
from maskc.layout import tile_codes, without_documents
from maskc.layout.tiles.build import build
from maskc.layout.tiles.data_tiles import hull, reads_data
from maskc.layout.tiles.document_tiles import document_lists
from maskc.layout.topk.tile_codes import _FULL
from maskc.layout.work.tile_counts import tally_of

_MAX_TILES = 1 << 20
"""The most tiles that are counted; beyond that nothing is expected."""

Values = Mapping[str, int]

_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio's inverse: the fractional parts of its multiples are evenly distributed."""


def expected_tally(
    bundle: Bundle, tile: TileShape, params: Values, sizes: Sizes, direction: Direction,
    longest: int | None,
) -> Tally | None:  # fmt: skip
    """Return expected tile counts of all distinct masks of a bundle.

    Args:
        bundle: whose masks read data of calls, or choose blocks of keys.
        tile: the tile shape.
        params: a value for every parameter.
        sizes: of the call.
        direction: a backward pass goes through tile columns.
        longest: the longest document that the call promises; None if it promises nothing.

    Returns:
        None if there are too many tiles to count.
    """
    if -(-sizes.n_q // tile.q) * -(-sizes.n_kv // tile.k) > _MAX_TILES:
        return None
    if bundle.selections:
        tallies = [_of_selections(bundle, v.keep, tile, params, sizes) for v in bundle.variants]
        backward = direction is Direction.backward
        queries = -(-sizes.n_q // tile.q) * len(tallies) if backward else 0
        return replace(_sum(tallies), queries=queries)
    alongside = without_documents(bundle.variants[0].keep, bundle.data)
    if alongside is not None:
        return of_documents(tile, alongside, params, longest, direction)
    arrays = {
        name: _table(decl, sizes)
        for decl in bundle.data if decl.kind is DataKind.table for name in decl.arrays
    }  # fmt: skip
    intervals = (decl for decl in bundle.data if decl.kind is DataKind.intervals)
    spans = {name for decl in intervals for name in decl.arrays}
    keeps = (_with_prefix(variant.keep, spans, sizes.n_kv) for variant in bundle.variants)
    layouts = [
        build(LayoutRecipe(tile, _hull_given(keep, frozenset(arrays)), None), sizes.n_q,
              sizes.n_kv, params, arrays, exact=False)
        for keep in keeps
    ]  # fmt: skip
    if not _is_padded(bundle):
        return tally_of(layouts, direction)
    spread = [i * _GOLDEN % 1 for i in range(1, 1 + _SEQUENCES)]
    lengths = [1 + int(sizes.n_kv * (1 + 3 * share) / 4) for share in spread]
    padded = [_padded(layout, length) for layout in layouts for length in lengths]
    total = tally_of(padded, direction)
    return Tally(*(round(getattr(total, name) / _SEQUENCES) for name in Tally.__slots__))


def _sum(tallies: list[Tally]) -> Tally:
    return Tally(
        sum(one.rows for one in tallies),
        sum(one.tiles for one in tallies),
        sum(one.masked for one in tallies),
    )


# ------------------------------------------------------------------ padding

_SEQUENCES = 8
"""Typical sequences of a padded batch: their lengths are spread evenly between a quarter of the
longest and all of it. At 512 keys (D 64, forward, H200) and lengths of 64 to 512, the program that
suits full sequences takes 1.12x as long as the fastest one. Without padding, the one that suits
typical sequences is predicted to take 1.04x as long."""


def _is_padded(bundle: Bundle) -> bool:
    """Whether every key of every mask must have a flag: padding clears it."""
    flags = {
        E.ne(E.Load(name, (E.K,)), E.const(0))
        for decl in bundle.data if decl.kind is DataKind.flags and decl.sides == "k"
        for name in decl.arrays
    }  # fmt: skip
    return all(flags.intersection(E.conjuncts(variant.keep)) for variant in bundle.variants)


def _padded(layout: BlockLayout, length: int) -> BlockLayout:
    """The tiles of a sequence of so many keys, given those of one without padding."""
    columns, rest = -(-length // layout.tile.k), length % layout.tile.k
    live = layout.col < columns
    cut = live & (layout.col == columns - 1) & (rest > 0) & (length < layout.n_kv)
    before = np.concatenate([[0], np.cumsum(live)])
    kind = np.where(cut, PARTIAL, layout.kind)[live].astype(np.uint8)
    row_ptr = before[layout.row_ptr].astype(np.int32)
    return replace(layout, row_ptr=row_ptr, col=layout.col[live], kind=kind)


# ------------------------------------------------------------------ intervals

_PREFIX = 4
"""Intervals that add keys to a mask without data are typically a prefix, or spans of images. They
have the first keys here, one in so many. If they had all keys, all rows would be long."""


def _with_prefix(keep: Expr, spans: set[str], n_kv: int) -> Expr:
    """Return a mask in which a prefix takes the place of intervals that are joined with terms
    without data.

    Args:
        spans: arrays of the bounds of intervals.
        n_kv: keys.
    """
    match keep:
        case E.All(terms):
            return E.conj(*(_with_prefix(term, spans, n_kv) for term in terms))
        case E.Any(terms) if not all(map(reads_data, terms)):
            few = E.lt(E.K, E.const(n_kv // _PREFIX))
            return E.disj(
                *(E.conj(hull(x), few) if spans.issuperset(E.arrays(x)) and reads_data(x) else x
                  for x in terms)
            )  # fmt: skip
    return keep


# ------------------------------------------------------------------ tables

_DENSITY = 8
"""One entry of a typical block table in so many is live. Tables that keep more lose little by tiles
of a block's size (all blocks live, blocks of 64, D 128: 1.2x), tables that keep 5 % gain 2.5x."""


def _table(decl: DataDecl, sizes: Sizes) -> np.ndarray:
    """A table of zeros and ones at random; the same on every machine."""
    shape = -(-sizes.n_q // decl.block), -(-sizes.n_kv // decl.block)
    drawn = np.random.Generator(np.random.PCG64(0)).integers(0, _DENSITY, shape)
    table: np.ndarray = (drawn == 0).astype(np.int32)
    return table


def _hull_given(keep: Expr, known: frozenset[str]) -> Expr:
    """The mask with every comparison taken for true that reads other arrays than the known ones."""
    if not known:
        return hull(keep)
    match keep:
        case E.All(terms):
            return E.conj(*(_hull_given(term, known) for term in terms))
        case E.Any(terms):
            return E.disj(*(_hull_given(term, known) for term in terms))
    return keep if known.issuperset(E.arrays(keep)) else hull(keep)


# ------------------------------------------------------------------ selections


def _of_selections(
    bundle: Bundle, keep: Expr, tile: TileShape, params: Values, sizes: Sizes
) -> Tally:
    """Return expected tile counts of one mask, as if its other data ruled nothing out."""
    rest = (bundle.selections, tile)
    keep = _hull_given(keep, frozenset(selection.name for selection in bundle.selections))
    return expected(tile_codes(keep, *rest, sizes.n_q, sizes.n_kv, params), *rest)


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
    for i, selection in enumerate(selections):
        reached = (codes >> (1 << i) & 1).astype(bool) & ~settled
        keys = reached.sum(axis=1, keepdims=True) * tile.k
        share = np.minimum(1, selection.k * selection.block / np.maximum(keys, 1))
        cells = max(1, tile.q // selection.q_block) * max(1, tile.k // selection.block)
        alone |= reached
        free *= np.where(reached, (1 - share) ** cells, 1)
        if cells == 1:
            whole |= reached & (codes >> (_FULL + (1 << i)) & 1).astype(bool)
    # what lives only where several have chosen, or lives anyway, counts as one tile
    live = np.where(settled | ~alone & ((codes & 0xFF) > 0), 1.0, 1 - free)
    rows = int(live.any(axis=1).sum())
    return Tally(rows, round(live.sum()), round(live[~whole].sum()))


# ------------------------------------------------------------------ documents

LONGEST = 16384
"""The longest document, in tokens, that is distinguished: rows of longer documents are long too, or
short because of a window."""
TYPICAL = 2048
"""Tokens of the longest document if a call passes no `max_seqlen`. The best program for long
documents takes 1.5x on documents of 300 tokens; the best one for these takes 1.05x on documents of
6000 (H200, D 128, forward)."""
SAMPLE = 8192
"""Tokens of the packed documents on which tiles are compared, or more where one is longer. Ratios
of predicted times are then within 3 % of those for 128k tokens."""


def of_documents(
    tile: TileShape, alongside: Expr, params: Values, longest: int | None, direction: Direction
) -> Tally:
    """Return the tile counts of packed documents of about equal length.

    Args:
        tile: the tile shape.
        alongside: the condition in addition to documents, see `without_documents`.
        params: a value for every parameter.
        longest: tokens of the longest document; None takes TYPICAL.
        direction: a backward pass goes through tile columns.
    """
    ids = _packed(min(longest or TYPICAL, LONGEST))
    return tally_of_documents(tile, alongside, params, ids, direction)


def tally_of_documents(
    tile: TileShape, alongside: Expr, params: Values, ids: np.ndarray, direction: Direction
) -> Tally:
    """Return the tile counts of packed documents, with tiles that begin at documents.

    Args:
        tile, alongside, params, direction: see `of_documents`.
        ids: int32 [tokens], the document of each token.
    """
    layout = build(LayoutRecipe(tile, alongside, None), len(ids), len(ids), params, {})
    lists = document_lists(layout, ids, ids)
    backward = direction is Direction.backward
    counts = np.diff(lists.row_ptr)
    columns, queries = -(-len(ids) // tile.k), -(-len(ids) // tile.q)
    rows = columns if backward else int(np.count_nonzero(counts))
    lone = 0 if backward else int(np.count_nonzero(counts == 1))
    masked = int(np.count_nonzero(~lists.words & 1))
    return Tally(rows, len(lists.words), masked, lone, queries if backward else 0)


def _packed(longest: int) -> np.ndarray:
    """int32 [tokens]: ids of documents, each three quarters of a length to all of it long.

    They begin anywhere in tiles, unlike documents of one length. The first one is cut. Otherwise
    too large a share of the tokens would be in a document that begins with a tile, which large
    tiles fit better than they fit other documents. One of LONGEST tokens stands for longer ones,
    and is whole.
    """
    tokens = max(SAMPLE, longest)
    number = np.arange(2 + 2 * tokens // longest)
    lengths = longest - (longest / 4 * (number * _GOLDEN % 1)).astype(np.int64)
    cut = round(_GOLDEN * longest) if longest < LONGEST else 0
    return np.repeat(number.astype(np.int32), lengths)[cut : cut + tokens]
