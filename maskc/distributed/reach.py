"""Compute exactly which keys the queries of each block see, and the cost of their tiles.

If the compiler has closed forms of a mask's tiles, a few vector operations answer for all blocks;
otherwise the exact tiles are computed. Comparisons that read missing data count as true: the result
is then a hull that is valid for all data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from maskc.core import expr as E
from maskc.core.data import DataKind
from maskc.core.expr import Expr
from maskc.core.layout import FULL, BlockLayout
from maskc.core.problem import TileShape
from maskc.distributed.token_ranges import RangeSets, union
from maskc.dsl.mask import Mask
from maskc.dsl.slots import with_captured
from maskc.ir.heads import heads_of
from maskc.ir.lowered import on_all_heads
from maskc.layout import build
from maskc.layout.tiles.build import loops_hold, values_of
from maskc.layout.tiles.loops import loop_spans
from maskc.plan.recipe import layout_recipe
from maskc.questions.mask_at_lengths import bound

TILE = 128
"""Keys of the tiles that costs are counted in."""
_MAX_TILES = 1 << 22
"""Tiles that are written out, at most, where there are no closed forms."""
_MAX_ROWS = 1 << 20
"""Tile rows whose tiles are counted one by one, at most."""
_MAX_TABLE = 1 << 13
"""Rows of a drawn table up to which it is drawn to plan; beyond, all of its blocks count."""


@dataclass(frozen=True, eq=False)
class Reach:
    """Keys that the queries of blocks 0, 1, ... of `block` tokens see."""

    keys: RangeSets
    """For each block of queries the keys that some query of it sees, on some head."""
    granule: int
    """Tokens to which the ranges are exact; 1 where they are exact."""
    tiles: np.ndarray
    """float [blocks]: live tiles of the block's queries and 128 keys, of all heads."""
    partial: np.ndarray
    """float [blocks]: the tiles with dead pairs."""
    heads: int
    """The number of these heads."""
    hull: tuple[str, ...]
    """Names of data that were not given, so that all that they may allow counts."""
    remainders: bool = False
    """Whether remainders or quotients of q or k shape the mask."""
    shares: tuple[float, float] = (1.0, 1.0)
    """Costs of the passes, relative to these tiles; see costs.shares."""


@dataclass(frozen=True, eq=False)
class _Set:
    """The set of some heads of some sequences."""

    keep: Expr
    params: Mapping[str, int]
    arrays: Mapping[str, np.ndarray]
    heads: float
    """Query heads that have it, on average over the sequences."""


Lengths = tuple[int, int]
"""Queries and keys of a sequence."""


def reach_of(
    mask: Mask, lengths: Lengths, block: int, n_heads: int, data: Mapping[str, object]
) -> Reach:
    """Return the keys that a mask's queries see.

    Args:
        mask: any mask; of run-time selections all candidates count.
        lengths: queries and keys.
        block: queries that count together.
        n_heads: query heads.
        data: parameters, and all arrays that the mask names or none of them.

    Raises:
        MaskcError: a mistake in data (MC3xx) or heads (MC1xx).
    """
    sets, hull = _sets(mask, lengths, n_heads, data)
    blocks = -(-lengths[0] // block)
    tiles, partial = np.zeros(blocks), np.zeros(blocks)
    owner, start, stop, granule = [], [], [], 1
    for of_set in sets:
        row, first, last, exact = _runs(of_set, lengths, block)
        owner.append(row)
        start.append(first)
        stop.append(last)
        granule = max(granule, exact)
        live, dead = _tally(of_set, lengths, block)
        tiles += of_set.heads * live
        partial += of_set.heads * dead
    keys = union(lengths[1], blocks, *(np.concatenate(x) for x in (owner, start, stop)))
    remainders = any(divides(of_set.keep) for of_set in sets)
    return Reach(keys, granule, tiles, partial, n_heads, hull, remainders)


def divides(keep: Expr) -> bool:
    """Whether a formula has remainders or quotients."""
    return any(isinstance(node, (E.FloorDiv, E.Mod)) for node in E.walk(keep))


def _sets(
    mask: Mask, lengths: Lengths, n_heads: int, data: Mapping[str, object]
) -> tuple[list[_Set], tuple[str, ...]]:
    """The distinct sets of all heads, and the names of data that nobody gave."""
    n = max(lengths)
    inner, given = with_captured(mask, data, n_heads, *lengths)
    irs = on_all_heads(inner, heads_of(inner, None) or n_heads)
    wanted = {
        decl.name for ir in irs for decl in ir.data
        if decl.from_caller and decl.kind is not DataKind.scoring  # all candidates count
    }  # fmt: skip
    missing = tuple(sorted(wanted.difference(given)))
    drawn = -(-n // min((d.block for ir in irs for d in ir.data if d.kind is DataKind.random),
                        default=n or 1)) > _MAX_TABLE  # fmt: skip
    computed = any(ir.selections for ir in irs) or drawn
    if missing or computed:
        defaults = {name: value for ir in irs for name, value in ir.params.items()}
        params = {name: int(given.get(name, value)) for name, value in defaults.items()}  # type: ignore[call-overload]
        counts: dict[Expr, int] = {}
        for ir in irs:
            keep = _without_data(ir.keep)
            counts[keep] = counts.get(keep, 0) + n_heads // len(irs)
        return [_Set(keep, params, {}, heads) for keep, heads in counts.items()], missing
    asked = bound(irs, *lengths, given)
    heads, sequences = range(asked.heads), range(asked.sequences)
    share = n_heads / (len(heads) * len(sequences))
    return [
        _Set(asked.ir(head).keep, asked.params, asked.own(head, batch), equal * share)
        for head, batch, equal in asked.sets(heads, sequences)
    ], ()


def _without_data(keep: Expr) -> Expr:
    """Return the formula with every comparison that reads an array taken as true: a superset."""

    def leaf(node: Expr) -> Expr | None:
        compared = isinstance(node, (E.Cmp, E.Member))
        return E.ALWAYS if compared and E.arrays(node) else None

    return E.transform(keep, leaf)


_Spans = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _spans(reached: _Set, lengths: Lengths, tile: TileShape) -> _Spans | None:
    """(first, count) [rows, loops], (step, full) [loops] where closed forms hold."""
    recipe = layout_recipe(reached.keep, tile)
    n_q, n_kv = lengths
    values = values_of(recipe, n_q, n_kv, reached.params)
    if not n_kv or not loops_hold(recipe, values):
        return None
    loops = recipe.loops or ()
    first, count = loop_spans(loops, values, -(-n_q // tile.q), -(-n_kv // tile.k))
    steps = np.array([loop.step for loop in loops], np.int64)
    return first, count, steps, np.array([loop.full for loop in loops], bool)


def _united(of_set: _Set, lengths: Lengths, tile: TileShape) -> list[_Spans]:
    """Return closed forms that together cover the mask, from its alternatives if it has none
    itself; empty if some are missing."""
    spans = _spans(of_set, lengths, tile)
    if spans is not None:
        return [spans]
    keeps = _alternatives(of_set.keep)
    parts = [_united(replace(of_set, keep=keep), lengths, tile) for keep in keeps]
    return [x for part in parts for x in part] if all(parts) else []


def _alternatives(keep: Expr) -> list[Expr]:
    """Return formulas such that one of them holds wherever this one does; empty if unknown."""
    terms = keep.terms if isinstance(keep, E.All) else (keep,)
    for place, term in enumerate(terms):
        if isinstance(term, E.Any):
            rest = terms[:place] + terms[place + 1 :]
            return [E.conj(*rest, one) for one in term.terms]
    return []


def _runs(
    of_set: _Set, lengths: Lengths, block: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return (block, first key, past the last key) of stretches of keys, and their granularity."""
    granule, (n_q, n_kv) = 1, lengths
    while -(-n_q // block) * -(-n_kv // granule) > _MAX_TILES and granule < TILE:
        granule *= 2
    for size in sorted({1, granule} if granule == 1 else {1, TILE}):
        spans = _united(of_set, lengths, TileShape(block, size))
        single = sum(int((count * (steps > 1)).sum()) for _, count, steps, _ in spans)
        if spans and single <= _MAX_TILES:
            runs = [_unrolled(*span[:3], n_kv, size) for span in spans]
            row, start, stop = (np.concatenate(x) for x in zip(*runs, strict=True))
            return row, start, stop, size
    lists = _tiles(of_set, lengths, TileShape(block, granule))
    row = np.repeat(np.arange(lists.shape[0]), np.diff(lists.row_ptr))
    start = lists.col.astype(np.int64) * granule
    return row, start, np.minimum(start + granule, n_kv), granule


def _tiles(of_set: _Set, lengths: Lengths, tile: TileShape) -> BlockLayout:
    return build(layout_recipe(of_set.keep, tile), *lengths, of_set.params, of_set.arrays)


def _unrolled(
    first: np.ndarray, count: np.ndarray, steps: np.ndarray, n: int, granule: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loops as stretches of keys; a loop that skips tiles is one stretch for each."""
    rows, starts, stops = [], [], []
    for loop, step in enumerate(steps.tolist()):
        row = np.flatnonzero(count[:, loop])
        begin, length = first[row, loop].astype(np.int64), count[row, loop].astype(np.int64)
        if step > 1:
            turn = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
            row, begin = np.repeat(row, length), np.repeat(begin, length) + step * turn
            length = np.ones(len(row), np.int64)
        rows.append(row)
        starts.append(begin * granule)
        stops.append(np.minimum((begin + length) * granule, n))
    if not rows:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    return np.concatenate(rows), np.concatenate(starts), np.concatenate(stops)


def _tally(of_set: _Set, lengths: Lengths, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the live tiles of each block, and the number with dead pairs, in tiles of the block's
    rows.

    Rows are those of usual tiles where blocks are larger and closed forms say what they see.
    """
    fine = None
    if block > TILE and block % TILE == 0 and lengths[0] <= _MAX_ROWS * TILE:
        fine = _spans(of_set, lengths, TileShape(TILE, TILE))
    if fine is not None:
        _, count, _, full = fine
        starts = np.arange(0, len(count), block // TILE)
        return tuple(
            np.add.reduceat(x.sum(axis=1, dtype=np.int64), starts) * TILE / block
            for x in (count, count[:, ~full])
        )  # type: ignore[return-value]
    tile = TileShape(block, TILE)
    spans = _spans(of_set, lengths, tile)
    if spans is not None:
        _, count, _, full = spans
        return count.sum(axis=1, dtype=np.int64), count[:, ~full].sum(axis=1, dtype=np.int64)
    lists = _tiles(of_set, lengths, tile)
    full_tiles = np.concatenate([[0], np.cumsum(lists.kind == FULL)])
    live = np.diff(lists.row_ptr).astype(np.int64)
    return live, live - (full_tiles[lists.row_ptr[1:]] - full_tiles[lists.row_ptr[:-1]])


def granularity(mask: Mask) -> int:
    """Return the number that every chunk of tokens should be a multiple of: blocks that the mask
    selects or names."""
    blocks = [1]
    for name in ("block", "q_block"):
        value = getattr(mask, name, 1)
        blocks += [value] if isinstance(value, int) else []
    decl = getattr(mask, "decl", None)
    blocks += [decl.block] if decl is not None else []
    multiple = lcm(*blocks, *map(granularity, getattr(mask, "children", ())))
    return multiple if multiple <= 1024 else 1
