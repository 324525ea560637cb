"""The value of a formula at every pair of a mask, node by node in plain NumPy.

It shares no code with the evaluator of the compiler, which is tested against it.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from maskc.core import expr as E
from maskc.core.errors import DataRange
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc

Scope = dict[str, np.ndarray]
"""int64 values that broadcast to [n_q, n_kv] by symbol and parameter name; arrays by name."""


class Values:
    """The values of formulas in a scope; score formulas add nodes of their own."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def integer(self, expr: Expr, outside: list[np.ndarray]) -> np.ndarray:
        """int64, broadcasting to [n_q, n_kv].

        Parameters missing from the scope take their defaults.

        Args:
            outside: where an array is read outside its bounds, the value is any element, and
                booleans that say so for every pair join this list.
        """
        match expr:
            case E.Sum(constant, ()):
                return np.asarray(constant, dtype=np.int64)
            case E.Sum(constant, terms):
                total: np.ndarray = reduce(np.add, (c * self.integer(t, outside) for c, t in terms))
                return total + constant
            case E.Sym(name):
                return self.scope[name]
            case E.Param(name, default):
                return self.scope.get(name, np.asarray(default, dtype=np.int64))
            case E.FloorDiv(num, den):
                quotient: np.ndarray = np.floor_divide(self.integer(num, outside), den)
                return quotient
            case E.Mod(num, den):
                value = self.integer(num, outside)
                rest: np.ndarray = value - den * np.floor_divide(value, den)
                return rest
            case E.Min(args) | E.Max(args):
                pick = np.minimum if isinstance(expr, E.Min) else np.maximum
                return reduce(pick, (self.integer(arg, outside) for arg in args))
            case E.Load(array, index):
                read = [self.integer(part, outside) for part in index]
                return _element(self.scope[array], read, outside)
        raise TypeError(f"not an integer formula: {expr!r}")

    def truth(self, expr: E.Term) -> tuple[np.ndarray, np.ndarray]:
        """Whether a condition may hold, and whether it must."""
        if isinstance(expr, (E.All, E.Any)):
            join = np.logical_and if isinstance(expr, E.All) else np.logical_or
            may, must = zip(*map(self.truth, expr.terms), strict=True)
            return reduce(join, may), reduce(join, must)
        outside: list[np.ndarray] = []
        holds = self.comparison(expr, outside)
        unknown: np.ndarray = reduce(np.logical_or, outside, np.zeros((), dtype=bool))
        return holds | unknown, holds & ~unknown

    def comparison(self, expr: E.Term, outside: list[np.ndarray]) -> np.ndarray:
        """The truth of a condition that joins no others; `outside` as for `integer`."""
        match expr:
            case E.Truth(value):
                return np.asarray(value)
            case E.Cmp(">=", lhs):
                return self.integer(lhs, outside) >= 0
            case E.Cmp(op, lhs):
                equal: np.ndarray = np.equal(self.integer(lhs, outside), 0)
                return equal if op == "==" else ~equal
            case E.Member(value, ranges, inside):
                number = self.integer(value, outside)
                within = np.zeros(np.shape(number), dtype=bool)
                for low, high in ranges:
                    within = within | ((low <= number) & (number <= high))
                return within if inside else ~within
        raise TypeError(f"not a condition: {expr!r}")


def integer(expr: Expr, scope: Scope) -> np.ndarray:
    """The value of a formula that reads no array, int64, broadcasting to [n_q, n_kv]."""
    return Values(scope).integer(expr, [])


def _element(array: np.ndarray, index: list[np.ndarray], outside: list[np.ndarray]) -> np.ndarray:
    inside = []
    for part, size in zip(index, array.shape, strict=True):
        outside.append((part < 0) | (part >= size))
        inside.append(np.clip(part, 0, max(size - 1, 0)).astype(np.int64))
    if not array.size:
        return np.zeros(np.broadcast_shapes(*map(np.shape, inside)), dtype=array.dtype)
    elements: np.ndarray = array[tuple(inside)]
    return elements if array.dtype == object else elements.astype(np.int64)


def condition(expr: Expr, scope: Scope, at: SourceLoc | None = None) -> np.ndarray:
    """Evaluate a condition to booleans that broadcast to [n_q, n_kv]. Uses Python's integers if 64
    bits may not suffice.

    A comparison that reads an array outside its bounds is unknown; "and" with a false term is
    false, "or" with a true term is true.

    Raises:
        DataRange: the formula is unknown at some pair; `at` is its place.
    """
    if _bits(expr) > 62:
        scope = {name: np.asarray(value).astype(object) for name, value in scope.items()}
    may, must = (np.asarray(truth).astype(bool) for truth in Values(scope).truth(expr))
    if np.any(may != must):
        where = np.argwhere(np.atleast_2d(may != must))[0]
        fault = f"at q = {where[0]}, k = {where[1]} an index is outside, and that decides"
        hint = "rule the pair out in the same formula, or clamp the index with min and max"
        raise DataRange("a captured array", fault, hint, at=at)
    return must


def _bits(expr: Expr) -> float:
    """A bound on the binary logarithm of everything computed; symbols and elements have 31."""
    inner = [_bits(part) for part in expr.parts]
    match expr:
        case E.Sum(constant, terms):
            pairs = zip(terms, inner, strict=True)
            sizes = [abs(c).bit_length() + bits for (c, _), bits in pairs]
            return max((abs(constant).bit_length(), *sizes)) + len(terms).bit_length()
        case E.FloorDiv(_, den) | E.Mod(_, den):
            return max(den.bit_length() + 1, *inner)
        case E.Member(_, ranges):
            return max(*inner, *(abs(end).bit_length() for pair in ranges for end in pair))
        case E.Param(_, default):
            return max(31, abs(default).bit_length())
    return max(31, *inner) if inner else 31
