"""The meaning of functions and methods of torch and NumPy for traced values.

Functions that are exact on integers and conditions are traced; all others are refused by name.
torch and NumPy dispatch their calls here (`__torch_function__`, `__array_function__`,
`__array_ufunc__`), so no function of theirs is patched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from maskc.core import expr as E
from maskc.core.errors import NotTraceable
from maskc.core.expr import Expr
from maskc.core.layout import MAX_LENGTH
from maskc.core.source import caller
from maskc.core.widths import magnitude, number
from maskc.dsl.followed import canonical, checked_narrow, common_narrow, narrow_of, operators
from maskc.dsl.tabled import answered
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
    return answered(_meaning_of, _refuse, library, function, args, named)


def _meaning_of(library: str, name: str) -> Function | None:
    if (library, name) == ("torch", "equal"):  # which needs a Python bool
        return None
    return _FUNCTIONS.get(canonical(name))


def method(name: str) -> Function | None:
    """A method of tensors; None if a traced value has none of that name."""
    return None if name in _NO_METHODS else _FUNCTIONS.get(canonical(name))


# ------------------------------------------------------------------ integers and conditions


def _own(value: Any) -> Traced:
    return Traced(lift(value), common_narrow(value))


def _logical(build: Callable[..., Expr]) -> Function:
    def function(*values: Any) -> Traced:
        return Traced(build(*(as_condition(lift(value)) for value in values)))

    return function


def _where(condition: Any, input: Any, other: Any) -> Traced:
    chosen = choose(lift_bool(condition, "where"), lift(input), lift(other))
    return Traced(chosen, checked_narrow(_refuse, "where", input, other))


def _extreme(build: Callable[..., Expr]) -> Function:
    def function(input: Any, other: Any) -> Traced:
        extreme = build(lift_int(input, "min"), lift_int(other, "max"))
        return Traced(extreme, checked_narrow(_refuse, "min or max", input, other))

    return function


def _clamp(input: Any, min: Any = None, max: Any = None, **bounds: Any) -> Traced:
    low, high = bounds.pop("a_min", min), bounds.pop("a_max", max)
    if bounds or (low is None and high is None):
        _refuse("clamp needs min or max")
    value = lift_int(input, "clamp")
    if low is not None:
        value = E.maximum(value, lift_int(low, "clamp"))
    value = value if high is None else E.minimum(value, lift_int(high, "clamp"))
    values = [x for x in (input, low, high) if x is not None]
    return Traced(value, checked_narrow(_refuse, "clamp", *values))


def _clamp_max(input: Any, max: Any) -> Traced:
    return _clamp(input, None, max)


def _divide(input: Any, other: Any, *, rounding_mode: str | None = None) -> Traced:
    left, right = _own(input), _own(other)
    if rounding_mode == "floor":
        return left // right
    if rounding_mode == "trunc":
        divisor = E.as_const(lift_int(right, "div"))
        if divisor is not None and divisor < 0:
            return -_divide(left, -divisor, rounding_mode="trunc")
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
    member = settled(E.member(lift_int(elements, "isin"), ids.ravel().tolist()))
    return Traced(E.negate(member) if invert else member)


def _host(array: Any) -> Any:
    return array.numpy(force=True) if hasattr(array, "detach") else array


# ------------------------------------------------------------------ element types

_WIDTHS = {"int64": 63, "long": 63, "int32": 31, "int": 31, "int16": 15, "short": 15, "int8": 7,
           "uint8": 8}  # fmt: skip


def _magnitude(expr: Expr) -> int:
    """Return a bound on the absolute value of an integer formula, for any captured content."""
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
    return Traced(made, narrow_of("int16" if name == "short" else name))


def _dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _to(input: Any, *args: Any, **named: Any) -> Traced:
    value = _own(input)
    for argument in (*args, *named.values()):
        if type(argument).__name__ == "dtype":
            value = _cast(value, _dtype_name(argument))
        elif type(argument) is Traced:
            value = _cast(value, "bool" if argument.decides() else argument.narrow or "int64")
    return value


def _caster(name: str) -> Function:
    return lambda x: _cast(_own(x), name)


def _filled(amount: Any) -> Function:
    """Return the value for ones_like, zeros_like and full_like: traced values have no
    dimensions."""

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


def _filled_with(like: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Traced:
    if dtype is None:
        return _to(fill_value, like)
    return _cast(_own(fill_value), _dtype_name(dtype))


def _same(input: Any, *_: Any, **__: Any) -> Traced:
    return _own(input)


# ------------------------------------------------------------------ the table

_FUNCTIONS: dict[str, Function] = {
    **operators(_own),
    "fmod": _trunc_remainder, "div": _divide, "min": _extreme(E.minimum),
    "max": _extreme(E.maximum), "clamp": _clamp, "clamp_min": _clamp,
    "clamp_max": _clamp_max, "where": _where, "isin": _is_in,
    **dict.fromkeys(("positive", "pos", "fix", "floor", "ceil", "clone", "detach"), _same),
    "logical_and": _logical(E.conj), "logical_or": _logical(E.disj),
    "logical_xor": _logical(E.xor), "logical_not": _logical(E.negate),
    "to": _to, "bool": _caster("bool"), "long": _caster("int64"), "int": _caster("int32"),
    "short": _caster("int16"), "ones_like": _filled(1), "zeros_like": _filled(0),
    "new_full": _full, "full_like": _filled_with, "dim": lambda x: 0, "getitem": read,
}  # fmt: skip
"""By canonical names."""
_NO_METHODS = frozenset({
    "equal", "getitem", "radd", "rmul", "rmod", "rand", "ror", "rxor", "iand", "ior", "ixor",
    "and", "or", "mod", "invert", "pos", "truediv", "floordiv", "rfloordiv", "positive", "fix",
    "ones_like", "zeros_like", "full_like", "where", "isin",
})  # fmt: skip
"""Names of functions that are not methods of a tensor in a formula."""
