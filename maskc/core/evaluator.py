"""The value of a formula: for integers, whole NumPy arrays, or tensors at once."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr

Env = Mapping[str, Any]
"""Values of symbols (q, k, n_q, ...), of parameters, and arrays by name; they broadcast."""


class Evaluator(ABC):
    """Values of formulas by Python's operators; libraries of arrays say what else they need."""

    compare: Mapping[str, Callable[[Any, Any], Any]] = {
        ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    }  # fmt: skip
    conj: Callable[[Any, Any], Any] = operator.and_
    disj: Callable[[Any, Any], Any] = operator.or_

    def value(self, expr: Any, env: Env) -> Any:
        """The value; parameters missing from `env` take their defaults."""
        match expr:
            case E.Sum(constant, terms):
                total: Any = constant
                for coefficient, term in terms:
                    part = self.value(term, env)
                    total = total + (part if coefficient == 1 else coefficient * part)
                return total
            case E.Sym(name):
                return env[name]
            case E.Param(name, default):
                return env.get(name, default)
            case E.FloorDiv(num, den):
                return self.value(num, env) // den
            case E.Mod(num, den):
                return self.value(num, env) % den
            case E.Min(args) | E.Max(args):
                least = isinstance(expr, E.Min)
                return self.extreme(least, [self.value(arg, env) for arg in args])
            case E.Load(array, index):
                return self.element(array, tuple([self.value(part, env) for part in index]), env)
            case E.Truth(value):
                return self.truth(value, env)
            case E.Cmp(op, lhs):
                return self.compare[op](self.value(lhs, env), 0)
            case E.Member(value, ranges, inside):
                return self.member(self.value(value, env), ranges, inside)
            case E.All(terms):
                return reduce(self.conj, [self.value(term, env) for term in terms])
            case E.Any(terms):
                return reduce(self.disj, [self.value(term, env) for term in terms])
        raise TypeError(f"unknown formula node: {expr!r}")

    @abstractmethod
    def extreme(self, least: bool, values: list[Any]) -> Any:
        """The minimum or maximum of some numbers."""

    def element(self, array: str, index: tuple[Any, ...], env: Env) -> Any:
        """An element of an array."""
        return env[array][index]

    def truth(self, value: bool, env: Env) -> Any:
        """A condition that always holds, or never does."""
        return value

    def member(self, value: Any, ranges: Iterable[tuple[int, int]], inside: bool) -> Any:
        """Whether a number is among ranges, or is not."""
        within = reduce(self.disj, [(value >= low) & (value <= high) for low, high in ranges])
        return within if inside else ~within


class _OfArrays(Evaluator):
    """Values as NumPy computes them."""

    compare = {">=": np.greater_equal, "==": np.equal, "!=": np.not_equal}
    conj, disj = np.logical_and, np.logical_or

    def extreme(self, least: bool, values: list[Any]) -> Any:
        return reduce(np.minimum if least else np.maximum, values)

    def element(self, array: str, index: tuple[Any, ...], env: Env) -> Any:
        """The elements, as wide as their indices: sums of 32-bit elements must not wrap."""
        narrow = all(getattr(i, "dtype", None) == np.int32 for i in index)
        return env[array][index] if narrow else env[array][index].astype(np.int64)

    def truth(self, value: bool, env: Env) -> Any:
        return np.bool_(value)

    def member(self, value: Any, ranges: Iterable[tuple[int, int]], inside: bool) -> Any:
        lows, highs = np.array(ranges, dtype=np.int64).T
        slot = np.searchsorted(lows, value, side="right") - 1
        return ((slot >= 0) & (value <= highs[np.maximum(slot, 0)])) == inside


_ARRAYS = _OfArrays()


def evaluate(expr: Expr, env: Env) -> Any:
    """Evaluate; parameters missing from `env` take their defaults.

    Exact for |values| < 2^62. With 32-bit arrays as symbols the arithmetic is 32-bit: then the
    caller answers for |values| < 2^31.
    """
    return _ARRAYS.value(expr, env)
