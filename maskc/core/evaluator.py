"""The value of a formula, for integers or whole NumPy arrays at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr

_COMPARE = {">=": np.greater_equal, "==": np.equal, "!=": np.not_equal}

Env = Mapping[str, Any]
"""Values of symbols (q, k, n_q, ...), of parameters, and arrays by name; they broadcast."""


def evaluate(expr: Expr, env: Env) -> Any:
    """Evaluate; parameters missing from `env` take their defaults.

    Exact for |values| < 2^62. With 32-bit arrays as symbols the arithmetic is 32-bit: then the
    caller answers for |values| < 2^31.
    """
    match expr:
        case E.Sum(constant, terms):
            total: Any = constant
            for coefficient, term in terms:
                value = evaluate(term, env)
                total = total + (value if coefficient == 1 else coefficient * value)
            return total
        case E.Sym(name):
            return env[name]
        case E.Param(name, default):
            return env.get(name, default)
        case E.FloorDiv(num, den):
            return evaluate(num, env) // den
        case E.Mod(num, den):
            return evaluate(num, env) % den
        case E.Min(args):
            return reduce(np.minimum, (evaluate(arg, env) for arg in args))
        case E.Max(args):
            return reduce(np.maximum, (evaluate(arg, env) for arg in args))
        case E.Load(array, index):
            return _load(env[array], tuple(evaluate(i, env) for i in index))
        case E.Truth(value):
            return np.bool_(value)
        case E.Cmp(op, lhs):
            return _COMPARE[op](evaluate(lhs, env), 0)
        case E.Member(value, ranges, inside):
            values = evaluate(value, env)
            lows, highs = np.array(ranges, dtype=np.int64).T
            slot = np.searchsorted(lows, values, side="right") - 1
            return ((slot >= 0) & (values <= highs[np.maximum(slot, 0)])) == inside
        case E.All(terms):
            return reduce(np.logical_and, (evaluate(term, env) for term in terms))
        case E.Any(terms):
            return reduce(np.logical_or, (evaluate(term, env) for term in terms))
    raise TypeError(f"unknown formula node: {expr!r}")


def _load(array: Any, index: tuple[Any, ...]) -> Any:
    """The elements, as wide as their indices: sums of 32-bit elements must not wrap."""
    narrow = all(getattr(i, "dtype", None) == np.int32 for i in index)
    return array[index] if narrow else array[index].astype(np.int64)
