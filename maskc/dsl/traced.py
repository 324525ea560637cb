"""Integers and conditions that remember how they were computed.

`q`, `k` and `h` inside `where`, the lengths `mc.n_q` and `mc.n_kv`, and `mc.param(...)` are Traced.
Whatever cannot be followed exactly raises; nothing is guessed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, cast

from maskc.core import expr as E
from maskc.core.errors import (
    IntegerTooWide,
    MaskUsedAsBool,
    MissingParentheses,
    NotTraceable,
    with_article,
)
from maskc.core.expr import Expr, is_condition
from maskc.core.source import caller
from maskc.core.widths import INT64, widest
from maskc.dsl.followed import Followed, checked_narrow, during
from maskc.dsl.tabled import member, table_operators


def refuse(what: str) -> NoReturn:
    """Raise an error that says what cannot be traced, at the user's line.

    Raises:
        NotTraceable: always (MC107).
    """
    raise NotTraceable(what, at=caller())


Running = list[object]
"""Functions in C that run now, the innermost last."""

_tracing: ContextVar[Running | None] = ContextVar("maskc_tracing", default=None)


def tracing() -> AbstractContextManager[Running]:
    """While a formula is traced, whatever Python would decide about a traced value is refused.

    Yields:
        Where to note the functions in C that the formula calls.
    """
    return during(_tracing, [])


def _asked_by_torch(running: Running) -> bool:
    """Whether torch looks for plain numbers among its arguments, before it hands them over."""
    inner = running[-1] if running else None
    owners = inner, type(getattr(inner, "__self__", None)), getattr(inner, "__objclass__", None)
    modules = (getattr(owner, "__module__", None) or "" for owner in owners)
    return any(module.partition(".")[0] == "torch" for module in modules)


def lift(value: Any) -> Expr:
    """The formula of a traced value, a plain integer or boolean, or an array without dimensions.

    Raises:
        IntegerTooWide: an integer does not fit 64 bits (MC120).
    """
    if isinstance(value, Traced):
        return value.expr
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return E.Truth(value)
    try:
        number = operator.index(value)
    except TypeError:
        shape = getattr(value, "shape", ())
        if shape:
            refuse(f"it computes with an array of shape {tuple(shape)} that no index reads")
        refuse(f"it uses {with_article(type(value).__name__)}")
    if abs(number) > INT64:
        raise IntegerTooWide("a formula", number, at=caller())
    return E.const(number)


def lift_int(value: object, context: str) -> Expr:
    """Lift a value where an integer is needed."""
    expr = lift(value)
    if is_condition(expr):
        refuse(f"{context} needs integers, found a condition")
    return expr


def lift_bool(value: object, context: str) -> Expr:
    """Lift a value where a condition is needed."""
    expr = lift(value)
    if not is_condition(expr):
        refuse(f"{context} needs conditions such as q >= k, found an integer")
    return expr


def _literal(value: object, context: str) -> int:
    number = E.as_const(lift_int(value, context))
    if number is None:
        refuse(f"{context} needs a plain integer, a varying one is beyond exact analysis")
    return number


_MAX_SIDES = 64
"""Comparisons that one with integers chosen by conditions may become."""


def settled(atom: Expr) -> Expr:
    """A comparison without integers that conditions choose."""
    return _settled(atom, [_MAX_SIDES])


def _settled(atom: Expr, room: list[int]) -> Expr:
    chosen = next((node for node in E.walk(atom) if isinstance(node, E.Pick)), None)
    if chosen is None:
        return atom
    room[0] -= 1
    if not room[0]:
        refuse(f"conditions choose its integers in more than {_MAX_SIDES} ways")
    then, other = (
        _settled(E.substitute(atom, {chosen: side}), room) for side in (chosen.then, chosen.other)
    )
    condition = chosen.condition
    return E.disj(E.conj(condition, then), E.conj(E.negate(condition), other))


def choose(condition: Expr, then: Expr, other: Expr) -> Expr:
    """`then` where the condition holds, else `other`: two conditions, or two integers."""
    if isinstance(condition, E.Truth):
        return then if condition.value else other
    if then == other:
        return then
    if is_condition(then) and is_condition(other):
        return E.disj(E.conj(condition, then), E.conj(E.negate(condition), other))
    return E.Pick(condition, as_integer(then), as_integer(other))


def as_integer(expr: Expr) -> Expr:
    """1 where a condition holds, else 0; integers as they are."""
    return choose(expr, E.const(1), E.ZERO) if is_condition(expr) else expr


def as_condition(expr: Expr) -> Expr:
    """Whether an integer is not 0; conditions as they are."""
    return expr if is_condition(expr) else settled(E.ne(expr, E.ZERO))


_Build = Callable[[Expr, Expr], Expr]
_Binary = Callable[["Traced", object], "Traced"]

_checked_narrow = partial(checked_narrow, refuse)


def _arithmetic(
    symbol: str, build: _Build, lifted: Callable[[object, str], Expr] = lift_int,
    grows: bool = True,
) -> tuple[_Binary, _Binary]:  # fmt: skip
    def forward(self: Traced, other: object) -> Traced:
        if getattr(type(other), "of_score", False):  # a score formula goes on with it
            return cast("Traced", NotImplemented)
        result = Traced(build(lifted(self, symbol), lifted(other, symbol)))
        _checked_narrow(symbol, self, other, grows=grows)
        return result

    def backward(self: Traced, other: object) -> Traced:
        result = Traced(build(lifted(other, symbol), lifted(self, symbol)))
        _checked_narrow(symbol, self, other, grows=True)
        return result

    return forward, backward


def _compare(symbol: str, build: _Build) -> _Binary:
    return _arithmetic(symbol, lambda a, b: settled(build(a, b)), grows=False)[0]


def _bitwise(symbol: str, of_conditions: _Build, of_bits: Callable[[Expr, int], Expr]) -> _Binary:
    """Two conditions, or the bits of an integer and a plain one."""

    def combine(self: Traced, other: object) -> Traced:
        if getattr(type(other), "of_score", False):  # a score formula goes on with it
            return cast("Traced", NotImplemented)
        left, right = lift(self), lift(other)
        for value, bits in ((left, E.as_const(right)), (right, E.as_const(left))):
            if bits is not None and not is_condition(value):
                return Traced(of_bits(value, bits), _checked_narrow(symbol, self, other))
        return Traced(of_conditions(*_conditions(symbol, self, other)))

    return combine


def _conditions(symbol: str, one: object, other: object) -> tuple[Expr, Expr]:
    """Both sides, which must be conditions.

    Raises:
        MissingParentheses: both are integers that vary, as of a comparison without parentheses.
    """
    known = (is_condition(x) or E.as_const(x) is not None for x in (lift(one), lift(other)))
    if not any(known):
        raise MissingParentheses(symbol, at=caller())
    return lift_bool(one, symbol), lift_bool(other, symbol)


def either(value: Expr, bits: int) -> Expr:
    """value | bits."""
    return E.sub(E.add(value, E.const(bits)), masked(value, bits))


def differing(value: Expr, bits: int) -> Expr:
    """value ^ bits."""
    return E.sub(E.add(value, E.const(bits)), E.scale(2, masked(value, bits)))


def masked(value: Expr, bits: int) -> Expr:
    """value & bits, for every integer: each run of ones is a quotient's residue."""
    if bits < 0:
        return E.sub(value, masked(value, ~bits))
    total: Expr = E.ZERO
    low = 0
    while bits >> low:
        low += ((bits >> low) & -(bits >> low)).bit_length() - 1
        ones = bits >> low
        count = (ones ^ (ones + 1)).bit_length() - 1
        run = E.mod(E.floordiv(value, 1 << low), 1 << count)
        total = E.add(total, E.scale(1 << low, run))
        low += count
    return total


def _equality(of_integers: _Build, of_conditions: _Build) -> Callable[..., Any]:
    """Return a comparison; a condition that is compared with an integer counts as 1 or 0."""

    def combine(self: Traced, other: object) -> Traced:
        left, right = self.expr, lift(other)
        if is_condition(left) and is_condition(right):
            return Traced(of_conditions(left, right))
        _checked_narrow("a comparison", self, other)
        return Traced(settled(of_integers(as_integer(left), as_integer(right))))

    return combine


def _multiply(a: Expr, b: Expr) -> Expr:
    """The product; a condition counts as 1 or 0, and the product of two is a condition."""
    if is_condition(a) and is_condition(b):
        return E.conj(a, b)
    a, b = as_integer(a), as_integer(b)
    for factor, other in ((a, b), (b, a)):
        number = E.as_const(factor)
        if number is not None:
            return E.scale(number, other)
    for factor, other in ((a, b), (b, a)):
        if isinstance(factor, E.Pick):
            sides = _multiply(factor.then, other), _multiply(factor.other, other)
            return choose(factor.condition, *sides)
    refuse("a product of two varying integers is beyond exact analysis")


def _called(library: str, function: Any, args: Any, named: Any) -> object:
    from maskc.dsl.functions import call

    return call(library, function, args, named)


def _method(name: str) -> Callable[..., Any] | None:
    from maskc.dsl.functions import method

    return method(name)


class Traced(Followed):
    """An integer or a condition as a formula; see the module's header."""

    __slots__ = ("expr", "narrow")
    _called = staticmethod(_called)
    _refused = staticmethod(refuse)

    def __init__(self, expr: Expr, narrow: str = "") -> None:
        """Args:
        expr: its formula.
        narrow: the dtype of the array that it was read from, if that wraps around early."""
        if abs(reach := widest(expr)) > INT64:
            raise IntegerTooWide("a formula", reach, at=caller())
        self.expr, self.narrow = expr, narrow

    def decides(self) -> bool:
        """Whether the value is a condition."""
        return is_condition(self.expr)

    # ------------------------------------------------------------ arithmetic

    __add__, __radd__ = _arithmetic("+", E.add)
    __sub__, __rsub__ = _arithmetic("-", E.sub)
    __mul__, __rmul__ = _arithmetic("*", _multiply, lambda value, _: lift(value))
    __ge__ = _compare(">=", E.ge)
    __gt__ = _compare(">", E.gt)
    __le__ = _compare("<=", E.le)
    __lt__ = _compare("<", E.lt)
    __eq__ = _equality(E.eq, lambda a, b: E.negate(E.xor(a, b)))
    __ne__ = _equality(E.ne, E.xor)
    __and__ = __rand__ = _bitwise("&", E.conj, masked)
    __or__ = __ror__ = _bitwise("|", E.disj, either)
    __xor__ = __rxor__ = _bitwise("^", E.xor, differing)

    def __floordiv__(self, other: object) -> Traced:
        quotient = E.floordiv(lift_int(self, "//"), self._divisor(other, "//"))
        return Traced(quotient, _checked_narrow("//", self, other))

    def __mod__(self, other: object) -> Traced:
        rest = E.mod(lift_int(self, "%"), self._divisor(other, "%"))
        return Traced(rest, _checked_narrow("%", self, other))

    @staticmethod
    def _divisor(value: object, symbol: str) -> int:
        divisor = _literal(value, symbol)
        return divisor if divisor else refuse(f"{symbol} divides by zero")

    def __rfloordiv__(self, other: object) -> Traced:
        refuse("// needs a plain integer as its divisor")

    def __rmod__(self, other: object) -> Traced:
        refuse("% needs a plain integer as its divisor")

    def __truediv__(self, other: object) -> Traced:
        refuse("/ leaves the integers; use //")

    __rtruediv__ = __truediv__

    def __pow__(self, other: object) -> Traced:
        refuse("powers are beyond exact analysis")

    __rpow__ = __pow__

    def __lshift__(self, bits: object) -> Traced:
        return self * (1 << _literal(bits, "<<"))

    def __rshift__(self, bits: object) -> Traced:
        return self // (1 << _literal(bits, ">>"))

    def __neg__(self) -> Traced:
        _checked_narrow("-", self, grows=True)
        return Traced(E.scale(-1, lift_int(self, "-")))

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        _checked_narrow("abs", self, grows=True)
        return Traced(E.absolute(lift_int(self, "abs")))

    def __invert__(self) -> Traced:
        if not is_condition(self.expr):
            _checked_narrow("~", self, grows=True)
            return Traced(E.sub(E.const(-1), self.expr))
        return Traced(E.negate(self.expr))

    def __divmod__(self, other: object) -> tuple[Traced, Traced]:
        return self // other, self % other

    # ------------------------------------------------------------ what Python would decide

    def __bool__(self) -> bool:
        raise MaskUsedAsBool("traced condition", at=caller())

    def __index__(self) -> int:
        refuse("it is used as a Python index, range or int(); only captured tables take it")

    __int__ = __float__ = __index__

    def __hash__(self) -> int:
        if _tracing.get() is None:  # whoever asks whether it can be hashed gets Python's answer
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        refuse("a traced value has no hash: it cannot be looked up in a dict or a set")

    def __len__(self) -> int:
        refuse("len() of a traced value: indices have no dimensions")

    def __iter__(self) -> Iterator[object]:
        refuse("it iterates over a traced value: indices have no dimensions")

    def __contains__(self, item: object) -> bool:
        refuse("`in` asks Python to decide; compare with == and |")

    def __getitem__(self, index: object) -> Traced:
        if index is Ellipsis or (type(index) is tuple and not index):
            return self
        refuse("it indexes a traced value: indices have no dimensions")

    @property
    def __class__(self) -> type:  # what isinstance() reads where the type does not decide
        running = _tracing.get()
        if running is not None and not _asked_by_torch(running):
            refuse("isinstance() asks what a traced value is, which would be decided for good")
        return Traced

    @__class__.setter
    def __class__(self, _: type) -> None:
        refuse("it changes the class of a traced value")

    def __getattr__(self, name: str) -> Any:
        return member(self, name, self._dtype, _method, refuse)

    def _dtype(self) -> str:
        """Return the name of its dtype in torch."""
        return "bool" if self.decides() else self.narrow or "int64"

    def __repr__(self) -> str:
        from maskc.core.expr_text import to_python

        if _tracing.get() is not None:
            refuse("the text of a traced value would be decided for good")
        return to_python(self.expr)

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        return repr(self)


table_operators(Traced)


def traced_min(*args: object) -> object:
    """`min` inside a formula."""
    return _extreme(E.minimum, min, args)


def traced_max(*args: object) -> object:
    """`max` inside a formula."""
    return _extreme(E.maximum, max, args)


def _extreme(
    build: Callable[..., Expr], plain: Callable[..., object], args: tuple[Any, ...]
) -> object:
    items = tuple(args[0]) if len(args) == 1 else args
    if not any(isinstance(item, Traced) for item in items):
        return plain(items)
    extreme = build(*(lift_int(item, plain.__name__) for item in items))
    return Traced(extreme, _checked_narrow(plain.__name__, *items))
