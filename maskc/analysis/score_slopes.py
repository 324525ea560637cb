"""Derivatives of a score formula by sympy, with common subexpressions computed once.

sympy sees the functions of `core/score` as functions of its own, whose derivatives are below: its
rules for real and complex numbers, and its habit to rewrite, stay out of what kernels compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy as sp

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.score import Slopes
from maskc.dsl.score_ranges import is_at_least


class _Function(sp.Function):  # type: ignore[misc]
    """A function of real numbers; the name in `core/score` is that of the class, in lower case."""


def _gelu_slope(_: Any, x: Any) -> Any:
    below = (1 + _of("erf", sp.Float(math.sqrt(0.5), 17) * x)) / 2
    return below + sp.Float(1 / math.sqrt(2 * math.pi), 17) * x * _of("exp", -x * x / 2)


_SLOPES: dict[str, Callable[..., Any]] = {
    "exp": lambda f, x: f,
    "log": lambda f, x: 1 / x,
    "tanh": lambda f, x: 1 - f**2,
    "sqrt": lambda f, x: sp.Rational(1, 2) / f,
    "sigmoid": lambda f, x: f * (1 - f),
    "erf": lambda f, x: sp.Float(2 / math.sqrt(math.pi), 17) * _of("exp", -x * x),
    "gelu": _gelu_slope,
    "sin": lambda f, x: _of("cos", x),
    "cos": lambda f, x: -_of("sin", x),
    "sign": lambda f, x: sp.Integer(0),
    "floor": lambda f, x: sp.Integer(0),
    "step": lambda f, x: sp.Integer(0),
    "abs": lambda f, x: _of("sign", x),
    "min": lambda f, here, other: _of("step", other - here),
    "max": lambda f, here, other: _of("step", here - other),
}
"""The derivative of each function f(x), over f and x; of two arguments by the first, and of equal
ones each has half of it."""


def _class(name: str) -> Any:
    def fdiff(self: Any, argindex: int = 1) -> Any:
        others = (*self.args[: argindex - 1], *self.args[argindex:])
        return _SLOPES[name](self, self.args[argindex - 1], *others)

    return type(name.capitalize(), (_Function,), {"fdiff": fdiff})


_CLASSES = {name: _class(name) for name in _SLOPES}


def _of(name: str, *args: Any) -> Any:
    return _CLASSES[name](*args)


class SlopeChoice(_Function):
    """The second argument if the first, a symbol, is true, otherwise the third."""

    def _eval_derivative(self, symbol: Any) -> Any:
        condition, then, other = self.args
        one, two = then.diff(symbol), other.diff(symbol)
        return one if one == two else SlopeChoice(condition, one, two)


class _Algebra:
    """A formula as sympy sees it: everything but the arithmetic is a symbol."""

    def __init__(self, logit: S.Real) -> None:
        self._symbols: dict[object, Any] = {}
        self._meanings: dict[Any, object] = {}
        self.score = self._symbol("s", S.Score())
        self.logit = self.of(logit)

    def _symbol(self, letter: str, node: object) -> Any:
        if node not in self._symbols:
            made = sp.Symbol(f"{letter}{len(self._symbols)}", real=True)
            self._symbols[node], self._meanings[made] = made, node
        return self._symbols[node]

    def of(self, node: S.Real) -> Any:
        """The formula in sympy."""
        match node:
            case S.Number(value) if math.isinf(value):  # sympy's infinities are not IEEE's
                return self._symbol("n", node)
            case S.Number(value):
                return sp.Integer(int(value)) if value == int(value) else sp.Float(value, 17)
            case S.Whole():
                return self._symbol("w", node)
            case S.Read():
                return self._symbol("r", node)
            case S.Choice(condition, then, other):
                return SlopeChoice(self._symbol("c", condition), self.of(then), self.of(other))
            case S.Call(function, args):
                left, *rest = map(self.of, args)
                match function:
                    case "add":
                        return left + rest[0]
                    case "sub":
                        return left - rest[0]
                    case "mul":
                        return left * rest[0]
                    case "div":
                        return left / rest[0]
                    case "neg":
                        return -left
                return _CLASSES[function](left, *rest)
        return self._symbol("s", node)

    def by(self, read: S.Read | None) -> Any:
        """The derivative by an entry of a table, or by the score."""
        return self.logit.diff(self.score if read is None else self._symbol("r", read))

    def shared(self, formulas: list[Any]) -> Slopes:
        """Return the formulas with common subexpressions extracted."""
        parts, results = sp.cse(formulas, symbols=sp.numbered_symbols("x"), order="canonical")
        for number, (symbol, _) in enumerate(parts):
            self._meanings[symbol] = S.Shared(number)
        return Slopes(tuple(self.back(part) for _, part in parts), tuple(map(self.back, results)))

    def back(self, term: Any) -> S.Real:
        """A formula of sympy as one of ours.

        Raises:
            TypeError: it holds something that has no counterpart.
        """
        if term.is_Number:
            return S.Number(float(term))
        if term.is_Symbol:
            node = self._meanings[term]
            if not isinstance(node, S.Real):
                raise TypeError(f"a condition stands for a number: {term}")
            return node
        if term.is_Add:
            return self._sum(term)
        if term.is_Mul:
            return self._product(term)
        if term.is_Pow and term.exp.is_Integer:
            return self._power(term.base, int(term.exp))
        if isinstance(term, SlopeChoice):
            condition = self._meanings[term.args[0]]
            then, other = map(self.back, term.args[1:])
            return S.Choice(condition, then, other)  # type: ignore[arg-type]
        if isinstance(term, _Function):
            name = type(term).__name__.lower()
            return S.Call(name, tuple(map(self.back, term.args)))
        raise TypeError(f"no score formula for {term!r}")

    def _sum(self, expression: Any) -> S.Real:
        first, *rest = sorted(
            expression.args, key=lambda x: (x.could_extract_minus_sign(), x.sort_key())
        )
        total = self.back(first)
        for term in rest:
            if term.could_extract_minus_sign():
                total = S.Call("sub", (total, self.back(-term)))
            else:
                total = S.Call("add", (total, self.back(term)))
        return total

    def _product(self, product: Any) -> S.Real:
        above: list[Any] = []
        below: list[Any] = []
        for factor in product.args:
            power = factor.is_Pow and factor.exp.is_Integer and factor.exp < 0
            (below if power else above).append(1 / factor if power else factor)
        if above and above[0] == -1:
            return S.Call("neg", (self.back(product / -1),))
        top = self._times(above) if above else S.Number(1.0)
        return S.Call("div", (top, self._times(below))) if below else top

    def _times(self, factors: list[Any]) -> S.Real:
        first, *rest = map(self.back, factors)
        for factor in rest:
            first = S.Call("mul", (first, factor))
        return first

    def _power(self, base: Any, exponent: int) -> S.Real:
        one = self.back(base)
        power = one
        for _ in range(abs(exponent) - 1):
            power = S.Call("mul", (power, one))
        return power if exponent > 0 else S.Call("div", (S.Number(1.0), power))


@lru_cache(maxsize=64)
def slope(logit: S.Real) -> Slopes:
    """d logit / d s."""
    algebra = _Algebra(logit)
    return _where_live(logit, algebra.shared([algebra.by(None)]))


@lru_cache(maxsize=64)
def table_slopes(logit: S.Real) -> Slopes:
    """d logit / d (entry of a table), one for each of `reads(logit)`."""
    algebra = _Algebra(logit)
    return _where_live(logit, algebra.shared([algebra.by(read) for read in S.reads(logit)]))


_LEAST = -3.4e38
"""No finite logit of fp32 is less, rounding aside."""


def _where_live(logit: S.Real, slopes: Slopes) -> Slopes:
    """The derivatives, and 0 where a logarithm of 0 leaves a pair no weight: its own derivative is
    infinite there, and 0 times infinity is not a number."""
    calls = (part for part in E.walk(logit) if isinstance(part, S.Call))
    if all(is_at_least(call.args[0], 0, True) for call in calls if call.function == "log"):
        return slopes
    dead = S.Less(logit, S.Number(_LEAST))
    return replace(slopes, results=tuple(
        one if isinstance(one, S.Number) else S.Choice(dead, S.Number(0.0), one)
        for one in slopes.results
    ))  # fmt: skip
