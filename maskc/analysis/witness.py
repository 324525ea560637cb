"""Points where two masks differ, found among integer sets with an unknown for everything read.

A formula reads few elements of its arrays at one pair: each is an integer that may have any value
its kind of data allows, so isl finds lengths, a pair and these elements together. Whatever the
conditions here leave out (walks of a tree, a seeded draw, what a selection chooses) makes the
search wider, never narrower: no point proves that there is no difference, a point is a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import islpy as isl
import numpy as np

from maskc.core import expr as E
from maskc.core.data import BY_PAIR, DataDecl, DataKind
from maskc.core.expr import Expr
from maskc.ir.sets import TooHard, Universe, budget, convex_parts

_LARGEST = 1 << 31
"""A magnitude that no element reaches, because arrays hold 32-bit integers."""
_MAX_VALUES = 64
"""Captured arrays of at most this many elements are used with their values; larger ones may have
any values."""
_MAX_CELLS = 10
"""Limit on the elements read at one pair; with more, isl is not used."""


@dataclass(frozen=True)
class CandidatePair:
    """Lengths, a pair, and the elements that are read there."""

    n_q: int
    n_kv: int
    q: int
    k: int
    params: Mapping[str, int]
    cells: Mapping[str, Mapping[tuple[int, ...], int]]
    """The values of elements, by array and index."""
    paired: bool
    """Whether queries and keys have separate documents, instead of one array for all tokens."""


@dataclass(frozen=True)
class Question:
    """Two formulas of one head, with known lengths, parameters and arrays."""

    left: Expr
    right: Expr
    decls: tuple[DataDecl, ...]
    """The declarations of all arrays that the formulas read."""
    one_way: bool = False
    """Whether only pairs of `left` count that `right` lacks."""
    n_q: int | None = None
    n_kv: int | None = None
    """Lengths, where they are given; both or none."""
    inside: tuple[range | None, range | None] = (None, None)
    """The queries and keys that both formulas hold for; None: any number."""
    params: tuple[tuple[str, int], ...] = ()
    """The values of parameters that are given."""


def candidates(question: Question) -> Iterator[CandidatePair]:
    """Points where the formulas may differ, the simplest first.

    Simple points have equal lengths, one array of all tokens for documents, parameters as they are
    written, and elements from 0 on.
    """
    written = {**E.params(question.left), **E.params(question.right)}
    given = dict(question.params)
    free = bool(set(written).difference(given))
    for (paired, square), as_written in product(
        _ways(question), (True, False) if free else (True,)
    ):
        known = tuple({**(written if as_written else {}), **given}.items())
        for low in (0, -_LARGEST):
            if (least := _least(question, known, paired, square, low)) is not None:
                yield least
                break


@lru_cache(maxsize=1 << 8)  # objects of islpy leave memory behind: ask once for each question
def _least(
    question: Question, params: tuple[tuple[str, int], ...], paired: bool, square: bool | None,
    low: int,
) -> CandidatePair | None:  # fmt: skip
    space = _Space(question, dict(params), paired, square)
    return space.least(low) if space.fits else None


@lru_cache(maxsize=1 << 8)
def proved(question: Question) -> bool:
    """Whether it is proved that the formulas are equal for all lengths, parameters and data."""
    spaces = [_Space(question, dict(question.params), *way) for way in _ways(question)]
    return all(space.fits and space.empty() for space in spaces)


def _ways(question: Question) -> list[tuple[bool, bool | None]]:
    """Return the kinds of calls to consider.

    Returns:
        Pairs: whether documents of queries and of keys are a pair, which they are only where
            lengths differ; and whether lengths are equal, None if they are given.
    """
    paired = any(decl.kind is DataKind.documents for decl in question.decls)
    ways: list[tuple[bool, bool | None]]
    if question.n_q is None:
        ways = [(False, True), (False, False)]
        return [*ways, (True, False)] if paired else ways
    ways = [(False, None)]
    return [*ways, (True, None)] if paired and question.n_q != question.n_kv else ways


class _Space:
    """The integer points of one way to look for a difference."""

    def __init__(
        self, question: Question, params: Mapping[str, int], paired: bool, square: bool | None
    ) -> None:
        self._question, self._paired, self._square = question, paired, square
        self._known: dict[Expr, Expr] = {}
        for node in {*E.walk(question.left), *E.walk(question.right)}:
            if isinstance(node, E.Param) and node.name in params:
                self._known[node] = E.const(params[node.name])
        if question.n_q is not None and question.n_kv is not None:
            self._known |= {E.N_Q: E.const(question.n_q), E.N_KV: E.const(question.n_kv)}
        elif square:
            self._known[E.N_KV] = E.N_Q
        self._params = params
        self._cells: dict[E.Sym, tuple[str, tuple[Expr, ...]]] = {}
        self._sides = self._read(question.left), self._read(question.right)
        self._free = sorted(
            node.name for node in {n for side in self._sides for n in E.walk(side)}
            if isinstance(node, E.Param)
        )  # fmt: skip
        cells = [cell.name for cell in self._cells]
        names = [name for name in ("n_q", "n_kv") if E.Sym(name) not in self._known]
        self._names = (*names, *dict.fromkeys(self._free), "q", "k", *cells)
        self.fits = len(cells) <= _MAX_CELLS
        """Whether isl is asked at all."""

    def _read(self, formula: Expr) -> Expr:
        """Replace each element that a formula reads by a symbol, and known elements by numbers."""

        def leaf(node: Expr) -> Expr | None:
            if not isinstance(node, E.Load):
                return self._known.get(node)
            place = node.array, tuple(self._read(part) for part in node.index)
            same = (cell for cell, known in self._cells.items() if known == place)
            cell = next(same, None) or E.Sym(f"_cell{len(self._cells)}")
            self._cells[cell] = place
            return cell

        return E.transform(formula, leaf)

    # -------------------------------------------------------------- conditions

    def _conditions(self, least: int) -> Iterator[Expr]:
        """The conditions on lengths, pairs and elements from `least` on, whatever is given."""
        n_q, n_kv = self._read(E.N_Q), self._read(E.N_KV)
        yield from (E.ge(E.Q, E.ZERO), E.lt(E.Q, n_q), E.ge(E.K, E.ZERO), E.lt(E.K, n_kv))
        if self._square is False:
            yield E.ne(n_q, n_kv)
        for length, inside in zip((n_q, n_kv), self._question.inside, strict=True):
            if inside is not None:
                yield from (E.ge(length, E.const(inside.start)), E.lt(length, E.const(inside.stop)))
        yield from (E.ge(E.Param(name, 0), E.ZERO) for name in self._free)
        decl_of = {name: decl for decl in self._question.decls for name in decl.arrays}
        for cell, (array, index) in self._cells.items():
            decl = decl_of[array]
            low, high = _values(decl)
            low = max(low, least) if decl.from_caller else low
            yield from (E.ge(cell, E.const(low)), E.le(cell, E.const(high)))
            if decl.values:
                yield from _captured(decl, cell, index, n_q, n_kv)
        for (one, a), (other, b) in combinations(self._cells.items(), 2):
            yield self._alike(decl_of[a[0]], one, a, other, b)
        yield from self._trees()

    def _alike(
        self, decl: DataDecl, one: Expr, a: tuple[str, tuple[Expr, ...]], other: Expr,
        b: tuple[str, tuple[Expr, ...]],
    ) -> Expr:  # fmt: skip
        """The condition that elements of one index of one array are equal."""
        (array, first), (second_array, second) = a, b
        if array != second_array:
            shared = decl.kind is DataKind.documents and not self._paired
            if not shared or {array, second_array} != set(decl.arrays):
                return E.ALWAYS
            if not decl.from_start:  # the last query is the last token
                ahead = self._read(E.sub(E.N_KV, E.N_Q))
                first, second = (
                    (E.add(index[0], ahead) if name == decl.arrays[0] else index[0],)
                    for name, index in (a, b)
                )
        unequal = (E.ne(x, y) for x, y in zip(first, second, strict=True))
        return E.disj(E.eq(one, other), *unequal)

    def _trees(self) -> Iterator[Expr]:
        """The conditions on a tree's elements of one query and one key.

        Walks enter each token once and leave it later.
        """
        at = {array: (cell, index) for cell, (array, index) in self._cells.items()}
        for decl in (d for d in self._question.decls if d.kind is DataKind.tree):
            tin, tout, of_q = (at.get(name) for name in decl.arrays)
            if tin and tout:
                yield E.lt(tin[0], tout[0])
            if tin and of_q:
                (entered, (query,)), (key_entered, (key,)) = of_q, tin
                ahead = E.ZERO if decl.from_start else self._read(E.sub(E.N_KV, E.N_Q))
                unequal = E.ne(E.add(query, ahead), key)
                same = E.eq(entered, key_entered)
                yield E.disj(E.conj(unequal, E.negate(same)), E.conj(E.negate(unequal), same))

    # -------------------------------------------------------------- points

    def _difference(self, least: int) -> isl.Set:
        universe = Universe(self._names, ())
        inside = isl.Set.universe(universe.space)
        for condition in self._conditions(least):
            inside = inside.intersect(universe.set(self._named(condition)))
        left, right = (universe.set(self._named(side)).intersect(inside) for side in self._sides)
        difference = left.subtract(right)
        return difference if self._question.one_way else difference.union(right.subtract(left))

    def _named(self, formula: Expr) -> Expr:
        """The names of dimensions; parameters are dimensions like others."""
        names: dict[Expr, Expr] = {
            p: E.Sym(p.name) for p in E.walk(formula) if isinstance(p, E.Param)
        }
        return E.substitute(formula, names) if names else formula

    def empty(self) -> bool:
        """Whether it is proved that there is no point."""
        try:
            with budget():
                return bool(self._difference(-_LARGEST).is_empty())
        except TooHard:
            return False

    def least(self, low: int) -> CandidatePair | None:
        """The point of least lengths, then of the first query and key, where elements that a call
        passes are at least `low`; None if there is none, or isl does not find it."""
        try:
            with budget():
                values = _first(self._difference(low), self._names)
        except TooHard:
            return None
        return None if values is None else self._candidate(values)

    def _candidate(self, values: dict[str, int]) -> CandidatePair:
        from maskc.core.evaluator import evaluate

        known = {node.name: number for node, to in self._known.items()
                 if isinstance(node, E.Sym) and (number := E.as_const(to)) is not None}  # fmt: skip
        values = {**known, **values}
        values.setdefault("n_kv", values["n_q"])
        cells: dict[str, dict[tuple[int, ...], int]] = {}
        for cell, (array, index) in self._cells.items():
            place = tuple(int(evaluate(self._named(part), values)) for part in index)
            cells.setdefault(array, {})[place] = values[cell.name]
        params = {**self._params, **{name: values[name] for name in self._free}}
        return CandidatePair(
            values["n_q"], values["n_kv"], values["q"], values["k"], params, cells, self._paired
        )


def _first(points: isl.Set, names: Sequence[str]) -> dict[str, int] | None:
    """The first point in the order of its coordinates, which all have a lower bound; None if
    there is none.

    One coordinate after the other, and one convex part at a time. isl's lexmin takes minutes for
    some grids, and counts few operations meanwhile, so that no budget stops it.
    """
    parts = convex_parts(points)
    if not parts:
        return None
    values = {}
    for number, name in enumerate(names):
        lows = [int(part.dim_min_val(number).to_python()) for part in parts]
        values[name] = least = min(lows)
        at_least = isl.Val.int_from_si(isl.DEFAULT_CONTEXT, least)
        parts = [
            part.fix_val(isl.dim_type.set, number, at_least)
            for part, low in zip(parts, lows, strict=True) if low == least
        ]  # fmt: skip
    return values


def _values(decl: DataDecl) -> tuple[int, int]:
    """The smallest and the largest element that a call may give."""
    if decl.kind is DataKind.flags or decl.kind in BY_PAIR:
        return 0, 1
    return -_LARGEST, _LARGEST


def _captured(
    decl: DataDecl, cell: Expr, index: Sequence[Expr], n_q: Expr, n_kv: Expr
) -> Iterator[Expr]:
    """An array that is known is read where it has elements, and a table fits its lengths."""
    for part, size in zip(index, decl.shape, strict=True):
        yield from (E.ge(part, E.ZERO), E.lt(part, E.const(size)))
    if decl.kind is DataKind.table:
        for length, count in zip((n_q, n_kv), decl.shape, strict=True):
            filled = E.floordiv(E.add(length, E.const(decl.block - 1)), decl.block)
            yield E.eq(filled, E.const(count))
    values = decl.array
    if values.size <= _MAX_VALUES:
        yield E.disj(*(
            E.conj(
                E.eq(cell, E.const(int(value))),
                *(E.eq(part, E.const(i)) for part, i in zip(index, place, strict=True)),
            )
            for place, value in np.ndenumerate(values)
        ))  # fmt: skip
