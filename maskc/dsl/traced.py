"""Integers and conditions that remember how they were computed.

`q`, `k` and `h` inside `where`, the lengths `mc.n_q` and `mc.n_kv`, and `mc.param(...)` are Traced.
Whatever cannot be followed exactly raises; nothing is guessed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NoReturn

from maskc.core import expr as E
from maskc.core.data import check_name
from maskc.core.errors import IntegerTooWide, MaskUsedAsBool, NotAnInteger, NotTraceable
from maskc.core.expr import Expr, is_condition
from maskc.core.source import caller
from maskc.core.widths import INT64, widest


def _refuse(what: str) -> NoReturn:
    raise NotTraceable(what, at=caller())


def lift(value: object) -> Expr:
    """The formula of a traced value, a plain integer or a plain boolean."""
    if isinstance(value, Traced):
        return value.expr
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return E.Truth(bool(value))
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        _refuse(f"it uses a {type(value).__name__}")
    if abs(number) > INT64:
        raise IntegerTooWide("a formula", number, at=caller())
    return E.const(number)


def lift_int(value: object, context: str) -> Expr:
    """Like lift, for places that need an integer."""
    expr = lift(value)
    if is_condition(expr):
        _refuse(f"{context} needs integers, found a condition")
    return expr


def lift_bool(value: object, context: str) -> Expr:
    """Like lift, for places that need a condition."""
    expr = lift(value)
    if not is_condition(expr):
        _refuse(f"{context} needs conditions such as q >= k, found an integer")
    return expr


def _literal(value: object, context: str) -> int:
    number = E.as_const(lift_int(value, context))
    if number is None:
        _refuse(f"{context} needs a plain integer, a varying one is beyond exact analysis")
    return number


_Build = Callable[[Expr, Expr], Expr]
_Binary = Callable[["Traced", object], "Traced"]


def _arithmetic(symbol: str, build: _Build) -> tuple[_Binary, _Binary]:
    def forward(self: Traced, other: object) -> Traced:
        return Traced(build(lift_int(self, symbol), lift_int(other, symbol)))

    def backward(self: Traced, other: object) -> Traced:
        return Traced(build(lift_int(other, symbol), lift_int(self, symbol)))

    return forward, backward


def _compare(symbol: str, build: _Build) -> _Binary:
    return _arithmetic(symbol, build)[0]


def _logic(symbol: str, build: _Build) -> _Binary:
    def combine(self: Traced, other: object) -> Traced:
        return Traced(build(lift_bool(self, symbol), lift_bool(other, symbol)))

    return combine


def _equality(symbol: str, of_integers: _Build, of_conditions: _Build) -> _Binary:
    """Two integers, or two conditions."""

    def combine(self: Traced, other: object) -> Traced:
        if is_condition(self.expr):
            return Traced(of_conditions(self.expr, lift_bool(other, symbol)))
        return Traced(of_integers(self.expr, lift_int(other, symbol)))

    return combine


def _multiply(a: Expr, b: Expr) -> Expr:
    for factor, other in ((a, b), (b, a)):
        number = E.as_const(factor)
        if number is not None:
            return E.scale(number, other)
    _refuse("a product of two varying integers is beyond exact analysis")


class Traced:
    """An integer or a condition as a formula; see the module's header."""

    __slots__ = ("expr",)
    __array_ufunc__ = None  # NumPy scalars on the left leave the operation to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr) -> None:
        if abs(found := widest(expr)) > INT64:
            raise IntegerTooWide("a formula", found, at=caller())
        self.expr = expr

    __add__, __radd__ = _arithmetic("+", E.add)
    __sub__, __rsub__ = _arithmetic("-", E.sub)
    __mul__, __rmul__ = _arithmetic("*", _multiply)
    __ge__ = _compare(">=", E.ge)
    __gt__ = _compare(">", E.gt)
    __le__ = _compare("<=", E.le)
    __lt__ = _compare("<", E.lt)
    __eq__ = _equality("==", E.eq, lambda a, b: E.negate(E.xor(a, b)))  # type: ignore[assignment]
    __ne__ = _equality("!=", E.ne, E.xor)  # type: ignore[assignment]
    __and__ = __rand__ = _logic("&", E.conj)
    __or__ = __ror__ = _logic("|", E.disj)
    __xor__ = __rxor__ = _logic("^", E.xor)

    def __floordiv__(self, other: object) -> Traced:
        return Traced(E.floordiv(lift_int(self, "//"), self._divisor(other, "//")))

    def __mod__(self, other: object) -> Traced:
        return Traced(E.mod(lift_int(self, "%"), self._divisor(other, "%")))

    @staticmethod
    def _divisor(value: object, symbol: str) -> int:
        divisor = _literal(value, symbol)
        return divisor if divisor else _refuse(f"{symbol} divides by zero")

    def __rfloordiv__(self, other: object) -> Traced:
        _refuse("// needs a plain integer as its divisor")

    def __rmod__(self, other: object) -> Traced:
        _refuse("% needs a plain integer as its divisor")

    def __truediv__(self, other: object) -> Traced:
        _refuse("/ leaves the integers; use //")

    __rtruediv__ = __truediv__

    def __pow__(self, other: object) -> Traced:
        _refuse("powers are beyond exact analysis")

    __rpow__ = __pow__

    def __lshift__(self, bits: object) -> Traced:
        return self * (1 << _literal(bits, "<<"))

    def __rshift__(self, bits: object) -> Traced:
        return self // (1 << _literal(bits, ">>"))

    def __neg__(self) -> Traced:
        return Traced(E.scale(-1, lift_int(self, "-")))

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return Traced(E.absolute(lift_int(self, "abs")))

    abs = __abs__

    def __invert__(self) -> Traced:
        return Traced(E.negate(lift_bool(self, "~")))

    def __bool__(self) -> bool:
        raise MaskUsedAsBool("traced condition", at=caller())

    def __index__(self) -> int:
        _refuse("it is used as a Python index, range or int(); only captured tables take it")

    __int__ = __float__ = __index__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"it uses the method .{name}")

    def __repr__(self) -> str:
        from maskc.core.expr_text import to_python

        return to_python(self.expr)


def traced_min(*args: object) -> object:
    """`min` inside a formula."""
    return _extreme(E.minimum, min, args)


def traced_max(*args: object) -> object:
    """`max` inside a formula."""
    return _extreme(E.maximum, max, args)


def _extreme(
    build: Callable[..., Expr], plain: Callable[..., object], args: tuple[object, ...]
) -> object:
    items = tuple(args[0]) if len(args) == 1 else args  # type: ignore[call-overload]
    if not any(isinstance(item, Traced) for item in items):
        return plain(items)
    return Traced(build(*(lift_int(item, plain.__name__) for item in items)))


n_q = Traced(E.N_Q)
n_kv = Traced(E.N_KV)


def param(name: str, default: int) -> Traced:
    """An integer named `name` that may be changed at every call without recompiling.

    Use it where an integer is data: a window's width, a number of sinks, in `where`.
    """
    at = caller()
    try:
        value = operator.index(default)
    except TypeError:
        raise NotAnInteger("param", "default", repr(default), at=at) from None
    if abs(value) > INT64:
        raise IntegerTooWide("param", value, at=at)
    return Traced(E.Param(check_name(name, at), value))
