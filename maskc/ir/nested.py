"""Unions of bands of distances inside residue classes, taken apart by arithmetic.

A term {low <= d <= high, d mod s == r} over the distance d of a query's position to a key owns what
no term of a smaller stride owns. A term whose stride divides s holds a whole interval of the class,
or nothing of it: what is left are intervals again. Exponential dilation and its like are such
unions; isl's cost doubles with every term, this one's does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.pieces_lattice import T_K, T_Q, C
from maskc.ir.types import Band, Lattice, Piece, PieceKind, Span

MANY = 6
"""Residues in a formula up to which isl is as fast."""

_POSITION = E.linear(0, ((1, E.Q), (1, E.N_KV), (-1, E.N_Q)))


@dataclass(frozen=True)
class _Distances:
    """The distances low <= d <= high with d mod stride == rest; both ends have that residue."""

    low: int
    high: int
    stride: int
    rest: int

    def within(self, low: int, high: int) -> _Distances:
        """The distances that lie in low .. high."""
        first = low + (self.rest - low) % self.stride
        return replace(self, low=first, high=high - (high - self.rest) % self.stride)

    def meets(self, other: _Distances) -> bool:
        """Whether the two may share a distance."""
        common = gcd(self.stride, other.stride)
        disjoint = self.high < other.low or other.high < self.low
        return not disjoint and (self.rest - other.rest) % common == 0

    def without(self, other: _Distances) -> list[_Distances] | None:
        """The distances without another's; None if the rest is not a union of intervals."""
        if not self.meets(other):
            return [self]
        if self.stride % other.stride:
            return None
        rest = (self.within(self.low, other.low - 1), self.within(other.high + 1, self.high))
        return [part for part in rest if part.low <= part.high]


@dataclass(frozen=True)
class Nested:
    """A union of such terms, ascending stride."""

    position: Expr
    """The query's position: q, or q + n_kv - n_q."""
    terms: tuple[tuple[Expr, _Distances], ...]
    left: tuple[tuple[_Distances, ...], ...]
    """For every term, the distances that the terms before it leave."""

    def simplified(self) -> Expr:
        """The union without terms that others hold."""
        return E.disj(
            *(term for (term, _), left in zip(self.terms, self.left, strict=True) if left)
        )

    def pieces(self) -> list[Piece]:
        """Disjoint pieces, one for every interval that is left; bands that touch are one piece."""
        parts = sorted((one for left in self.left for one in left), key=lambda one: one.low)
        bands: list[_Distances] = []
        for part in parts:
            if part.low < part.high and part.stride > 1:
                continue
            if bands and bands[-1].high + 1 == part.low:
                bands[-1] = replace(bands[-1], high=part.high)
            else:
                bands.append(_Distances(part.low, part.high, 1, 0))
        lattices = [part for part in parts if part.low < part.high and part.stride > 1]
        return [*map(self._band, bands), *map(self._lattice, lattices)]

    def _lattice(self, distances: _Distances) -> Piece:
        s, r, distance = distances.stride, distances.rest, E.sub(self.position, E.K)
        keep = E.conj(
            E.eq(E.mod(distance, s), E.const(r)), _between(distance, distances.low, distances.high)
        )
        queries = E.linear(r, [(s, T_Q), (1, C), (1, E.Q), (-1, self.position)])
        inside = _between(E.sub(T_Q, T_K), (distances.low - r) // s, (distances.high - r) // s)
        keys = E.linear(0, [(s, T_K), (1, C)])
        detail = Lattice(s, None, None, r, 1, queries, keys, inside)
        return Piece(keep, PieceKind.lattice, detail)

    def _band(self, distances: _Distances) -> Piece:
        """The keys from position - high to position - low, where there are some."""
        keep = _between(E.sub(self.position, E.K), distances.low, distances.high)
        first, last = (
            E.sub(self.position, E.const(end)) for end in (distances.high, distances.low)
        )
        rows = E.ge(last, E.ZERO)
        if distances.low < 0:
            rows = E.conj(rows, E.lt(first, E.N_KV))
        if distances.low < distances.high:
            first = E.maximum(first, E.ZERO)
            last = E.minimum(last, E.sub(E.N_KV, E.const(1))) if distances.low < 0 else last
        return Piece(keep, PieceKind.band, Band((Span(rows, first, last),), True))


def _between(value: Expr, low: int, high: int) -> Expr:
    if low == high:
        return E.eq(value, E.const(low))
    return E.conj(E.ge(value, E.const(low)), E.le(value, E.const(high)))


def nested(keep: Expr) -> Nested | None:
    """The formula as such a union of many residues; None if it is anything else."""
    terms = keep.terms if isinstance(keep, E.Any) else ()
    if len(terms) <= MANY:
        return None
    for position in (_POSITION, E.Q):
        read = [(term, _distances(term, E.sub(position, E.K))) for term in terms]
        known = [(term, distances) for term, distances in read if distances is not None]
        if len(known) == len(terms):
            ordered = sorted(known, key=lambda pair: (pair[1].stride, pair[1].low, pair[0].key))
            if sum(distances.stride > 1 for _, distances in ordered) <= MANY:
                return None
            left = _apart(distances for _, distances in ordered)
            return None if left is None else Nested(position, tuple(ordered), left)
    return None


def _distances(term: Expr, distance: Expr) -> _Distances | None:
    """A conjunction of two bounds and at most one residue of the distance."""
    lows, highs, classes = [], [], [(1, 0)]
    for part in E.conjuncts(term):
        match part:
            case E.Cmp(">=", lhs):
                constant = E.split_linear(lhs)[0]
                if E.sub(lhs, E.const(constant)) == distance:
                    lows.append(-constant)
                elif E.add(lhs, distance) == E.const(constant):
                    highs.append(constant)
                else:
                    return None
            case E.Cmp("==", lhs):
                constant, inner = E.split_linear(lhs)
                match inner:
                    case ((1, E.Mod(num, den)),) if num == distance and 0 <= -constant < den:
                        classes.append((den, -constant))
                    case _:
                        return None
            case _:
                return None
    if not lows or not highs or len(classes) > 2:
        return None
    whole = _Distances(max(lows), min(highs), *classes[-1])
    terms = whole.within(whole.low, whole.high)
    return terms if terms.low <= terms.high else None


def _apart(terms: Iterable[_Distances]) -> tuple[tuple[_Distances, ...], ...] | None:
    """Each term without those before it; None if the rest is not a union of intervals."""
    before: list[_Distances] = []
    groups: list[tuple[_Distances, ...]] = []
    for term in terms:
        left = [term]
        for other in before:
            parts = [part.without(other) for part in left]
            if None in parts:
                return None
            left = [one for part in parts for one in part or ()]
        groups.append(tuple(left))
        before.append(term)
    return tuple(groups)
