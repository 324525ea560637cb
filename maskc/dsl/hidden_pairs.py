"""Pairs that a score formula hides: as a mask if integers determine them, otherwise by weight 0.

A score of -inf has weight 0. `where(condition, s, -inf)` is split into the condition and the score
of the other pairs. The part of the condition that a mask can express becomes a mask, so that its
tiles are skipped: comparisons of integer formulas over indices, lengths, parameters and captured
integer arrays. The rest stays in the formula, which returns -inf for its pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, NoReturn

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.data import DataDecl
from maskc.core.errors import MaskcError, ScoreHidesPairs
from maskc.core.expr import Expr, Term, is_condition
from maskc.core.source import SourceLoc
from maskc.dsl.tables import Registry, capturing, element
from maskc.dsl.traced import Traced, settled
from maskc.dsl.tracer import numbered

_INFINITE = math.inf


# ------------------------------------------------------------------ what a formula hides


def _all(*parts: Term | None) -> Term | None:
    """Return the conjunction of conditions; None is a condition that always holds."""
    kept = [part for part in parts if part not in (None, E.ALWAYS)]
    return reduce(partial(S.joined, "and"), kept) if kept else None


def without_hidden(node: S.Real, sign: int = -1) -> tuple[S.Real, Term | None]:
    """Return the formula without hidden pairs, and the condition of the pairs that keep a weight
    (None: all).

    Args:
        node: a formula, or a part of one.
        sign: of the infinity that hides a pair there.
    """

    def hidden(part: S.Real) -> bool:
        return isinstance(part, S.Number) and part.value == sign * _INFINITE

    def joined(function: str, *parts: tuple[S.Real, Term | None]) -> tuple[S.Real, Term | None]:
        kept = _all(*(of_part for _, of_part in parts))
        return (node if kept is None else S.Call(function, tuple(one for one, _ in parts))), kept

    match node:
        case S.Choice(condition, then, other):
            if hidden(other):
                inner, kept = without_hidden(then, sign)
                return inner, _all(condition, kept)
            if hidden(then):
                inner, kept = without_hidden(other, sign)
                return inner, _all(S.negated(condition), kept)
            (one, of_one), (two, of_two) = (without_hidden(x, sign) for x in (then, other))
            if of_one is None and of_two is None:
                return node, None
            first = _all(condition, of_one) or E.ALWAYS
            second = _all(S.negated(condition), of_two) or E.ALWAYS
            return S.Choice(condition, one, two), S.joined("or", first, second)
        case S.Call("add", (left, right)):
            return joined("add", without_hidden(left, sign), without_hidden(right, sign))
        case S.Call("sub", (left, right)):
            return joined("sub", without_hidden(left, sign), without_hidden(right, -sign))
        case S.Call("neg", (value,)):
            return joined("neg", without_hidden(value, -sign))
        case S.Call("mul", (S.Number(factor) as number, value)) if 0 < abs(factor) < _INFINITE:
            inside = without_hidden(value, sign if factor > 0 else -sign)
            return joined("mul", (number, None), inside)
        case S.Call("mul", (value, S.Number(factor) as number)) if 0 < abs(factor) < _INFINITE:
            inside = without_hidden(value, sign if factor > 0 else -sign)
            return joined("mul", inside, (number, None))
        case S.Call("log", (S.Choice(condition, then, other),)) if sign < 0:
            if _is_zero(other):
                return S.Call("log", (then,)), condition
            if _is_zero(then):
                return S.Call("log", (other,)), S.negated(condition)
    return node, None


def _is_zero(part: S.Real) -> bool:
    """Whether its logarithm hides a pair."""
    return part == S.Number(0.0) or (isinstance(part, S.Whole) and part.number == E.ZERO)


def check_finite(node: S.Real, places: Mapping[object, SourceLoc], at: SourceLoc | None) -> None:
    """Raise an error for infinite literals, except where they clearly hide a pair.

    One side of a choice may be -inf, because softmax gives such a score weight 0.

    Raises:
        ScoreHidesPairs: with the line of the part.
    """
    _check_number(node, node, places.get(node, at))
    for part in E.walk(node):
        for inner in part.parts:
            _check_number(inner, part, places.get(part, at))


def _check_number(number: Term, of: Term, at: SourceLoc | None) -> None:
    if not isinstance(number, S.Number) or math.isfinite(number.value):
        return
    if not (isinstance(of, S.Choice) and number.value < 0):
        raise ScoreHidesPairs(f"{number.value:g} in {S.to_score_text(of)}", _HINT, at=at)


_HINT = (
    "write where(condition, s, -inf), or keep pairs by a mask: mc.where(lambda q, k: ...) & mask"
)


# ------------------------------------------------------------------ as a mask


class _NoMask(Exception):
    """A mask cannot express the condition."""


Kept = tuple[Expr, tuple[DataDecl, ...]]
"""A mask's formula and the arrays that it captures."""


def split(
    kept: Term, captured: Mapping[str, Any], defaults: Mapping[str, float | int]
) -> tuple[Kept | None, Term | None]:
    """Split a condition into the part that a mask can express and the rest; None is an empty part.

    Args:
        kept: the pairs that keep a weight.
        captured: arrays that the formula holds, by the names of slots.
        defaults: the parameters' values, by the names of slots.
    """
    said: list[Expr] = []
    left: list[Term] = []
    with capturing() as registry:
        for part in _conjuncts(kept):
            try:
                said.append(_Masks(captured, defaults).formula(part))
            except (_NoMask, MaskcError):
                left.append(part)
    return (_numbered(said, registry) if said else None), _all(*left)


def _numbered(said: list[Expr], registry: Registry) -> Kept:
    return numbered(E.conj(*said), registry)


def _conjuncts(condition: Term) -> Iterator[Term]:
    """The conditions that must all hold."""
    match condition:
        case E.All(terms) | S.Logic("and", terms):
            for term in terms:
                yield from _conjuncts(term)
        case _:
            yield condition


class _Masks:
    """Conditions of a score formula as a mask's formulas."""

    def __init__(self, captured: Mapping[str, Any], defaults: Mapping[str, float | int]) -> None:
        self._captured, self._defaults = captured, defaults

    def formula(self, condition: Term) -> Expr:
        """Return the condition as a formula of a mask.

        Raises:
            _NoMask: it depends on values that a mask does not have.
            MaskcError: a mask cannot capture one of its arrays.
        """
        formula = self._condition(condition)
        if S.B in E.walk(formula):
            raise _NoMask
        return Traced(formula).expr  # which refuses integers beyond 64 bits

    def _condition(self, condition: Term) -> Expr:
        match condition:
            case S.Less(left, right):
                return self._less(left, right)
            case S.Logic("not", (part,)):
                return E.negate(self._condition(part))
            case S.Logic(word, parts):
                build: Callable[..., Expr] = E.conj if word == "and" else E.disj
                return build(*map(self._condition, parts))
            case Expr() if is_condition(condition):
                return E.transform(condition, self._part)
        raise _NoMask

    def _less(self, left: S.Real, right: S.Real) -> Expr:
        """Compare integers with real numbers that are not integers."""
        match left, right:
            case S.Whole(one), S.Whole(two):
                comparison = E.lt(self._integer(one), self._integer(two))
            case S.Whole(one), S.Number(limit) if math.isfinite(limit):
                comparison = E.lt(self._integer(one), E.const(math.ceil(limit)))
            case S.Number(limit), S.Whole(two) if math.isfinite(limit):
                comparison = E.gt(self._integer(two), E.const(math.floor(limit)))
            case _:
                raise _NoMask
        return settled(comparison)

    def _integer(self, number: Expr) -> Expr:
        return E.transform(number, self._part)

    def _part(self, node: Any) -> Expr | None:
        match node:
            case S.Entry(slot, index):
                return self._entry(slot, index)
            case E.Pick(condition, then, other):
                return E.Pick(self._condition(condition), *map(self._integer, (then, other)))
            case E.Cmp(op, lhs) if any(isinstance(part, (S.Entry, E.Pick)) for part in E.walk(lhs)):
                rebuilt = self._integer(lhs)
                compared = E.at_least_zero(rebuilt) if op == ">=" else E.equals_zero(rebuilt)
                return settled(compared if op != "!=" else E.negate(compared))
            case S.Product() | S.Trunc() | S.Test() | S.Real():
                raise _NoMask
        return None

    def _entry(self, slot: str, index: tuple[Expr, ...]) -> Expr:
        """Read an element of a captured array, or a parameter."""
        array = self._captured.get(slot)
        if isinstance(array, S.PlaceTable):  # made anew for each length
            return _refuse()
        if array is not None:
            places = [self._integer(part) for part in index] or [E.ZERO] * array.ndim
            shared = zip(array.shape, places, strict=True)
            return element(array, [E.ZERO if size == 1 else part for size, part in shared])
        default = self._defaults.get(slot)
        if index or not isinstance(default, int):
            return _refuse()
        return E.Param(slot, default)


def _refuse() -> NoReturn:
    raise _NoMask
