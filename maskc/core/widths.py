"""Bounds on everything that a formula computes, to prove that 32 bits are enough, or 64.

Bounds are formulas too: a symbol or an array element in one stands for its largest magnitude. The
compiler finds them once, as short text; a call only puts its lengths, numbers and extremes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

from maskc.core import expr as E
from maskc.core.evaluator import Env, Evaluator
from maskc.core.expr import Expr
from maskc.core.expr_text import compared, nonnegative

INT32, INT64 = (1 << 31) - 1, (1 << 63) - 1
SAFE = (1 << 62) - 1
"""Largest magnitude of values computed in 64 bits: the sum of two such values still fits."""
INDEX = 1 << 30
"""Lengths and parameters are at most this."""
_FAR = 1 << 40
"""Constants beyond it are compared with everything that the other terms can be."""


def plain_integer(value: Any) -> int | None:
    """The value of an integer of Python or of a library; None for anything else.

    Booleans are refused. torch counts them among integers, so a boolean tensor of flags would
    otherwise pass for the ids 0 and 1.
    """
    try:
        number = index(value)
    except TypeError:
        return None
    is_flag = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    return None if is_flag else number


ID_LIST = "ids:"
"""Prefix of the names of lists of ids that the runtime makes, as bits. Arrays of a call have no
colon in their names."""


def is_list(array: str) -> bool:
    """Whether an array of a lifted formula is a list of ids that the runtime makes, as bits."""
    return array.startswith(ID_LIST)


def extreme(array: str) -> Expr:
    """The symbol for the largest magnitude in an array."""
    return E.Load(array, (E.ZERO,))


@lru_cache(maxsize=1 << 13)
def magnitude(expr: Expr) -> Expr:
    """A bound on |value| of an integer formula."""
    match expr:
        case E.Sum(constant, terms):
            return E.linear(abs(constant), ((abs(c), magnitude(t)) for c, t in terms))
        case E.FloorDiv(num, den):
            up = 0 if nonnegative(num) else den - 1
            return E.floordiv(E.add(magnitude(num), E.const(up)), den)
        case E.Mod(_, den):
            return E.const(den - 1)
        case E.Min(args) | E.Max(args):
            return E.maximum(*map(magnitude, args))
        case E.Load(array):
            return E.const(1) if is_list(array) else extreme(array)
        case E.Pick(_, then, other):
            return E.maximum(magnitude(then), magnitude(other))
    return expr


@lru_cache(maxsize=1 << 13)
def reach(expr: Expr) -> tuple[Expr, ...]:
    """Return bounds on all intermediate values of a formula in its printed form, in which both
    sides of a comparison are separate. Plain array elements do not count. Each bound comes once,
    as subformulas occur many times."""
    return tuple(dict.fromkeys(_reach(expr)))


def _reach(expr: Expr) -> Iterator[Expr]:
    match expr:
        case E.Cmp(op, lhs):
            left, _, right = compared(op, lhs)
            yield from reach(left)
            yield from reach(right)
            return
        case E.Sum():
            yield magnitude(expr)
        case E.FloorDiv(_, den) | E.Mod(_, den):
            yield E.const(den)
        case E.Member(_, ranges):
            yield E.const(max(-ranges[0][0], ranges[-1][1]))
    for part in expr.parts:
        yield from reach(part)


def largest(bounds: Iterable[Expr]) -> Expr:
    """One bound that is at least as large as each of them."""
    constants: dict[tuple[tuple[int, Expr], ...], int] = {}
    for bound in bounds:
        constant, terms = E.split_linear(bound)
        constants[terms] = max(constant, constants.get(terms, constant))
    kept: list[_Bound] = []
    for terms, constant in constants.items():
        new = _Bound(constant, {term: factor for factor, term in terms})
        if not any(bound.covers(new) for bound in kept):
            kept = [bound for bound in kept if not new.covers(bound)] + [new]
    if not kept:
        return E.ZERO
    return E.maximum(*(E.linear(b.constant, ((c, t) for t, c in b.terms.items())) for b in kept))


class _Bound(NamedTuple):
    """A sum of terms, with a positive factor each."""

    constant: int
    terms: dict[Expr, int]

    def covers(self, other: _Bound) -> bool:
        """Whether it is at least another, term by term."""
        if self.constant < other.constant:
            return False
        get = self.terms.get
        return all(get(term, 0) >= factor for term, factor in other.terms.items())


class _Numbers(Evaluator):
    """Python's integers; an array has one number."""

    def extreme(self, least: bool, values: list[Any]) -> Any:
        return min(values) if least else max(values)

    def element(self, array: str, index: tuple[Any, ...], env: Env) -> Any:
        return env[array]


_NUMBERS = _Numbers()


def number(expr: Expr, values: Mapping[str, int]) -> int:
    """The exact value of a formula; the value of an array is the one of its name in `values`."""
    return int(_NUMBERS.value(expr, values))


def lowest(expr: Expr) -> Expr:
    """The least value of a formula over q and k that reads no array, for given lengths."""
    return _end(expr, high=False)


def highest(expr: Expr) -> Expr:
    """The greatest value, likewise."""
    return _end(expr, high=True)


def _end(expr: Expr, high: bool) -> Expr:
    match expr:
        case E.Sum(constant, terms):
            return E.linear(constant, ((c, _end(t, high == (c > 0))) for c, t in terms))
        case E.Sym("q"):
            return E.sub(E.N_Q, E.const(1)) if high else E.ZERO
        case E.Sym("k"):
            return E.sub(E.N_KV, E.const(1)) if high else E.ZERO
        case E.FloorDiv(num, den):
            return E.floordiv(_end(num, high), den)
        case E.Mod(_, den):
            return E.const(den - 1) if high else E.ZERO
        case E.Min(args):
            return E.minimum(*(_end(arg, high) for arg in args))
        case E.Max(args):
            return E.maximum(*(_end(arg, high) for arg in args))
    return expr


def widest(expr: Expr) -> int:
    """The number of largest magnitude that a formula spells, subformulas aside."""
    match expr:
        case E.Cmp(_, lhs):
            return widest(lhs)
        case E.Sum(constant, terms):
            return max((constant, *(c for c, _ in terms)), key=abs)
        case E.Member(_, ranges):
            return max(ranges[0][0], ranges[-1][1], key=abs)
        case E.FloorDiv(_, den) | E.Mod(_, den):
            return den
        case E.Param(_, default):
            return default
    return 0


def settled(keep: Expr) -> Expr:
    """The mask without comparisons that no length, parameter or array of 32 bits could change."""

    def decided(node: Expr) -> Expr | None:
        if isinstance(node, E.Cmp):
            constant, terms = E.split_linear(node.lhs)
            rest = E.linear(0, terms)
            if abs(constant) > _FAR and abs(constant) > number(magnitude(rest), _Most()):
                return E.Truth(constant > 0 if node.op == ">=" else node.op == "!=")
        if isinstance(node, E.Member):
            most = max(_FAR, number(magnitude(node.value), _Most()))
            near = tuple(pair for pair in node.ranges if pair[1] >= -most and pair[0] <= most)
            if near == node.ranges:
                return None
            value, ends = node.value, [(max(a, -most), min(b, most)) for a, b in near]
            member = E.disj(*(E.conj(E.ge(value, E.const(a)), E.le(value, E.const(b)))
                             for a, b in ends))  # fmt: skip
            if len(ends) > 1:
                member = E.Member(value, tuple(ends))
            return member if node.inside else E.negate(member)
        return None

    return E.transform(keep, decided)


class _Most(dict[str, int]):
    """The largest magnitude of anything that a name may stand for."""

    def __missing__(self, _: str) -> int:
        return INT32 + 1

    def get(self, name: str, _: object = None) -> int:
        return self[name]
