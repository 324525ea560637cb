"""The meaning of functions and methods of torch and NumPy for traced values.

Those that are exact on integers and conditions are followed; whatever else a formula calls is
refused by its name. torch and NumPy hand their calls over (`__torch_function__`,
`__array_function__`, `__array_ufunc__`), so nothing is replaced in them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from maskc.core import expr as E
from maskc.core.errors import NotTraceable
from maskc.core.expr import Expr, is_condition
from maskc.core.layout import MAX_LENGTH
from maskc.core.source import caller
from maskc.core.widths import magnitude, number
from maskc.dsl.tables import read
from maskc.dsl.traced import (
    Traced,
    as_condition,
    as_integer,
    choose,
    lift,
    lift_bool,
    lift_int,
    settled,
)

Function = Callable[..., object]


def _refuse(what: str) -> NoReturn:
    raise NotTraceable(what, at=caller())


def call(library: str, function: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> object:
    """The result of a function that was given traced values."""
    name = getattr(function, "__name__", repr(function))
    known = _FUNCTIONS.get(name.strip("_"))
    if known is None or (library, name) == ("torch", "equal"):  # which asks for a Python bool
        _refuse(f"it uses {library}.{name}")
    try:
        return known(*args, **named)
    except TypeError as error:
        _refuse(f"{library}.{name}: {error}")


def method(name: str) -> Function | None:
    """A method of tensors; None where a traced value has none of that name."""
    return _FUNCTIONS.get(name) if name in _METHODS else None


def attribute(value: Traced, name: str) -> object:
    """The attribute of a tensor without dimensions; None where it has none of this name."""
    if name == "shape":
        return ()
    if name == "ndim":
        return 0
    torch = _torch()
    if torch is None:
        return None
    if name == "device":
        return device()
    if name == "dtype":
        return torch.bool if is_condition(value.expr) else torch.int64
    return None


_DEVICES: list[Any] = []


def device() -> Any:
    """The device that traced values claim: tensors moved there stay where they are."""
    if not _DEVICES:
        _DEVICES.append(_torch().device("cpu"))
    return _DEVICES[0]


def _torch() -> Any:
    import sys

    return sys.modules.get("torch")


# ------------------------------------------------------------------ integers and conditions


def _operator(apply: Callable[[Any, Any], object]) -> Function:
    """A function of two operands that Python has an operator for."""

    def function(input: Any, other: Any) -> object:
        return apply(_own(input), _own(other))

    return function


def _own(value: Any) -> Traced:
    return Traced(lift(value))


def _unary(apply: Callable[[Any], object]) -> Function:
    def function(input: Any) -> object:
        return apply(_own(input))

    return function


def _swapped(apply: Callable[[Any, Any], object]) -> Function:
    def function(input: Any, other: Any) -> object:
        return apply(_own(other), _own(input))

    return function


def _scaled(apply: Callable[[Any, Any], object]) -> Function:
    """add and sub: `alpha` multiplies the second operand."""

    def function(input: Any, other: Any, *, alpha: int = 1) -> object:
        return apply(_own(input), _own(other) if alpha == 1 else _own(other) * alpha)

    return function


def _logical(build: Callable[..., Expr]) -> Function:
    def function(*values: Any) -> Traced:
        return Traced(build(*(as_condition(lift(value)) for value in values)))

    return function


def _where(condition: Any, input: Any, other: Any) -> Traced:
    chosen = choose(lift_bool(condition, "where"), lift(input), lift(other))
    return Traced(chosen)


def _extreme(build: Callable[..., Expr]) -> Function:
    def function(input: Any, other: Any) -> Traced:
        return Traced(build(lift_int(input, "min"), lift_int(other, "max")))

    return function


def _clamp(input: Any, min: Any = None, max: Any = None, **bounds: Any) -> Traced:
    low, high = bounds.pop("a_min", min), bounds.pop("a_max", max)
    if bounds or (low is None and high is None):
        _refuse("clamp needs min or max")
    value = lift_int(input, "clamp")
    if low is not None:
        value = E.maximum(value, lift_int(low, "clamp"))
    return Traced(value if high is None else E.minimum(value, lift_int(high, "clamp")))


def _clamp_max(input: Any, max: Any) -> Traced:
    return _clamp(input, None, max)


def _divide(input: Any, other: Any, *, rounding_mode: str | None = None) -> object:
    left, right = _own(input), _own(other)
    if rounding_mode == "floor":
        return left // right
    if rounding_mode == "trunc":
        negative = settled(E.lt(lift_int(left, "div"), E.ZERO))
        return Traced(choose(negative, (-((-left) // right)).expr, (left // right).expr))
    _refuse('division leaves the integers; use // or rounding_mode="floor"')


def _trunc_remainder(input: Any, other: Any) -> object:
    """C's remainder, with the sign of the dividend."""
    return _own(input) - _divide(input, other, rounding_mode="trunc") * _own(other)


def _is_in(elements: Any, test_elements: Any, *, invert: bool = False) -> Traced:
    ids = np.asarray(_host(test_elements))
    if ids.dtype.kind not in "iu" or (ids.size and type(elements) is not Traced):
        _refuse("isin needs plain integers to look among")
    found = settled(E.member(lift_int(elements, "isin"), ids.ravel().tolist()))
    return Traced(E.negate(found) if invert else found)


def _host(array: Any) -> Any:
    return array.detach().cpu().numpy() if hasattr(array, "detach") else array


# ------------------------------------------------------------------ element types

_WIDTHS = {"int64": 63, "long": 63, "int32": 31, "int": 31, "int16": 15, "short": 15, "int8": 7,
           "uint8": 8}  # fmt: skip


def _magnitude(expr: Expr) -> int:
    """A bound on the absolute value of an integer formula, whatever is captured."""
    names = dict.fromkeys((*E.symbols(expr), *E.params(expr)), MAX_LENGTH)
    return number(magnitude(expr), names | dict.fromkeys(E.arrays(expr), 1 << 31))


def _cast(value: Traced, name: str) -> Traced:
    if name == "bool":
        return Traced(as_condition(value.expr))
    if name not in _WIDTHS:
        _refuse(f"it converts a traced value to {name}")
    made = as_integer(value.expr)
    if made == value.expr and _magnitude(made) >> _WIDTHS[name] and name != "int64":
        known = isinstance(made, E.Load) and _WIDTHS[name] >= 31  # captured values fit 32 bits
        if not known:
            _refuse(f"a value that need not fit {name} is converted to it")
    return Traced(made)


def _dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _is_dtype(value: Any) -> bool:
    return type(value).__name__ == "dtype"


def _to(input: Any, *args: Any, **named: Any) -> Traced:
    value = _own(input)
    for each in (*args, *named.values()):
        if _is_dtype(each):
            value = _cast(value, _dtype_name(each))
        elif type(each) is Traced:
            value = _cast(value, "bool" if is_condition(each.expr) else "int64")
    return value


def _caster(name: str) -> Function:
    def function(input: Any) -> Traced:
        return _cast(_own(input), name)

    return function


def _filled(amount: Any) -> Function:
    """ones, zeros or a value in the shape of a traced value: no dimensions."""

    def function(input: Any, *sizes: Any, dtype: Any = None, **_: Any) -> Traced:
        flat = [n for size in sizes for n in (size if type(size) in (tuple, list) else [size])]
        if flat:
            _refuse(f"it makes a tensor of shape {tuple(flat)}")
        return _filled_with(input, amount, dtype)

    return function


def _full(input: Any, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Traced:
    if tuple(size):
        _refuse(f"it makes a tensor of shape {tuple(size)}")
    return _filled_with(input, fill_value, dtype)


def _full_like(input: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Traced:
    return _filled_with(input, fill_value, dtype)


def _filled_with(like: Any, amount: Any, dtype: Any) -> Traced:
    if dtype is None:
        return _to(amount, like)
    return _cast(_own(amount), _dtype_name(dtype))


def _no_dimensions(input: Any) -> int:
    return 0


def _same(input: Any, *_: Any, **__: Any) -> Traced:
    return _own(input)


# ------------------------------------------------------------------ the table

_AND, _OR = _operator(operator.and_), _operator(operator.or_)
_XOR, _NOT = _operator(operator.xor), _unary(operator.invert)
_SUB, _DIVIDE = _scaled(operator.sub), _divide
_FUNCTIONS: dict[str, Function] = {
    "add": _scaled(operator.add), "sub": _SUB, "subtract": _SUB, "rsub": _swapped(operator.sub),
    "radd": _swapped(operator.add), "rmul": _operator(operator.mul),
    "mul": _operator(operator.mul), "multiply": _operator(operator.mul),
    "floor_divide": _operator(operator.floordiv), "floordiv": _operator(operator.floordiv),
    "rfloordiv": _swapped(operator.floordiv), "remainder": _operator(operator.mod),
    "mod": _operator(operator.mod), "rmod": _swapped(operator.mod), "fmod": _trunc_remainder,
    "div": _DIVIDE, "divide": _DIVIDE, "true_divide": _DIVIDE, "truediv": _DIVIDE,
    "neg": _unary(operator.neg), "negative": _unary(operator.neg),
    "positive": _same, "pos": _same,
    "abs": _unary(abs), "absolute": _unary(abs),
    "minimum": _extreme(E.minimum), "maximum": _extreme(E.maximum),
    "min": _extreme(E.minimum), "max": _extreme(E.maximum),
    "clamp": _clamp, "clip": _clamp,
    "clamp_min": _clamp, "clamp_max": _clamp_max,
    "where": _where, "isin": _is_in, "fix": _same, "floor": _same, "ceil": _same,
    "eq": _operator(operator.eq), "equal": _operator(operator.eq),
    "ne": _operator(operator.ne), "not_equal": _operator(operator.ne),
    "ge": _operator(operator.ge), "greater_equal": _operator(operator.ge),
    "gt": _operator(operator.gt), "greater": _operator(operator.gt),
    "le": _operator(operator.le), "less_equal": _operator(operator.le),
    "lt": _operator(operator.lt), "less": _operator(operator.lt),
    "and": _AND, "rand": _AND, "iand": _AND, "bitwise_and": _AND,
    "or": _OR, "ror": _OR, "ior": _OR, "bitwise_or": _OR,
    "xor": _XOR, "rxor": _XOR, "ixor": _XOR, "bitwise_xor": _XOR,
    "invert": _NOT, "bitwise_not": _NOT,
    "logical_and": _logical(E.conj), "logical_or": _logical(E.disj),
    "logical_xor": _logical(E.xor), "logical_not": _logical(E.negate),
    "to": _to, "type": _to, "type_as": _to, "bool": _caster("bool"), "long": _caster("int64"),
    "int": _caster("int32"), "short": _caster("int16"),
    "new_ones": _filled(1), "new_zeros": _filled(0), "new_full": _full,
    "ones_like": _filled(1), "zeros_like": _filled(0), "full_like": _full_like,
    "clone": _same, "contiguous": _same, "detach": _same, "cpu": _same, "cuda": _same,
    "dim": _no_dimensions, "getitem": read,
}  # fmt: skip
_METHODS = frozenset(_FUNCTIONS) - {
    "equal", "getitem", "radd", "rmul", "rmod", "rand", "ror", "rxor", "iand", "ior", "ixor",
    "and", "or", "mod", "invert", "pos", "truediv", "floordiv", "rfloordiv", "positive", "fix",
    "ones_like", "zeros_like", "full_like", "where", "isin",
}  # fmt: skip
