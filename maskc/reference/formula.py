"""The value of a formula at every pair of a mask, node by node in plain NumPy.

Written apart from the evaluator the compiler uses, which this one judges.
"""

from __future__ import annotations

import numpy as np

from maskc.core import expr as E
from maskc.core.errors import DataRange
from maskc.core.expr import Expr

Scope = dict[str, np.ndarray]
"""int64 values that broadcast to [n_q, n_kv] by symbol and parameter name; arrays by name."""


def integer(expr: Expr, scope: Scope) -> np.ndarray:
    """int64, broadcasting to [n_q, n_kv].

    Parameters missing from the scope take their defaults.

    Raises:
        DataRange: an array is read outside its bounds.
    """
    match expr:
        case E.Sum(constant, terms):
            total = 0
            for coefficient, term in terms:
                total = total + coefficient * integer(term, scope)
            return total + constant if terms else np.int64(constant)
        case E.Sym(name):
            return scope[name]
        case E.Param(name, default):
            return scope.get(name, np.int64(default))
        case E.FloorDiv(num, den):
            return np.floor_divide(integer(num, scope), den)
        case E.Mod(num, den):
            value = integer(num, scope)
            return value - den * np.floor_divide(value, den)
        case E.Min(args) | E.Max(args):
            pick = np.minimum if isinstance(expr, E.Min) else np.maximum
            best = integer(args[0], scope)
            for arg in args[1:]:
                best = pick(best, integer(arg, scope))
            return best
        case E.Load(array, index):
            return _element(array, scope[array], [integer(part, scope) for part in index])
    raise TypeError(f"not an integer formula: {expr!r}")


def _element(name: str, array: np.ndarray, index: list[np.ndarray]) -> np.ndarray:
    for part, size in zip(index, array.shape, strict=True):
        outside = (part < 0) | (part >= size)
        if np.any(outside):
            found = f"the formula reads element {np.min(part)}..{np.max(part)} of {size}"
            raise DataRange(name, found, "keep every index inside the array, with % or min and max")
    found = array[tuple(np.asarray(part).astype(np.int64) for part in index)]
    return found if array.dtype == object else found.astype(np.int64)


def condition(expr: Expr, scope: Scope) -> np.ndarray:
    """Booleans, broadcasting to [n_q, n_kv]; of what 64 bits may not hold, by Python's integers."""
    if _bits(expr) > 62 and np.asarray(scope["q"]).dtype != object:
        exact = {name: np.asarray(value).astype(object) for name, value in scope.items()}
        return np.asarray(_condition(expr, exact)).astype(bool)
    return _condition(expr, scope)


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


def _condition(expr: Expr, scope: Scope) -> np.ndarray:
    match expr:
        case E.Truth(value):
            return np.bool_(value)
        case E.Cmp(">=", lhs):
            return integer(lhs, scope) >= 0
        case E.Cmp("==", lhs):
            return integer(lhs, scope) == 0
        case E.Cmp("!=", lhs):
            return integer(lhs, scope) != 0
        case E.Member(value, ranges, inside):
            found = integer(value, scope)
            within = np.zeros(np.shape(found), dtype=bool)
            for low, high in ranges:
                within = within | ((low <= found) & (found <= high))
            return within if inside else ~within
        case E.All(terms):
            keep = _condition(terms[0], scope)
            for term in terms[1:]:
                keep = keep & _condition(term, scope)
            return keep
        case E.Any(terms):
            keep = _condition(terms[0], scope)
            for term in terms[1:]:
                keep = keep | _condition(term, scope)
            return keep
    raise TypeError(f"not a condition: {expr!r}")
