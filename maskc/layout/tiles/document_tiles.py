"""Masks of documents and something else that reads no data, and tiles that begin with documents.

If documents are packed one after another, each has its own tiles of keys, and its first tile begins
with it. The sums of a query then do not depend on the position of its document. The device makes
the same lists, see templates/common/lib/segments.cuh.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import Bundle, LayoutRecipe
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import BadLength, CheckFailed, TooManyTiles
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL, MAX_TILES, BlockLayout
from maskc.core.problem import TileShape
from maskc.core.sizes import Sizes
from maskc.layout.tiles.bounds import Analyst, PairBoxes
from maskc.layout.tiles.build import build
from maskc.layout.tiles.expand import numbered

RUNS_PER_COLUMN = 4
"""Most documents per tile column of a list. With more, documents have few keys per tile, and tiles
begin at tile columns."""
_SAMPLES = 9
"""Queries that give the numbers of a band."""
FAR = 1 << 30
"""More tokens than there are."""
MAX_KEYS = (1 << 28) - 1
"""Keys that words of kernels can name."""


def without_documents(keep: Expr, data: tuple[DataDecl, ...]) -> Expr | None:
    """Return the condition of a mask in addition to both tokens being in one document.

    Args:
        keep: the mask over q, k, n_q, n_kv, parameters and data arrays.
        data: all its data.

    Returns:
        The rest of the conjunction, which reads no data; None if the mask is anything else.
    """
    if len(data) != 1 or data[0].kind is not DataKind.documents:
        return None
    of_q, of_k = data[0].arrays
    same = E.eq(E.Load(of_q, (E.Q,)), E.Load(of_k, (E.K,)))
    terms = E.conjuncts(keep)
    rest = tuple(term for term in terms if term != same)
    if len(rest) == len(terms) or any(E.arrays(term) for term in rest):
        return None
    return E.conj(*rest)


def most_runs(columns: int) -> int:
    """Documents of a list with which its tiles may begin."""
    return RUNS_PER_COLUMN * columns


def room_of(kept: int, rows: int, columns: int) -> int:
    """Return an upper bound on the tiles of a list, given the tiles of the mask without its
    documents.

    In every tile column that a row sees, one tile continues from before, and one reaches into it
    from a column that the row does not see. Further tiles begin with a document. If ids ascend, a
    row shares at most its first document with the rows before.
    """
    return 2 * kept + rows + most_runs(columns)


@lru_cache(maxsize=256)
def band_of(
    alongside: Expr, n_q: int, n_kv: int, params: tuple[tuple[str, int], ...] = ()
) -> tuple[int, int] | None:
    """Find a band: a query q sees the keys q + low to q + high - 1, as far as they exist.

    Args:
        alongside: a mask over q, k, n_q, n_kv and parameters.
        n_q, n_kv: queries and keys.
        params: names and values of parameters.

    Returns:
        low and high, -FAR and FAR where nothing but the ends of the keys limits them; None if the
        mask is not proved to be a band.
    """
    values = {**E.params(alongside), **dict(params), "n_q": n_q, "n_kv": n_kv}
    keep, analyst = E.with_values(alongside, values), Analyst({})
    # Some queries give the numbers
    q = np.unique(np.linspace(0, n_q - 1, _SAMPLES).astype(np.int64))
    first, end = np.zeros_like(q), np.zeros_like(q)
    for bit in reversed(range((n_kv + 1).bit_length())):  # keys 0 to first - 1 see nothing
        more = np.minimum(first + (1 << bit), n_kv)
        first = np.where(analyst.verdict(keep, PairBoxes(q, q, 0 * q, more - 1))[0], first, more)
        more = np.minimum(end + (1 << bit), n_kv)  # keys end - 1 to the last see something
        end = np.where(
            analyst.verdict(keep, PairBoxes(q, q, more - 1, 0 * q + n_kv - 1))[0], more, end
        )
    some = first < end
    lows, highs = (first - q)[some & (first > 0)], (end - q)[some & (end < n_kv)]
    low, high = int(lows[0]) if lows.size else -FAR, int(highs[0]) if highs.size else FAR
    # All queries prove them
    q = np.arange(n_q)
    first, end = np.clip(q + low, 0, n_kv), np.clip(q + high, 0, n_kv)
    end = np.maximum(first, end)
    for k_low, k_high, live in (
        (0 * q, first, False),
        (first, end, True),
        (end, 0 * q + n_kv, False),
    ):
        rows = k_low < k_high
        may, must = analyst.verdict(
            keep, PairBoxes(q[rows], q[rows], k_low[rows], k_high[rows] - 1)
        )
        if not must.all() if live else may.any():
            return None
    return low, high


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles of keys, in order; int64 [tiles] each."""

    first: np.ndarray
    """The first key."""
    stop: np.ndarray
    """Past the last key of the document that it begins with; -n of n keys where tiles begin with
    tile columns."""
    least: np.ndarray
    greatest: np.ndarray
    """The greatest id of its keys."""


def tiles_of(of_q: np.ndarray, of_k: np.ndarray, size: int, aligned: bool = False) -> Tiles:
    """Find the tiles of all keys.

    Args:
        aligned: whether tiles begin where tile columns do, whatever the documents are.
        of_q, of_k: int32 [n_q] and [n_kv]: ids of queries and of keys, of one sequence; there is at
            least one key.
        size: keys of a tile.
    """
    n = len(of_k)
    begin = np.flatnonzero(np.diff(of_k, prepend=of_k[0] - 1))
    ascending = all((ids[1:] >= ids[:-1]).all() for ids in (of_q, of_k))
    if aligned or not ascending or len(begin) > most_runs(-(-n // size)):
        first = np.arange(0, n, size)
        bounds = (pick.reduceat(of_k, first) for pick in (np.minimum, np.maximum))
        return Tiles(first, np.full_like(first, -n), *bounds)
    end = np.append(begin[1:], n)
    documents, place = numbered(-(-(end - begin) // size))
    first = begin[documents] + size * place
    return Tiles(first, end[documents], of_k[first], of_k[first])


@dataclass(frozen=True, eq=False)
class DocumentTileLists:
    """The tiles of all tile rows of one sequence."""

    row_ptr: np.ndarray
    """int32 [rows + 1]."""
    words: np.ndarray
    """int32 [tiles]: first key * 2 + (1 if every pair is live), ascending in a row."""
    stops: np.ndarray
    """int32 [n_kv]: for a first key as in `Tiles`, elsewhere 0."""


def document_lists(
    layout: BlockLayout, of_q: np.ndarray, of_k: np.ndarray, aligned: bool = False
) -> DocumentTileLists:
    """List the live tiles of every tile row.

    Args:
        aligned: see `tiles_of`.
        layout: of the mask without its documents.
        of_q, of_k: int32 [n_q] and [n_kv]: ids of one sequence.

    Raises:
        BadLength: there are more keys than words of a kernel can name (MC306).
    """
    if layout.n_kv > MAX_KEYS:
        raise BadLength("n_kv", MAX_KEYS, layout.n_kv, at="n_kv")
    rows, size = layout.shape[0], layout.tile.k
    stops = np.zeros(layout.n_kv, np.int32)
    if not layout.nnz:
        return DocumentTileLists(np.zeros(rows + 1, np.int32), np.zeros(0, np.int32), stops)
    of_q, of_k = of_q.astype(np.int64), of_k.astype(np.int64)
    tiles = tiles_of(of_q, of_k, size, aligned)
    stops[tiles.first] = tiles.stop
    row, tile, full = _beginning(layout, tiles, size)
    first_query = np.arange(0, layout.n_q, layout.tile.q)
    least, greatest = (pick.reduceat(of_q, first_query)[row] for pick in (np.minimum, np.maximum))
    meet = (least <= tiles.greatest[tile]) & (tiles.least[tile] <= greatest)
    same = (least == greatest) & (tiles.least[tile] == tiles.greatest[tile])
    full &= meet & same & (least == tiles.least[tile])
    full &= np.abs(tiles.stop[tile]) - tiles.first[tile] >= size
    row, words = row[meet], (2 * tiles.first[tile] + full)[meet]
    order = np.lexsort((words, row))
    row_ptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return DocumentTileLists(row_ptr.astype(np.int32), words[order].astype(np.int32), stops)


def _beginning(
    layout: BlockLayout, tiles: Tiles, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (tile row, index of a tile, whether all of its keys are live except for documents) of
    all tiles that reach into a live tile column."""
    row = np.repeat(np.arange(layout.shape[0]), np.diff(layout.row_ptr))
    column, full = layout.col.astype(np.int64), layout.kind == FULL
    same_row = row[1:] == row[:-1]
    follows = np.append(False, same_row & (column[1:] == column[:-1] + 1))
    next_full = np.append(follows[1:] & full[1:], False)
    begin, end = np.searchsorted(tiles.first, (column * size, (column + 1) * size))
    entry, place = numbered(end - begin)
    tile = begin[entry] + place
    whole = full[entry] & (next_full[entry] | (tiles.first[tile] == column[entry] * size))

    before = begin - 1  # what reaches in from a column that is dead
    last = np.minimum(tiles.first + size, np.abs(tiles.stop))[before]
    some = ~follows & (before >= 0) & (last > column * size)
    return (
        np.concatenate([row[entry], row[some]]),
        np.concatenate([tile, before[some]]),
        np.concatenate([whole, np.zeros(np.count_nonzero(some), bool)]),
    )


def check_documents(
    lists: DocumentTileLists, layout: BlockLayout, keep: Expr, env: Mapping[str, object]
) -> None:
    """Compare lists with the mask pair by pair, a tile row at a time; `layout` as for
    `document_lists`, `env` has what `keep` reads.

    Raises:
        CheckFailed: a live pair in no tile or in several, or a dead one in a full tile.
    """
    size, n_q = layout.tile.q, layout.n_q
    rows = [(first, min(first + size, n_q)) for first in range(0, n_q, size)]
    check_rows(rows, lists, layout.tile.k, keep, env)


def check_rows(
    rows: Sequence[tuple[int, int]], lists: DocumentTileLists, size: int, keep: Expr,
    env: Mapping[str, object], by_key: bool = False,
) -> None:  # fmt: skip
    """Compare the tiles of some tile rows with the mask pair by pair.

    Args:
        rows: (first query, past the last one) of each.
        lists: of these rows.
        size: keys of a tile.
        keep: the mask.
        env: what it reads.
        by_key: whether keys and queries change places.

    Raises:
        CheckFailed: a live pair in no tile or in several, or a dead one in a full tile.
    """
    n_kv = len(lists.stops)
    keys = np.arange(n_kv)
    of_row, of_tile = "kq" if by_key else "qk"
    for number, (begin, end) in enumerate(rows):
        queries = np.arange(begin, end)
        live = evaluate(keep, {**env, of_row: queries[:, None], of_tile: keys[None, :]})
        live = np.broadcast_to(live, (len(queries), n_kv))
        times, full = np.zeros(n_kv, int), np.zeros(n_kv, bool)
        for word in lists.words[lists.row_ptr[number] : lists.row_ptr[number + 1]]:
            first = word >> 1
            keys_of_tile = slice(first, min(first + size, abs(lists.stops[first])))
            times[keys_of_tile] += 1
            full[keys_of_tile] |= bool(word & 1)
        wrong = (live & (times != 1)) | (full & ~live)
        if wrong.any():
            line, at = np.argwhere(wrong)[0]
            query, key = (at, queries[line]) if by_key else (queries[line], at)
            finding = f"query {query}, key {key} in {times[at]} tiles"
            raise CheckFailed(f"{finding}{', a full one' if full[at] else ''}, which is wrong")


def lists_on_host(
    bundle: Bundle, tile: TileShape, sizes: Sizes, params: Mapping[str, int],
    seen: Sequence[tuple[LayoutRecipe, Mapping[str, np.ndarray]]], by_head: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Tiles that begin with documents.

    Args:
        bundle: of a mask of documents and something that reads no data.
        tile: of the kernel.
        params: a value for every parameter.
        seen: the mask and its ids, by sequence; by sequence and head where heads differ.
        by_head: whether heads have documents of their own. Kernels look up where a document ends
            by sequence alone, so tiles of all heads then begin where tile columns do.

    Returns:
        int32 `row_ptr`, `row_tiles`, and where documents end [lists, 1, n_kv], as DocumentLists
        has them; [1, 1, n_kv] where heads differ.

    Raises:
        TooManyTiles: more than 2^30 in all.
        CheckFailed: with MASKC_CHECK=1, the lists are not the mask.
    """
    (decl,) = bundle.data
    alongside = without_documents(bundle.variants[0].keep, bundle.data)
    recipe = LayoutRecipe(tile, E.ALWAYS if alongside is None else alongside, None)
    layout = build(recipe, sizes.n_q, sizes.n_kv, params, {})
    of_q, of_k = decl.arrays
    made = [document_lists(layout, arrays[of_q], arrays[of_k], by_head) for _, arrays in seen]
    if os.environ.get("MASKC_CHECK") == "1":
        for lists, (mask, arrays) in zip(made, seen, strict=True):
            env = {**params, **arrays, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
            check_documents(lists, layout, mask.keep, env)
    starts = np.cumsum([0, *(len(lists.words) for lists in made)])
    if starts[-1] > MAX_TILES:
        raise TooManyTiles(int(starts[-1]))
    return (
        np.stack([lists.row_ptr for lists in made]) + starts[:-1, None].astype(np.int32),
        np.concatenate([lists.words for lists in made]),
        np.stack([lists.stops for lists in made[: 1 if by_head else None]])[:, None],
    )
