"""Masks with rows that consist of a few stretches of keys: counted and laid out without listing
pairs.

A comparison u(q) + v(k) >= 0 with v monotone, as in causal and window masks, intervals, sorted
documents, holds for the keys from some key on, or up to one. All such comparisons cut the keys of a
row into stretches, inside which the mask says something of the key alone: a prefix sum over the
keys counts that. One comparison of identities u(q) == v(k) may be left, as in documents in any
order: prefix sums over the keys sorted by identity count it. Everything is O(rows + keys) except
for sorting.

Where a stretch is all live or all dead, tile rows follow from where stretches begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL, PARTIAL
from maskc.core.problem import TileShape
from maskc.layout.tiles.expand import RowLists, Runs, expand

Arrays = Mapping[str, np.ndarray]

LONGEST = 1 << 24
"""The most queries and keys together: some arrays of 64 bits are made for all of them."""

_ROWS = 1 << 17
"""Rows looked at together."""

_MAX_BOUNDS = 24
"""The most ends of stretches in a row."""

_FEW = 6
"""Ends of a row that are sorted by comparisons of two."""

_MAX_CODES = 16
"""Up to this many truth values are looked up in a table; more are sorted."""


class NoStretches(Exception):
    """The mask is not of this form; bounds and pairs decide instead."""


@dataclass(frozen=True, eq=False)
class _Stretches:
    """A comparison that holds for the keys first .. stop - 1 of a row, of several such, or (where
    not `inside`) for all others."""

    ends: tuple[tuple[np.ndarray, np.ndarray], ...]
    """(first, stop), int64 [rows], 0 <= first, stop <= keys."""
    inside: bool = True

    def holds(self, rows: slice, key: np.ndarray) -> np.ndarray:
        """bool: whether it holds at this key of every row."""
        inside = np.zeros(len(key), dtype=bool)
        for first, stop in self.ends:
            inside |= (first[rows] <= key) & (key < stop[rows])
        return inside if self.inside else ~inside


@dataclass(frozen=True, eq=False)
class _Same:
    """A comparison of identities."""

    comparison: E.Cmp
    wanted: np.ndarray
    """int64 [rows]."""
    ids: np.ndarray
    """int64 [keys]."""

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The distinct identities, where the keys of each begin, the keys sorted by identity, and
        the same keys as ascending numbers."""
        order = np.argsort(self.ids, kind="stable")
        ids = self.ids[order]
        begin = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        rank = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(ids))))
        return ids[begin], np.append(begin, len(ids)), order, rank * len(ids) + order

    @property
    def order(self) -> np.ndarray:
        """The keys, sorted by identity."""
        return self._sorted[2]

    def places(self, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
        """The ends in `order` of the keys low .. high - 1 that have each row's identity."""
        ids, begin, _, numbers = self._sorted
        wanted = self.wanted[rows]
        slot = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        keys, equal = len(self.ids), ids[slot] == wanted
        first = begin[slot] if not low.any() else np.searchsorted(numbers, slot * keys + low)
        whole = (high == keys).all()
        last = begin[slot + 1] if whole else np.searchsorted(numbers, slot * keys + high)
        return [first, np.where(equal, last, first)]


class Sweep:
    """One mask over `row` and `key`, the names of its two dimensions; lengths are numbers."""

    def __init__(
        self, keep: Expr, arrays: Arrays, rows: int, keys: int, row: str = "q", key: str = "k"
    ) -> None:
        """Raises:
        NoStretches: the mask has another form.
        """
        if rows + keys > LONGEST:
            raise NoStretches("too long")
        self.keep, self.arrays, self.rows, self.keys = keep, arrays, rows, keys
        self._row, self._key = row, key
        self._known: dict[Expr, _Stretches | np.ndarray] = {}
        self._same: _Same | None = None
        self._sums: dict[tuple[Expr, bool], np.ndarray] = {}
        self._read(keep)
        if sum(2 * len(s.ends) for s in self._stretches) > _MAX_BOUNDS or len(self._known) > 60:
            raise NoStretches("too many stretches")

    @property
    def _stretches(self) -> list[_Stretches]:
        return [known for known in self._known.values() if isinstance(known, _Stretches)]

    def _of_rows(self, formula: Expr) -> np.ndarray:
        values = evaluate(formula, {**self.arrays, self._row: np.arange(self.rows)})
        return np.broadcast_to(values, self.rows)

    def _of_keys(self, formula: Expr) -> np.ndarray:
        values = evaluate(formula, {**self.arrays, self._key: np.arange(self.keys)})
        return np.broadcast_to(values, self.keys)

    # ------------------------------------------------------------ what the formula says

    def _read(self, formula: Expr) -> None:
        """Note what is known of each part of the formula."""
        used = E.symbols(formula)
        if used <= {self._key} or formula in self._known:
            return
        if used == {self._row}:
            self._known[formula] = self._of_rows(formula)
            return
        match formula:
            case E.All(terms) | E.Any(terms):
                for term in terms:
                    self._read(term)
            case E.Cmp(op, lhs):
                self._read_comparison(formula, op, lhs)
            case E.Member(value, ranges, inside):
                stretches = [self._between(value, low, high) for low, high in ranges[:_MAX_BOUNDS]]
                if None in stretches or len(ranges) > _MAX_BOUNDS:
                    raise NoStretches("scattered values")
                self._known[formula] = _Stretches(tuple(filter(None, stretches)), inside)
            case _:
                raise NoStretches("another condition")

    def _read_comparison(self, formula: Expr, op: str, lhs: Expr) -> None:
        stretch = self._between(lhs, 0, None if op == ">=" else 0)
        if stretch is not None:
            self._known[formula] = _Stretches((stretch,), op != "!=")
        elif op == ">=" or self._same is not None:
            raise NoStretches("keys in no order")
        else:
            of_row, of_key = self._sides(lhs)
            self._same = _Same(E.Cmp(op, lhs), -of_row, of_key)

    def _sides(self, value: Expr) -> tuple[np.ndarray, np.ndarray]:
        """An integer as u[rows] + v[keys], int64.

        Raises:
            NoStretches: it is no such sum.
        """
        constant, terms = E.split_linear(value)
        sides: dict[str, list[tuple[int, Expr]]] = {self._row: [], self._key: []}
        for factor, term in terms:
            used = E.symbols(term) or {self._row}
            if len(used) > 1 or not used <= sides.keys():
                raise NoStretches("queries and keys together")
            sides[next(iter(used))].append((factor, term))
        of_row = self._of_rows(E.linear(constant, sides[self._row])).astype(np.int64)
        return of_row, self._of_keys(E.linear(0, sides[self._key])).astype(np.int64)

    def _between(
        self, value: Expr, low: int, high: int | None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(first, stop) of the keys for which low <= value <= high, if they are consecutive."""
        of_row, of_key = self._sides(value)
        step = np.diff(of_key)
        if len(step) and step[0] == 1 and (step == 1).all():
            first = np.clip(low - of_key[0] - of_row, 0, self.keys)
            if high is None:
                return first, np.full_like(first, self.keys)
            return first, np.clip(high - of_key[0] - of_row + 1, first, self.keys)
        if len(step) and step[0] == -1 and (step == -1).all():
            stop = np.clip(of_row + of_key[0] - low + 1, 0, self.keys)
            if high is None:
                return np.zeros_like(stop), stop
            return np.clip(of_row + of_key[0] - high, 0, stop), stop
        if (step >= 0).all():
            first = np.searchsorted(of_key, low - of_row, side="left")
            if high is None:
                return first, np.full_like(first, self.keys)
            return first, np.maximum(first, np.searchsorted(of_key, high - of_row, side="right"))
        if (step <= 0).all():
            stop = np.searchsorted(-of_key, of_row - low, side="right")
            if high is None:
                return np.zeros_like(stop), stop
            return np.searchsorted(-of_key, of_row - high, side="left"), stop
        return None

    # ------------------------------------------------------------ row by row

    def _cut(self, rows: slice) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(first, stop, code) of the stretches of these rows, from the first key to the last."""
        ends = [end[rows] for s in self._stretches for pair in s.ends for end in pair]
        count = len(range(self.rows)[rows])
        bounds = [np.zeros(count, np.int64), *_ascending(ends), np.full(count, self.keys)]
        for first, stop in pairwise(bounds):
            code = np.zeros(len(first), dtype=np.int64)
            for bit, known in enumerate(self._known.values()):
                told = known.holds(rows, first) if isinstance(known, _Stretches) else known[rows]
                code |= told.astype(np.int64) << bit
            yield first, stop, code

    def _chunks(self, size: int = 1) -> Iterator[slice]:
        """Yield slices of consecutive rows, each with a multiple of `size` rows except the last."""
        step = max(1, _ROWS // size) * size
        for first in range(0, self.rows, step):
            yield slice(first, min(first + step, self.rows))

    def _codes(self, codes: np.ndarray) -> list[int]:
        if len(self._known) <= _MAX_CODES:
            return np.flatnonzero(np.bincount(codes)).tolist()
        return sorted(set(codes.tolist()))

    def _left(self, code: int) -> Expr:
        """Return the condition on keys if the comparisons have these truth values."""
        told = {part: E.Truth(bool(code >> bit & 1)) for bit, part in enumerate(self._known)}
        return E.transform(self.keep, told.get)

    # ------------------------------------------------------------ counting

    def count(self) -> int:
        """Live pairs."""
        total = 0
        for rows in self._chunks():
            for first, stop, code in self._cut(rows):
                some = np.flatnonzero(stop > first)
                for code_rows in self._codes(code[some]):
                    mine = some[code[some] == code_rows]
                    left = self._left(code_rows)
                    total += self._count(left, mine + rows.start, first[mine], stop[mine])
        return total

    def _count(self, left: Expr, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> int:
        if self._same is None or self._same.comparison not in set(E.walk(left)):
            return self._between_keys(left, low, high)
        same, other = (
            E.substitute(left, {self._same.comparison: E.Truth(told)})
            for told in ((True, False) if self._same.comparison.op == "==" else (False, True))
        )
        first, last = self._same.places(rows, low, high)
        alike = self._between_keys(same, first, last, True)
        return (
            alike
            + self._between_keys(other, low, high)
            - self._between_keys(other, first, last, True)
        )

    def _between_keys(
        self, left: Expr, low: np.ndarray, high: np.ndarray, by_id: bool = False
    ) -> int:
        """Keys low .. high - 1 of every row for which a formula over keys holds; with `by_id`
        places among the keys sorted by identity."""
        if isinstance(left, E.Truth):
            return int((high - low).sum()) if left.value else 0
        if (left, by_id) not in self._sums:
            live = self._of_keys(left)
            if by_id and self._same is not None:
                live = live[self._same.order]
            self._sums[left, by_id] = np.concatenate([[0], np.cumsum(live, dtype=np.int64)])
        sums = self._sums[left, by_id]
        return int((sums[high] - sums[low]).sum())

    # ------------------------------------------------------------ tiles

    def tile_rows(self, tile: TileShape) -> list[RowLists]:
        """All tile rows, exact.

        Raises:
            NoStretches: a stretch is neither live nor dead.
        """
        columns = -(-self.keys // tile.k)
        parts = []
        for rows in self._chunks(tile.q):
            top, count = rows.start // tile.q, -(-(rows.stop - rows.start) // tile.q)
            row, first, stop = self._live(rows)
            runs = _runs(row // tile.q, first, stop, tile, columns, self.rows, self.keys)
            parts.append(expand(runs, top, count, columns))
        return parts

    def _live(self, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, first, stop) of the longest live stretches of these rows."""
        open_ = np.zeros(rows.stop - rows.start, dtype=bool)
        start = np.zeros(len(open_), dtype=np.int64)
        runs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

        def close(these: np.ndarray, stop: np.ndarray) -> None:
            at = np.flatnonzero(these)
            runs.append((at + rows.start, start[at], stop[at]))

        for first, stop, code in self._cut(rows):
            some = stop > first
            live = np.zeros(len(open_), dtype=bool)
            for code_rows in self._codes(code[some]):
                left = self._left(code_rows)
                if not isinstance(left, E.Truth):
                    raise NoStretches("keys decide")
                live |= (code == code_rows) & left.value
            close(some & open_ & ~live, first)
            start = np.where(some & live & ~open_, first, start)
            open_ = np.where(some, live, open_)
        close(open_, np.full(len(open_), self.keys))
        row, first_key, stop_key = (np.concatenate(axis) for axis in zip(*runs, strict=True))
        return row, first_key, stop_key


def _ascending(ends: list[np.ndarray]) -> list[np.ndarray]:
    """These ends, row by row in ascending order."""
    if len(ends) > _FEW:
        return list(np.sort(np.stack(ends), axis=0))
    ends = list(ends)
    for last in range(len(ends) - 1, 0, -1):
        for index in range(last):
            low, high = ends[index], ends[index + 1]
            ends[index], ends[index + 1] = np.minimum(low, high), np.maximum(low, high)
    return ends


def _runs(
    row: np.ndarray, first: np.ndarray, stop: np.ndarray, tile: TileShape, columns: int,
    n_q: int, n_kv: int,
) -> Runs:  # fmt: skip
    """The tiles that stretches touch, full where as many cover one as the tile has rows.

    Args:
        row: tile row of every stretch; those of one query neither overlap nor touch.
        first, stop: its keys.
    """
    width = columns + 1
    begin, end = row * width + first // tile.k, row * width + (stop - 1) // tile.k + 1
    live = _deep(begin, end, lambda places: np.ones(len(places), np.int64))
    whole_first = -(-first // tile.k)
    whole_stop = np.where(stop == n_kv, columns, stop // tile.k)
    some = whole_first < whole_stop
    base = row[some] * width

    def height(places: np.ndarray) -> np.ndarray:
        rows: np.ndarray = np.minimum(tile.q, n_q - places // width * tile.q)
        return rows

    full = _deep(base + whole_first[some], base + whole_stop[some], height)
    places = np.sort(np.concatenate([*live, *full]))
    places = places[np.diff(places, prepend=-1) > 0]
    inside, whole = (
        np.searchsorted(begins, places, side="right") > np.searchsorted(ends, places, side="right")
        for begins, ends in (live, full)
    )
    size = np.diff(places, append=places[-1:])
    kind = np.where(whole, FULL, PARTIAL).astype(np.uint8)
    rows, columns_of, sizes = (
        axis[inside].astype(np.int32) for axis in (places // width, places % width, size)
    )
    return Runs(rows, columns_of, sizes, kind=kind[inside])


def _deep(
    begin: np.ndarray, end: np.ndarray, least: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the begins and ends of stretches, ascending, where intervals begin .. end - 1 are at
    least `least` deep."""
    events = np.concatenate([begin * 2 + 1, end * 2])  # ends come before begins
    events.sort()
    change = np.where(events & 1, 1, -1)
    depth = np.cumsum(change)
    places = events >> 1
    last = np.append(places[1:] != places[:-1], True) if len(places) else np.zeros(0, bool)
    places, depth = places[last], depth[last]
    deep = depth >= least(places)
    before = np.concatenate([[False], deep[:-1]])[: len(deep)]
    return places[deep & ~before], places[~deep & before]


# ------------------------------------------------------------------ by queries or by keys


def count_pairs(keep: Expr, arrays: Arrays, n_q: int, n_kv: int) -> int | None:
    """Live pairs, or None if neither rows nor columns fall into stretches.

    Args:
        keep: over q, k and arrays.
        n_q, n_kv: lengths, at least 1.
    """
    for sizes, names in (((n_q, n_kv), ("q", "k")), ((n_kv, n_q), ("k", "q"))):
        try:
            return Sweep(keep, arrays, *sizes, *names).count()
        except NoStretches:
            continue
    return None


def tile_rows(
    keep: Expr, arrays: Arrays, n_q: int, n_kv: int, tile: TileShape
) -> list[RowLists] | None:
    """All tile rows, exact, or None if rows do not fall into live and dead stretches."""
    try:
        return Sweep(keep, arrays, n_q, n_kv).tile_rows(tile)
    except NoStretches:
        return None
