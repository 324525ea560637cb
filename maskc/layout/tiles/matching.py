"""All tiles at once, for masks whose data are in no order: hash buckets, routing, tables.

Bounds of large boxes say nothing there, and most tiles are live. The tiles that share an id follow
from which blocks hold which id: for an id of many blocks of keys a set of bits, for one of few a
list. What else the mask says is bounded twice, for equal ids and for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from maskc.core import expr as E
from maskc.core.errors import TooManyTiles
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL, MAX_TILES, PARTIAL
from maskc.core.problem import TileShape
from maskc.layout.tiles.elements import FINE, Elements, fine
from maskc.layout.tiles.expand import RowLists, numbered
from maskc.layout.tiles.refine import Refinement

_TILES = 1 << 19
"""Tiles looked at together."""

_MANY = 16
"""Blocks of keys from which on an id has a set of bits."""

_SCATTERED = 8
"""At least one in this many coarse boxes must be undecided; otherwise bounds are faster."""

_MAX_TILES = 1 << 27
"""The most tiles that a count looks at."""

_LARGE = 1 << 24
"""Entries of a large table."""

_PARTIAL = 1 << 8
"""Partial tiles counted together."""


def scattered(mask: Elements, n_q: int, n_kv: int, tile: TileShape) -> bool:
    """Whether bounds of large boxes leave many of them undecided, or cost more than all tiles."""
    refinement = Refinement(mask, n_q, n_kv, tile)
    rows, columns = refinement.grid(1)
    read = (mask.arrays[name] for name in E.arrays(mask.keep))
    if rows * columns <= _MAX_TILES and any(map(_large_table, read)):
        return True
    return refinement.scattered(_SCATTERED)


def _large_table(array: np.ndarray) -> bool:
    """Whether sums over boxes of a table are arrays that are better not made."""
    return isinstance(array, np.ndarray) and array.ndim == 2 and array.size > _LARGE


def tile_rows(mask: Elements, n_q: int, n_kv: int, tile: TileShape) -> list[RowLists] | None:
    """All tile rows, exact; None if the mask compares several ids, or none and reads no table.

    Raises:
        TooManyTiles: more than 2^30 live tiles.
    """
    sums = _comparisons(mask.keep)
    if len(sums) > 1 or not (sums or _tables(mask.keep)):
        return None
    grid = _Grid(mask, sums, Refinement(mask, n_q, n_kv, tile))
    most = min(grid.rows * grid.columns, MAX_TILES)  # memory is taken where it is written
    counts = np.empty(grid.rows, np.int64)
    columns, kinds = np.empty(most, np.int32), np.empty(most, np.uint8)
    stop = 0
    for top, kind in grid.kinds():
        live = kind > 0
        live_counts = counts[top : top + len(kind)] = np.count_nonzero(live, axis=1)
        start, stop = stop, stop + int(live_counts.sum())
        if stop > MAX_TILES:
            raise TooManyTiles(f"at least {stop}")
        columns[start:stop] = np.broadcast_to(grid.column, kind.shape)[live]
        kinds[start:stop] = kind[live]
    return [RowLists(counts, columns[:stop], kinds[:stop])]


def count_pairs(mask: Elements, n_q: int, n_kv: int) -> int | None:
    """Live pairs of a mask that reads tables, by tiles of the table's blocks; else None."""
    tables = _tables(mask.keep)
    if not tables:
        return None
    tile = min(tables, key=lambda tile: (tile.q * tile.k, tile.q))
    if -(-n_q // tile.q) * -(-n_kv // tile.k) > _MAX_TILES or min(tile.q, tile.k) < FINE:
        return None
    refinement = Refinement(mask, n_q, n_kv, tile)
    total = 0
    width = np.full(refinement.grid(1)[1], tile.k)
    width[-1] = n_kv - (len(width) - 1) * tile.k
    for top, kind in _Grid(mask, [], refinement).kinds(exact=False):
        keys = np.where(kind == FULL, width, 0).sum(axis=1)
        first = np.arange(top, top + len(kind)) * tile.q
        total += int((keys * (np.minimum(first + tile.q, n_q) - first)).sum())
        row, col = np.nonzero(kind == PARTIAL)
        boxes = refinement.boxes(row + top, col)
        for start in range(0, len(boxes), _PARTIAL):
            total += mask.count(fine(boxes[start : start + _PARTIAL]))
    return total


def _tables(keep: Expr) -> list[TileShape]:
    """The blocks of the tables that a mask reads."""
    tables = []
    for node in E.walk(keep):
        match node:
            case E.Load(_, (E.FloorDiv(num, q), E.FloorDiv(other, k))) if E.symbols(num) == {
                "q"
            } and E.symbols(other) == {"k"}:
                tables.append(TileShape(q, k))
    return tables


def _comparisons(keep: Expr) -> list[Expr]:
    """The sums of data of the query and data of the key that the mask compares with zero."""
    comparisons = {node for node in E.walk(keep) if isinstance(node, E.Cmp) and node.op != ">="}
    sums = {node.lhs for node in comparisons if E.symbols(node) == {"q", "k"} and E.arrays(node)}
    return sorted(
        (
            value
            for value in sums
            if all(len(E.symbols(t)) == 1 for _, t in E.split_linear(value)[1])
        ),
        key=lambda value: value.key,
    )


def _side(value: Expr, name: str, length: int, mask: Elements) -> np.ndarray:
    """The terms of a sum over one symbol, int64 [length]."""
    terms = [term for term in E.split_linear(value)[1] if E.symbols(term[1]) == {name}]
    values = evaluate(E.linear(0, terms), {**mask.arrays, name: np.arange(length)})
    return np.broadcast_to(values, length).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Which ids the blocks of one side hold."""

    ptr: np.ndarray
    """int64 [blocks + 1]: where those of each block begin."""
    ids: np.ndarray
    """int64: the ids of a block, each once; ids that the other side lacks are missing."""
    only: np.ndarray
    """int64 [blocks]: the id if all tokens of the block have one; -1 if there are several, or if
    the other side does not have it."""


def _blocks(slots: np.ndarray, size: int, ids: int) -> _Blocks:
    """Find blocks from the ids of all tokens, numbers below `ids`; -1 is an id that the other side
    lacks."""
    count = -(-len(slots) // size)
    block = np.arange(len(slots)) // size
    held = np.sort((block * ids + slots)[slots >= 0])
    held = held[np.diff(held, prepend=-1) > 0]
    ptr = np.searchsorted(held, np.arange(count + 1) * ids)
    first = np.arange(0, len(slots), size)
    least, greatest = (pick.reduceat(slots, first) for pick in (np.minimum, np.maximum))
    return _Blocks(ptr, held % ids, np.where(least == greatest, least, -1))


class _Grid:
    """All tiles of one mask."""

    def __init__(self, mask: Elements, sums: list[Expr], refinement: Refinement) -> None:
        """`sums`: the one comparison of ids that is not left to bounds, if there is one."""
        self.mask, self.refinement = mask, refinement
        self.rows, self.columns = refinement.grid(1)
        self.column = np.arange(self.columns, dtype=np.int32)
        self.compares = bool(sums)
        if sums:
            self._compare(sums[0])

    def _compare(self, comparison: Expr) -> None:
        mask, (n_q, n_kv), tile = self.mask, self.refinement.lengths, self.refinement.tile
        constant = E.split_linear(comparison)[0]
        of_key = _side(comparison, "k", n_kv, mask)
        wanted = -constant - _side(comparison, "q", n_q, mask)
        known = np.sort(of_key)
        known = known[np.append(True, known[1:] != known[:-1])]
        slots = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        slots = np.where(known[slots] == wanted, slots, -1)
        self.queries = _blocks(slots, tile.q, len(known))
        self.keys = _blocks(np.searchsorted(known, of_key), tile.k, len(known))
        self._index(len(known))
        equal = E.Cmp("==", comparison)
        self.if_same, self.if_other = (E.assume(mask.keep, equal, x) for x in (True, False))

    def _index(self, ids: int) -> None:
        """The blocks of keys of every id: as bits where there are many, as a list else."""
        owner = np.repeat(np.arange(self.columns), np.diff(self.keys.ptr))
        order = np.argsort(self.keys.ids, kind="stable")
        self.list_ptr = np.searchsorted(self.keys.ids[order], np.arange(ids + 1))
        self.lists = owner[order]
        many = np.diff(self.list_ptr) >= _MANY
        self.bit_row = np.where(many, np.cumsum(many) - 1, -1)
        bits = np.zeros((np.count_nonzero(many), -(-self.columns // 64) * 8), dtype=np.uint8)
        counts = many[self.keys.ids]
        np.bitwise_or.at(
            bits, (self.bit_row[self.keys.ids[counts]], owner[counts] >> 3),
            (1 << (owner[counts] & 7)).astype(np.uint8),
        )  # fmt: skip
        self.bits = bits.view(np.uint64)

    def kinds(self, exact: bool = True) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, uint8 [rows, columns]) of some tile rows at a time; if not `exact`, tiles
        that bounds leave undecided are partial."""
        step = max(1, _TILES // self.columns)
        for top in range(0, self.rows, step):
            yield top, self._kinds(top, min(top + step, self.rows), exact)

    def _kinds(self, top: int, bottom: int, exact: bool) -> np.ndarray:
        row, col = np.arange(top, bottom)[:, None], np.arange(self.columns)[None, :]
        boxes = self.refinement.boxes(row, col)
        live, dead, unknown = np.zeros((3, bottom - top, self.columns), dtype=bool)
        for there, formula in self._cases(top, bottom):
            if isinstance(formula, E.Truth):
                certain = live if formula.value else dead
                certain |= there
                continue
            may, must = self.mask.analyst.verdict(formula, boxes)
            live |= there & must
            dead |= there & ~may
            unknown |= there & may & ~must
        kind = live.view(np.uint8) * (np.uint8(FULL) - dead)
        if unknown.any():
            row, col = np.nonzero(unknown & ~(live & dead))
            if exact:
                kind[row, col] = self.mask.kinds(self.refinement.boxes(row + top, col))
            else:
                kind[row, col] = PARTIAL
        return kind

    def _cases(self, top: int, bottom: int) -> Iterator[tuple[np.ndarray | np.bool_, Expr]]:
        """Yield the tiles with such pairs, and the formula of the mask for these pairs."""
        if not self.compares:
            yield np.bool_(True), self.mask.keep
            return
        some = self._some_alike(top, bottom)
        only = self.queries.only[top:bottom, None]
        yield some, self.if_same
        yield ~((only >= 0) & (only == self.keys.only)), self.if_other

    def _some_alike(self, top: int, bottom: int) -> np.ndarray:
        """bool [rows, columns]: a query and a key of the tile have the same id."""
        hits = np.zeros((bottom - top, self.columns), dtype=bool)
        ptr = self.queries.ptr[top : bottom + 1]
        ids = self.queries.ids[ptr[0] : ptr[-1]]
        owner = np.repeat(np.arange(bottom - top), np.diff(ptr))
        for row in range(bottom - top):
            mine = self.bit_row[ids[ptr[row] - ptr[0] : ptr[row + 1] - ptr[0]]]
            mine = mine[mine >= 0]
            if len(mine):
                words = np.bitwise_or.reduce(self.bits[mine], axis=0)
                hits[row] = np.unpackbits(
                    words.view(np.uint8), count=self.columns, bitorder="little"
                )
        few = self.bit_row[ids] < 0
        which, place = numbered(np.diff(self.list_ptr)[ids[few]])
        hits[owner[few][which], self.lists[self.list_ptr[ids[few]][which] + place]] = True
        return hits
