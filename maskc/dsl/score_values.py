"""Values inside a traced score formula: real numbers, integers and conditions.

They stand for s, q, k, h and b while the user's function runs once, and remember how they were
computed. An operation for which Python needs their value raises an error with the user's line.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.dtypes import dtype_name
from maskc.core.errors import ScoreNotTraceable, with_article
from maskc.core.expr import Expr, Term, is_condition
from maskc.core.source import SourceLoc, caller
from maskc.dsl.followed import (
    Followed,
    TableRows,
    among,
    canonical,
    checked_narrow,
    common_narrow,
    during,
    exceeds,
    narrow_of,
    operators,
)
from maskc.dsl.tabled import (
    Opaque,
    answered,
    member,
    operators_by_name,
    or_tabled,
    table_operators,
    tabled,
    tabling_now,
    torch_method,
)
from maskc.dsl.traced import Traced, masked

_WIDE = "convert it with .long() or int64"
_OTHERS = "write it with + - * /, where, min, max, exp, log, tanh, sqrt, sigmoid, abs and tables"
_TABLE = "index it with integer formulas of q, k, h and b, one for each dimension"
_MAX_POWER = 8
"""The largest exponent that becomes a product."""


def refuse(finding: str, hint: str = _OTHERS) -> NoReturn:
    """Raise an error that says what cannot be traced, at the user's line.

    Raises:
        ScoreNotTraceable: always (MC129).
    """
    raise ScoreNotTraceable(finding, hint, at=caller())


_checked_narrow = partial(checked_narrow, refuse)


# ------------------------------------------------------------------ what a trace collects


class ScoreRegistry:
    """Tables, parameters and places of one traced function."""

    def __init__(self) -> None:
        self.slots: dict[str, S.Slot] = {}
        self.defaults: dict[str, float | int] = {}
        self.captured: dict[str, Any] = {}
        self.places: dict[object, SourceLoc] = {}
        self._known: dict[int, str] = {}
        self._differentiates = _grad_enabled()

    def check_grad(self) -> None:
        """Refuse what the function computes inside of torch.no_grad: formulas are differentiated
        as a whole."""
        if self._differentiates and not _grad_enabled():
            refuse("it stops gradients (torch.no_grad)", "capture tensors that are detached before")

    def slot(self, name: str, rank: int, integer: bool) -> None:
        """Note that a table or parameter is read."""
        known = self.slots.setdefault(name, S.Slot(name, rank, integer))
        if known.rank != rank:
            refuse(f"{name!r} is indexed by {rank} numbers here and by {known.rank} elsewhere")

    def parameter(self, given: Parameter) -> None:
        """Note that a parameter is read."""
        self.slot(given.name, 0, False)
        self.defaults[given.name] = given.default

    def capture(self, array: Any) -> str:
        """Return the name of a captured array."""
        name = self._known.get(id(array))
        if name is None:
            name = self._known[id(array)] = f"captured{len(self._known)}"
            self.captured[name] = array
        return name


def _grad_enabled() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or torch.is_grad_enabled()


_registry: ContextVar[ScoreRegistry | None] = ContextVar("maskc_score", default=None)


def collecting() -> AbstractContextManager[ScoreRegistry]:
    """While a score formula is traced."""
    return during(_registry, ScoreRegistry())


def _collected() -> ScoreRegistry:
    registry = _registry.get()
    if registry is None:
        refuse("it reads a table outside of a formula", "read tables inside of mc.score(...)")
    return registry


# ------------------------------------------------------------------ lifting


def lift(value: Any) -> Term:
    """Return the formula of a traced value, a number or an array entry."""
    if type(value) is Parameter:
        if _registry.get() is None:
            value.outside()
        _collected().parameter(value)
        return value.node
    if type(value) is Value:
        if isinstance(value.node, S.Real) and (registry := _registry.get()) is not None:
            registry.check_grad()
        return value.node
    if type(value) is Traced:
        return value.expr
    if type(value) is ScoreRows:
        return value.whole()
    if type(value) is Opaque:
        refuse("it computes with a tensor that has dimensions", _TABLE)
    if isinstance(value, (bool, np.bool_)):
        return E.Truth(bool(value))
    if isinstance(value, (float, np.floating)):
        return S.Number(float(value))
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        if math.prod(shape) != 1:
            refuse(f"it computes with an array of shape {tuple(shape)} that no index reads", _TABLE)
        if getattr(value, "requires_grad", False):
            return read_array(value, [E.ZERO] * len(shape))
        return lift(value.item())
    try:
        return E.const(operator.index(value))
    except TypeError:
        refuse(f"it uses {with_article(type(value).__name__)}")


def is_test(node: Term) -> bool:
    """Whether a formula is a condition."""
    return isinstance(node, S.Test) or (isinstance(node, Expr) and is_condition(node))


def is_whole(node: Term) -> bool:
    """Whether a formula is an integer."""
    return isinstance(node, Expr) and not is_condition(node)


def real(value: Any) -> S.Real:
    """The formula as a real number; conditions are 0 or 1."""
    node = lift(value)
    if isinstance(node, S.Real):
        return node
    if is_test(node):
        if isinstance(node, E.Truth):
            return S.Number(float(node.value))
        return S.Choice(node, S.Number(1.0), S.Number(0.0))
    number = E.as_const(node) if isinstance(node, Expr) else None
    if number is not None:
        return S.Number(float(number))
    return S.Whole(node)  # type: ignore[arg-type]


def whole(value: Any, what: str) -> Expr:
    """The formula as an integer; conditions are 0 or 1."""
    node = lift(value)
    if is_test(node):
        return _pick(test(value, what), E.const(1), E.ZERO)
    if not isinstance(node, Expr):
        refuse(f"{what} needs integers, found a real number", _WIDE)
    return node


def test(value: Any, what: str) -> Term:
    """The formula as a condition."""
    node = lift(value)
    if is_test(node):
        return node
    refuse(f"{what} needs conditions such as q >= k", _OTHERS)


def _noted(node: S.Real) -> Value:
    """A real number, with its place."""
    registry = _registry.get()
    if registry is not None and node not in registry.places and (at := caller()) is not None:
        registry.places[node] = at
    return Value(node)


def _constant(node: S.Real) -> float | None:
    return node.value if isinstance(node, S.Number) else None


_PLAIN: dict[str, Callable[..., float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "min": min, "max": max, "neg": operator.neg, "abs": abs, "exp": math.exp, "log": math.log,
    "tanh": math.tanh, "sqrt": math.sqrt, "floor": math.floor, "erf": math.erf, "sin": math.sin,
    "cos": math.cos,
}  # fmt: skip


def apply(function: str, *values: Any) -> Value:
    """Apply a function to real numbers; it is computed at once for literals."""
    args = tuple(map(real, values))
    known = [arg.value for arg in args if isinstance(arg, S.Number)]
    if len(known) == len(args) and function in _PLAIN:
        try:
            return Value(S.Number(float(_PLAIN[function](*known))))
        except (ArithmeticError, ValueError) as error:
            refuse(f"{function} of {', '.join(map(str, known))}: {error}")
    if function in ("add", "sub") and _constant(args[1]) == 0:
        return _noted(args[0])
    if function == "add" and _constant(args[0]) == 0:
        return _noted(args[1])
    if function in ("mul", "div") and _constant(args[1]) == 1:
        return _noted(args[0])
    if function == "mul" and _constant(args[0]) == 1:
        return _noted(args[1])
    if function == "div" and _constant(args[1]) == 0:
        refuse("it divides by zero")
    return _noted(S.Call(function, args))


def _pick(condition: Term, then: Expr, other: Expr) -> Expr:
    if isinstance(condition, E.Truth):
        return then if condition.value else other
    return then if then == other else E.Pick(condition, then, other)


def choose(condition: Any, then: Any, other: Any) -> Value:
    """`then` where the condition holds, `other` elsewhere."""
    asked, one, two = test(condition, "where"), lift(then), lift(other)
    if isinstance(asked, E.Truth):
        return _value(then if asked.value else other)
    if is_whole(one) and is_whole(two):
        chosen = _pick(asked, whole(then, "where"), whole(other, "where"))
        return Value(chosen, _checked_narrow("where", then, other))
    if is_test(one) and is_test(two):
        return (Value(asked) & Value(one)) | (~Value(asked) & Value(two))
    return _noted(S.Choice(asked, real(then), real(other)))


# ------------------------------------------------------------------ operators


def _arithmetic(
    function: str, build: Callable[[Expr, Expr], Expr]
) -> tuple[Callable[[Any, Any], Value], Callable[[Any, Any], Value]]:
    def forward(self: Any, other: Any) -> Value:
        one, two = lift(self), lift(other)
        if not isinstance(one, S.Real) and not isinstance(two, S.Real):  # conditions are 0 or 1
            result = Value(build(whole(self, function), whole(other, function)))
            _checked_narrow(function, self, other, grows=True)
            return result
        return apply(function, self, other)

    def backward(self: Any, other: Any) -> Value:
        return forward(_value(other), self)

    return forward, backward


def _product(a: Expr, b: Expr) -> Expr:
    for factor, other in ((a, b), (b, a)):
        number = E.as_const(factor)
        if number is not None:
            return E.scale(number, other)
    return S.Product(a, b)


def _compare(
    build: Callable[[Expr, Expr], Expr], of_reals: Callable[[S.Real, S.Real], S.Test]
) -> Callable[[Any, Any], Value]:
    def compare(self: Any, other: Any) -> Value:
        one, two = lift(self), lift(other)
        if is_whole(one) and is_whole(two):
            _checked_narrow("a comparison", self, other)
            return Value(build(whole(self, "a comparison"), whole(other, "a comparison")))
        return Value(of_reals(real(self), real(other)))

    return compare


def _joined(
    word: str, of_bits: Callable[[Expr, Expr], Expr]
) -> tuple[Callable[[Any, Any], Value], Callable[[Any, Any], Value]]:
    """Two conditions, or the bits of two integers."""

    def join(self: Any, other: Any) -> Value:
        one, two = lift(self), lift(other)
        if is_whole(one) and is_whole(two):
            bits = of_bits(whole(self, word), whole(other, word))
            return Value(bits, _checked_narrow(word, self, other))
        return Value(S.joined(word, test(self, word), test(other, word)))

    return join, join


_BITS = 31
"""Shifts are by less. Indices and entries of tables have no more bits."""
_MAX_BITS = 61
"""Sums of such integers fit 64 bits."""


def _common(one: Expr, two: Expr) -> Expr:
    """Return the common bits of two integers: by residues for a literal, otherwise bit by bit."""
    for value, literal in ((one, E.as_const(two)), (two, E.as_const(one))):
        if literal is not None:
            return masked(value, literal)
    ranges = S.of_whole(one), S.of_whole(two)
    if min(low for low, _ in ranges) < 0:
        refuse("it takes bits of integers that may be below 0", "keep them at 0 or above")
    bits = max(_BITS, int(min(high for _, high in ranges)).bit_length())
    if bits > _MAX_BITS:
        refuse(f"it takes bits of integers of {bits} bits", "take % 2**32 of them first")

    def product(bit: int) -> Expr:
        left, right = (E.mod(E.floordiv(value, 1 << bit), 2) for value in (one, two))
        return E.scale(1 << bit, _product(left, right))

    return E.add(*map(product, range(bits)))


def _either(one: Expr, two: Expr) -> Expr:
    return E.sub(E.add(one, two), _common(one, two))


def _differing(one: Expr, two: Expr) -> Expr:
    return E.sub(E.add(one, two), E.scale(2, _common(one, two)))


def _equal(one: S.Real, two: S.Real) -> S.Test:
    return S.Logic("and", (S.negated(S.Less(one, two)), S.negated(S.Less(two, one))))


def _power(base: Any, exponent: Any) -> Value:
    """Whole powers as products, a half as a root, and powers of a positive literal."""
    number = _constant(real(exponent))
    if number is None:
        fixed = _constant(real(base))
        if fixed is None or fixed <= 0:
            refuse("it raises a varying number to a varying power", "write exp(y * log(x))")
        return apply("exp", apply("mul", exponent, math.log(fixed)))
    if number in (0.5, -0.5):
        root = apply("sqrt", base)
        return root if number > 0 else apply("div", 1.0, root)
    if number != int(number) or abs(number) > _MAX_POWER:
        refuse(f"it raises to the power {number:g}", "write exp(y * log(x))")
    if number > 1:
        _checked_narrow("**", base, exponent, grows=True)
    power = Value(E.const(1))
    for _ in range(abs(int(number))):
        power = power * base if isinstance(base, Value) else Value(lift(base)) * power
    return power if number >= 0 else apply("div", 1.0, power)


def call(library: str, function: Any, args: Any, named: Mapping[str, Any]) -> Any:
    """The result of a function of torch or NumPy that was given traced values."""
    return answered(_meaning_of, refuse, library, function, args, named)


def _meaning_of(library: str, name: str) -> Callable[..., Any] | None:
    if name in _SUMS:
        refuse(*_SUMMED)
    return _FUNCTIONS.get(canonical(name))


_ROW = "it computes with a whole row of a table"
_SUMS = ("dot", "matmul", "sum", "inner")
_SUMMED = "it sums over a row of a table", "put what is multiplied into q and k, side by side"


class Value(Followed):
    """A real number, an integer or a condition as a formula; see the module's header."""

    __slots__ = ("narrow", "node")
    of_score = True
    """Marker by which integers of masks recognise values of a score formula."""
    _called = staticmethod(call)
    _refused = staticmethod(refuse)

    def __init__(self, node: Term, narrow: str = "") -> None:
        """Args:
        node: its formula.
        narrow: the dtype of the array that it was read from, if that wraps around early."""
        self.node, self.narrow = node, narrow

    def decides(self) -> bool:
        """Whether the value is a condition."""
        return is_test(self.node)

    __add__, __radd__ = _arithmetic("add", E.add)
    __sub__, __rsub__ = _arithmetic("sub", E.sub)
    __mul__, __rmul__ = _arithmetic("mul", _product)
    __ge__ = _compare(E.ge, lambda a, b: S.negated(S.Less(a, b)))  # type: ignore[arg-type, return-value]
    __le__ = _compare(E.le, lambda a, b: S.negated(S.Less(b, a)))  # type: ignore[arg-type, return-value]
    __gt__ = _compare(E.gt, lambda a, b: S.Less(b, a))
    __lt__ = _compare(E.lt, S.Less)
    __eq__ = _compare(E.eq, _equal)  # type: ignore[assignment]
    __ne__ = _compare(E.ne, lambda a, b: S.negated(_equal(a, b)))  # type: ignore[assignment, arg-type, return-value]
    __and__, __rand__ = _joined("and", _common)
    __or__, __ror__ = _joined("or", _either)

    def __xor__(self, other: Any) -> Value:
        two = lift(other)
        if is_whole(self.node) and is_whole(two):
            bits = _differing(whole(self, "^"), whole(other, "^"))
            return Value(bits, _checked_narrow("^", self, other))
        either: Value = (self & ~Value(two)) | (~self & other)
        return either

    __rxor__ = __xor__

    def __invert__(self) -> Value:
        if is_whole(self.node):
            _checked_narrow("~", self, grows=True)
            return Value(E.sub(E.const(-1), whole(self, "~")))
        return Value(S.negated(test(self, "~")))

    def __lshift__(self, bits: Any) -> Value:
        _checked_narrow("<<", self, bits, grows=True)
        return Value(E.scale(1 << _literal(bits, "<<"), whole(self, "<<")))

    def __rshift__(self, bits: Any) -> Value:
        shifted = E.floordiv(whole(self, ">>"), 1 << _literal(bits, ">>"))
        return Value(shifted, _checked_narrow(">>", self, bits))

    def __truediv__(self, other: Any) -> Value:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return apply("div", other, self)

    def __floordiv__(self, other: Any) -> Value:
        if is_whole(self.node) and is_whole(lift(other)):
            quotient = E.floordiv(whole(self, "//"), _divisor(other, "//"))
            return Value(quotient, _checked_narrow("//", self, other))
        return apply("floor", apply("div", self, other))

    def __rfloordiv__(self, other: Any) -> Value:
        return _value(other) // self

    def __mod__(self, other: Any) -> Value:
        if is_whole(self.node) and is_whole(lift(other)):
            rest = E.mod(whole(self, "%"), _divisor(other, "%"))
            return Value(rest, _checked_narrow("%", self, other))
        return self - _value(other) * (self // other)  # type: ignore[no-any-return]

    def __rmod__(self, other: Any) -> Value:
        return _value(other) % self

    def __pow__(self, other: Any) -> Value:
        return _power(self, other)

    def __rpow__(self, other: Any) -> Value:
        return _power(other, self)

    def __neg__(self) -> Value:
        if is_whole(self.node):
            _checked_narrow("-", self, grows=True)
            return Value(E.scale(-1, whole(self, "-")))
        return apply("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        if is_whole(self.node):
            _checked_narrow("abs", self, grows=True)
            return Value(E.absolute(whole(self, "abs")))
        return apply("abs", self)

    def __bool__(self) -> bool:
        refuse(
            "Python has to decide about a value that every pair has for itself (`if`, `and`, `or`)",
            "use torch.where, mc.scores.where or np.where, and & and | between conditions",
        )

    def __float__(self) -> float:
        refuse("it needs a plain number where every pair has its own (float(), math.exp)", _LIBRARY)

    __int__ = __index__ = __len__ = __iter__ = __contains__ = __float__
    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Value:
        if index is Ellipsis or (type(index) is tuple and not index):
            return self
        refuse("it indexes a number", _TABLE)

    def __getattr__(self, name: str) -> Any:
        return member(self, name, self._dtype, lambda x: _FUNCTIONS.get(canonical(x)), refuse)

    def _dtype(self) -> str:
        """Return the name of its dtype in torch."""
        kinds = ((is_test, "bool"), (is_whole, self.narrow or "int64"))
        return next((dtype for kind, dtype in kinds if kind(self.node)), "float32")

    def __repr__(self) -> str:
        return S.to_score_text(self.node)


table_operators(Value)


_LIBRARY = "use the functions of torch, NumPy or mc.scores: exp, log, tanh, sqrt, sigmoid, where"


def _literal(value: Any, symbol: str) -> int:
    number = E.as_const(whole(value, symbol))
    if number is None or not 0 <= number < _BITS:
        refuse(f"{symbol} needs a plain integer from 0 to {_BITS - 1}")
    return number


def _divisor(value: Any, symbol: str) -> int:
    number = E.as_const(whole(value, symbol))
    if not number:
        refuse(f"{symbol} needs a plain integer other than 0 as its divisor")
    return number


# ------------------------------------------------------------------ tables


class ScoreRows(TableRows):
    """A table some of whose dimensions are indexed, in a score formula."""

    __slots__ = ()
    of_score = True

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in ("__getitem__", "getitem"):
            return args[0][args[1]]
        hint = _SUMMED if getattr(function, "__name__", "") in _SUMS else (_ROW, _TABLE)
        return tabled(function, args, named or {}, ScoreNotTraceable(*hint, at=caller()))

    def whole(self) -> NoReturn:
        """Refuse a row where a number is needed."""
        refuse(f"it computes with a row of shape {self.shape} of a table", _TABLE)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refused = ScoreNotTraceable(f"it uses .{name} of a row of a table", _TABLE, at=caller())
        if not tabling_now():
            raise refused
        return lambda *args, **named: tabled(torch_method(name), (self, *args), named, refused)

    def __getitem__(self, given: Any) -> Any:
        left, parts = self._placed(given)
        if len(parts) > len(left):
            refuse(f"a table of {len(left)} dimensions is indexed by {len(parts)} numbers", _TABLE)
        index = list(self._index)
        for axis, part in zip(left, parts, strict=False):
            if type(part) is slice and part == slice(None):
                continue
            if part is None or type(part) is slice:
                refuse("it takes a slice of a table, or adds a dimension", _TABLE)
            index[axis] = whole(part, "an index")
        known = [part for part in index if part is not None]
        if len(known) < len(index):
            return ScoreRows(self._array, tuple(index))
        return Value(read_array(self._array, known), narrow_of(self._array.dtype))


def _of_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*values: Any) -> Any:
        return tabled(function, values, {}, ScoreNotTraceable(_ROW, _TABLE, at=caller()))

    return apply


for _name, _operator in operators_by_name():
    setattr(ScoreRows, _name, _of_rows(_operator))
ScoreRows.__getitem__ = or_tabled(  # type: ignore[method-assign]
    ScoreRows.__getitem__, operator.getitem
)


def read_array(array: Any, index: list[Expr]) -> Term:
    """Read an entry of a captured array."""
    kind = dtype_name(array)
    integer = kind.startswith(("int", "uint", "bool"))
    if not integer and not kind.startswith(("float", "bfloat")):
        refuse(f"it reads a table of {kind}", "tables hold real numbers or integers")
    if len(index) > S.MAX_RANK:
        refuse(f"it reads a table of {len(index)} dimensions", f"at most {S.MAX_RANK} are known")
    if all(size == 1 for size in array.shape):
        index = []
    return read_entry(array, kind, index)


def read_entry(array: Any, kind: str, index: list[Expr]) -> Term:
    """Read an entry of a named table.

    Args:
        kind: the name of its dtype.
    """
    registry, integer = _collected(), not kind.startswith(("float", "bfloat"))
    if getattr(array, "requires_grad", False):
        registry.check_grad()
    name = registry.capture(array)
    registry.slot(name, len(index), integer)
    if not integer:
        return S.Read(name, tuple(index))
    entry = S.Entry(name, tuple(index))
    return E.ne(entry, E.ZERO) if kind == "bool" else entry


class NamedTable:
    """A table that calls pass by name, as `mc.table` makes it."""

    __slots__ = ("_integer", "_name")
    of_score = True

    def __init__(self, name: str, integer: bool) -> None:
        self._name, self._integer = name, integer

    def __getitem__(self, given: Any) -> Value:
        parts = given if type(given) is tuple else (given,)
        if len(parts) > S.MAX_RANK:
            refuse(
                f"it reads a table of {len(parts)} dimensions", f"at most {S.MAX_RANK} are known"
            )
        index = tuple(whole(part, "an index") for part in parts)
        _collected().slot(self._name, len(index), self._integer)
        kind = S.Entry if self._integer else S.Read
        return Value(kind(self._name, index))

    def __repr__(self) -> str:
        return f"table({self._name!r})"


class Parameter(Value):
    """A real number that calls may pass by name, from `mc.param` with a float."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: float) -> None:
        super().__init__(S.Read(name, ()))
        self.name, self.default = name, default

    def outside(self) -> NoReturn:
        """Raise an error if it is used outside of a score formula, as in a mask."""
        finding = f"{self.name!r} is a real number, and masks compute with integers"
        refuse(finding, f"write mc.param({self.name!r}, 2), or use it inside of mc.score")

    def __index__(self) -> int:
        if _registry.get() is None:
            self.outside()
        return int(super().__index__())


class WatchedTable(np.ndarray):
    """A NumPy array that values of a formula may index."""

    def __getitem__(self, index: Any) -> Any:
        if is_traced(index):
            return read(self.base if self.base is not None else self, index)
        return super().__getitem__(index)


def read(array: Any, index: Any) -> Any:
    """array[index] with traced indices."""
    if type(array) in (ScoreRows, NamedTable):
        return array[index]
    return ScoreRows(array, (None,) * array.ndim)[index]


def is_traced(value: Any) -> bool:
    """Whether this argument makes torch dispatch the call to the tracer."""
    return among(value, (Value, Parameter, ScoreRows, Traced, Opaque))


# ------------------------------------------------------------------ functions of torch and NumPy


def _value(x: Any) -> Value:
    return Value(lift(x), common_narrow(x))


def _real(function: str) -> Callable[..., Any]:
    return lambda x: apply(function, x)


def _extreme(name: str, build: Callable[..., Expr]) -> Callable[..., Any]:
    def function(*values: Any) -> Any:
        items = (
            tuple(values[0])
            if len(values) == 1 and isinstance(values[0], (list, tuple))
            else values
        )
        if not any(map(is_traced, items)):
            return {"min": min, "max": max}[name](items)
        if all(is_whole(lift(item)) for item in items):
            extreme = build(*(whole(item, name) for item in items))
            return Value(extreme, _checked_narrow(name, *items))
        greatest = _value(items[0])
        for item in items[1:]:
            greatest = apply(name, greatest, item)
        return greatest

    function.__doc__ = f"Return the {name}imum of some values, or of one list of values."
    return function


minimum, maximum = _extreme("min", E.minimum), _extreme("max", E.maximum)


def _clamp(input: Any, min: Any = None, max: Any = None, **bounds: Any) -> Any:
    low, high = bounds.pop("a_min", min), bounds.pop("a_max", max)
    clamped = _value(input)
    if low is not None:
        clamped = maximum(clamped, low)
    return clamped if high is None else minimum(clamped, high)


def _divide(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return _value(input) // other
    if rounding_mode is not None:
        return Value(S.Trunc(real(_value(input) / other)), common_narrow(input, other))
    return _value(input) / other


def _cast(value: Any, dtype: Any) -> Value:
    name = str(dtype).rpartition(".")[2] if not isinstance(dtype, type) else dtype.__name__
    made = _value(value)
    if name == "bool":
        return made if is_test(made.node) else made != 0
    if name.startswith(("int", "long", "short", "uint")):
        narrow = narrow_of({"short": "int16"}.get(name, name))
        if isinstance(made.node, S.Real):
            if narrow:
                refuse(f"a real number is converted to {name}", _WIDE)
            return Value(S.Trunc(made.node))
        number = whole(made, "a conversion")
        if made.narrow != narrow and exceeds(narrow, *S.of_whole(number)):
            refuse(f"a value that need not fit {name} is converted to it", _WIDE)
        return Value(number, narrow)
    if name in ("float32", "float", "float64", "double"):
        return Value(real(made))
    refuse(f"it rounds to {name}", "formulas are computed in float32")


def _to(input: Any, *args: Any, **named: Any) -> Value:
    made = _value(input)
    for argument in (*args, *named.values()):
        if type(argument).__name__ == "dtype" or argument in (int, float, bool):
            made = _cast(made, argument)
        elif type(argument) is Value:
            kind = argument.narrow or "int64" if is_whole(argument.node) else "float32"
            made = _cast(made, kind)
    return made


def _caster(name: str) -> Callable[..., Any]:
    return lambda x, **_: _cast(x, name)


def _filled(amount: float) -> Callable[..., Any]:
    def function(x: Any, *_: Any, dtype: Any = None, **__: Any) -> Value:
        return Value(lift(amount), common_narrow(x)) if dtype is None else _cast(amount, dtype)

    return function


def _filled_with(input: Any, *sizes: Any, dtype: Any = None, **named: Any) -> Value:
    amount = named.get("fill_value", sizes[-1] if sizes else None)
    if dtype is not None:
        return _cast(amount, dtype)
    return Value(lift(amount), common_narrow(input if type(amount) is int else amount))


def _masked_fill(input: Any, mask: Any, value: Any) -> Value:
    return choose(mask, value, input)


def _softplus(input: Any, beta: float = 1, threshold: float = 20) -> Value:
    x = apply("mul", input, beta)
    tail = apply("log", apply("add", 1.0, apply("exp", apply("neg", apply("abs", x)))))
    smooth = apply("div", apply("add", apply("max", x, 0.0), tail), beta)
    # at the default threshold both sides differ by less than fp32 resolves
    return smooth if threshold >= 20 else choose(x > threshold, input, smooth)


def _gelu(input: Any, approximate: str = "none") -> Value:
    x = _value(input)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * _power(x, 3))
        return 0.5 * x * (1 + apply("tanh", inner))
    return apply("gelu", x)


def _elu(input: Any, height: float, width: float = 1.0) -> Value:
    x = _value(input)
    below = height * (apply("exp", apply("min", x / width, 0.0)) - 1)
    return choose(x > 0, x, below)


def _logical(build: Callable[[Value, Value], Value]) -> Callable[..., Any]:
    return lambda x, other: build(_cast(x, "bool"), _cast(other, "bool"))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **operators(_value),
    **{
        name: _real(name)
        for name in ("exp", "log", "tanh", "sqrt", "sigmoid", "erf", "sin", "cos", "floor", "sign")
    },
    "div": _divide, "fabs": lambda x: abs(_value(x)),
    **dict.fromkeys(("rtruediv", "rdiv"), lambda x, other: _divide(other, x)),
    **dict.fromkeys(("pow", "power", "float_power"), _power),
    "rpow": lambda x, other: _power(other, x),
    "tan": lambda x: apply("sin", x) / apply("cos", x),
    "square": lambda x: _power(x, 2),
    "exp2": lambda x: apply("exp", apply("mul", x, math.log(2.0))),
    "expm1": lambda x: apply("sub", apply("exp", x), 1.0),
    "log2": lambda x: apply("mul", apply("log", x), 1 / math.log(2.0)),
    "log10": lambda x: apply("mul", apply("log", x), 1 / math.log(10.0)),
    "log1p": lambda x: apply("log", apply("add", 1.0, x)),
    "rsqrt": lambda x: apply("div", 1.0, apply("sqrt", x)),
    "reciprocal": lambda x: apply("div", 1.0, x),
    "relu": lambda x, *_, **__: maximum(_value(x), 0),
    "silu": lambda x, *_, **__: _value(x) * apply("sigmoid", x),
    "mish": lambda x, *_, **__: _value(x) * apply("tanh", _softplus(x)),
    "hardsigmoid": lambda x, *_, **__: _clamp(_value(x) + 3, 0, 6) / 6,
    "hardswish": lambda x, *_, **__: _value(x) * (_clamp(_value(x) + 3, 0, 6) / 6),
    "relu6": lambda x, *_, **__: _clamp(x, 0, 6),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0, *_, **__: _clamp(x, min_val, max_val),
    "leaky_relu": lambda x, negative_slope=0.01, *_, **__: choose(
        _value(x) > 0, x, _value(x) * negative_slope
    ),
    "elu": lambda x, alpha=1.0, *_, **__: _elu(x, alpha),
    "celu": lambda x, alpha=1.0, *_, **__: _elu(x, alpha, alpha),
    "selu": lambda x, *_, **__: 1.0507009873554805 * _elu(x, 1.6732632423543772),
    "softsign": lambda x, *_, **__: _value(x) / (1 + abs(_value(x))),
    "gelu": _gelu, "softplus": _softplus,
    **dict.fromkeys(("log_sigmoid", "logsigmoid"), lambda x: -_softplus(-_value(x))),
    "ceil": lambda x: -apply("floor", -_value(x)),
    **dict.fromkeys(("min", "fmin"), minimum), **dict.fromkeys(("max", "fmax"), maximum),
    "clamp": _clamp, "clamp_min": lambda x, low: _clamp(x, low),
    "clamp_max": lambda x, high: _clamp(x, None, high),
    "where": choose, "masked_fill": _masked_fill,
    "logical_and": _logical(operator.and_), "logical_or": _logical(operator.or_),
    "logical_xor": _logical(operator.xor),
    "logical_not": lambda x: Value(S.negated(test(_cast(x, "bool"), "not"))),
    **dict.fromkeys(("to", "astype"), _to),
    "float": _caster("float32"), "double": _caster("float32"), "long": _caster("int64"),
    "int": _caster("int64"), "bool": _caster("bool"), "half": _caster("float16"),
    "bfloat16": _caster("bfloat16"),
    "zeros_like": _filled(0), "ones_like": _filled(1),
    **dict.fromkeys(("full_like", "new_full"), _filled_with),
    **dict.fromkeys(("clone", "item"), lambda x, *_, **__: _value(x)),
    "getitem": read, "dim": lambda x: 0,
}  # fmt: skip
"""By canonical names."""
