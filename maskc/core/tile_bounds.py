"""Bounds of a formula on a box of queries and keys: abstract interpretation, once for all
languages.

An integer becomes the least and the greatest value that it may have on the box, a condition whether
it may hold for some pair and whether it must hold for all. Sums are exact for affine formulas over
the box, as a normal form has every atom once; conditions follow Kleene's logic. Nothing is ever
wrong: what is lost is only told as "may, but need not".

The walk does no arithmetic itself. `Operations` does it, on NumPy arrays or by writing C or CUDA.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple, Protocol

from maskc.core import expr as E
from maskc.core.expr import Expr

Value = Any
"""A number or a truth value in the language of the operations."""


class Span(NamedTuple):
    """The values of an integer formula on a box."""

    low: Value
    high: Value


class Verdict(NamedTuple):
    """The truth of a condition on a box."""

    may: Value
    """Whether it may hold for some pair."""
    must: Value
    """Whether it certainly holds for every pair."""


class Operations(Protocol):
    """Arithmetic of one language."""

    def constant(self, value: int) -> Value:
        """A number."""

    def truth(self, value: bool) -> Value:
        """A truth value."""

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""

    def times(self, factor: int, a: Value) -> Value:
        """factor * a."""

    def floordiv(self, a: Value, den: int) -> Value:
        """floor(a / den), den >= 2."""

    def least(self, a: Value, b: Value) -> Value:
        """The lesser of two."""

    def greatest(self, a: Value, b: Value) -> Value:
        """The greater of two."""

    def at_most(self, a: Value, b: Value) -> Value:
        """Whether a <= b."""

    def equal(self, a: Value, b: Value) -> Value:
        """Whether a == b."""

    def both(self, a: Value, b: Value) -> Value:
        """Whether both hold."""

    def either(self, a: Value, b: Value) -> Value:
        """Whether one of them holds."""

    def negation(self, a: Value) -> Value:
        """Whether it does not hold."""

    def choose(self, condition: Value, a: Value, b: Value) -> Value:
        """The number a where the condition holds, else b."""


class Leaves(Protocol):
    """Bounds of symbols and arrays on a box."""

    def symbol(self, name: str) -> Span:
        """The values of q, k or another symbol."""

    def load(self, node: E.Load, index: tuple[Span, ...]) -> Span:
        """The values of an array between the bounds of its indices."""

    def member(self, value: Span, ranges: tuple[tuple[int, int], ...]) -> Verdict:
        """Whether a value lies in one of the closed ranges, which ascend."""


class TileBounds:
    """The walk over formulas, for one box or for many at a time."""

    def __init__(self, do: Operations, leaves: Leaves) -> None:
        self._do, self._leaves = do, leaves

    # ------------------------------------------------------------ integers

    def integer(self, expr: Expr) -> Span:
        """The least and the greatest value of an integer formula."""
        do = self._do
        match expr:
            case E.Sum(constant, terms):
                return self._total(constant, terms)
            case E.Sym(name):
                return self._leaves.symbol(name)
            case E.FloorDiv(num, den):
                low, high = self.integer(num)
                return Span(do.floordiv(low, den), do.floordiv(high, den))
            case E.Mod(num, den):
                return self._remainder(self.integer(num), den)
            case E.Min(args):
                return self._each(do.least, args)
            case E.Max(args):
                return self._each(do.greatest, args)
            case E.Load(_, index):
                return self._leaves.load(expr, tuple(map(self.integer, index)))
        raise TypeError(f"not an integer formula over a box: {expr!r}")

    def _each(self, pick: Any, args: tuple[Expr, ...]) -> Span:
        spans = list(map(self.integer, args))
        return Span(
            reduce(pick, (span.low for span in spans)), reduce(pick, (span.high for span in spans))
        )

    def _total(self, constant: int, terms: tuple[tuple[int, Expr], ...]) -> Span:
        """constant + sum of coefficient * term."""
        do, ends = self._do, []
        for factor, term in terms:
            low, high = self.integer(term)
            if factor < 0:
                low, high = high, low
            ends.append(
                (low, high) if factor == 1 else (do.times(factor, low), do.times(factor, high))
            )
        if constant or not ends:
            ends.append((do.constant(constant),) * 2)
        return Span(
            reduce(do.add, (low for low, _ in ends)), reduce(do.add, (high for _, high in ends))
        )

    def _remainder(self, num: Span, den: int) -> Span:
        """The remainder: exact where it does not wrap."""
        do = self._do
        whole = do.floordiv(num.low, den)
        straight = do.equal(whole, do.floordiv(num.high, den))
        base = do.times(-den, whole)
        return Span(
            do.choose(straight, do.add(num.low, base), do.constant(0)),
            do.choose(straight, do.add(num.high, base), do.constant(den - 1)),
        )

    # ------------------------------------------------------------ conditions

    def condition(self, expr: Expr) -> Verdict:
        """Whether a condition may hold, and whether it must."""
        do = self._do
        match expr:
            case E.Truth(value):
                return Verdict(do.truth(value), do.truth(value))
            case E.Cmp(">=", lhs):
                left, right = self._sides(lhs)
                return Verdict(do.at_most(right.low, left.high), do.at_most(right.high, left.low))
            case E.Cmp(op, E.Mod(num, den)):
                truth = self._divides(self.integer(num), den)
                return truth if op == "==" else self._opposite(truth)
            case E.Cmp(op, lhs):
                truth = self._equal(*self._sides(lhs))
                return truth if op == "==" else self._opposite(truth)
            case E.Member(value, ranges, inside):
                truth = self._leaves.member(self.integer(value), ranges)
                return truth if inside else self._opposite(truth)
            case E.All(terms):
                return self._join(do.both, terms)
            case E.Any(terms):
                return self._join(do.either, terms)
        raise TypeError(f"not a condition over a box: {expr!r}")

    def _join(self, join: Any, terms: tuple[Expr, ...]) -> Verdict:
        truths = list(map(self.condition, terms))
        return Verdict(
            reduce(join, (truth.may for truth in truths)),
            reduce(join, (truth.must for truth in truths)),
        )

    def _opposite(self, verdict: Verdict) -> Verdict:
        return Verdict(self._do.negation(verdict.must), self._do.negation(verdict.may))

    def _sides(self, lhs: Expr) -> tuple[Span, Span]:
        """Split `lhs` into left - right with nonnegative coefficients. 32-bit elements that are
        only compared are then never subtracted from each other."""
        constant, terms = E.split_linear(lhs)
        left = tuple(pair for pair in terms if pair[0] > 0)
        right = tuple((-factor, term) for factor, term in terms if factor < 0)
        return self._total(max(constant, 0), left), self._total(max(-constant, 0), right)

    def _equal(self, a: Span, b: Span) -> Verdict:
        do = self._do
        meet = do.both(do.at_most(a.low, b.high), do.at_most(b.low, a.high))
        same = do.both(do.at_most(a.high, b.low), do.at_most(b.high, a.low))
        return Verdict(meet, same)

    def _divides(self, num: Span, den: int) -> Verdict:
        """Whether a multiple of `den` lies between the bounds, and whether nothing else does."""
        do = self._do
        last = do.times(den, do.floordiv(num.high, den))
        return Verdict(
            do.at_most(num.low, last),
            do.both(do.at_most(num.high, num.low), do.equal(last, num.high)),
        )
