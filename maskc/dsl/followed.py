"""Protocols of torch, NumPy and Python for values that remember how they were computed.

The tracers of masks and of scores share the names of functions, the protocols and the indexing in
this file. Each defines the meaning of functions for its own values.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeVar

from maskc.core.captured import computed_by, forget_computation, is_computed, version_of
from maskc.core.errors import MaskcError
from maskc.core.source import SourceLoc, raised_at

T = TypeVar("T")


@contextmanager
def during(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Set a variable to this value during the `with` block, and yield it."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextmanager
def told(wrong: type[MaskcError], at: SourceLoc | None, *hint: str) -> Iterator[None]:
    """Turn errors of the user's function into maskc errors at its line, or at `at`."""
    try:
        yield
    except MaskcError:
        raise
    except Exception as error:
        place = raised_at(error, at.file) if at is not None else None
        finding = f"it raised {type(error).__name__}: {error}"
        if "as a JAX value" in str(error):
            finding = "it calls a function of JAX that needs arrays: jax.numpy has some that do not"
        raise wrong(finding, *hint, at=place or at) from error


# ------------------------------------------------------------------ functions by name

_NAMES = {
    "add": ("radd",), "sub": ("subtract",), "mul": ("multiply", "rmul"),
    "div": ("divide", "true_divide", "truediv"), "floordiv": ("floor_divide",),
    "mod": ("remainder",), "neg": ("negative",), "abs": ("absolute",), "min": ("minimum",),
    "max": ("maximum",), "clamp": ("clip",), "eq": ("equal",), "ne": ("not_equal",),
    "ge": ("greater_equal",), "gt": ("greater",), "le": ("less_equal",), "lt": ("less",),
    "and": ("rand", "iand", "bitwise_and"), "or": ("ror", "ior", "bitwise_or"),
    "xor": ("rxor", "ixor", "bitwise_xor"), "invert": ("bitwise_not",), "to": ("type", "type_as"),
    "lshift": ("ilshift", "bitwise_left_shift"), "rshift": ("irshift", "bitwise_right_shift"),
    "ones_like": ("new_ones",), "zeros_like": ("new_zeros",),
    "clone": ("contiguous", "cpu", "cuda"),
}  # fmt: skip
_CANONICAL = {other: name for name, others in _NAMES.items() for other in others}


def canonical(name: str) -> str:
    """Return the one name under which tables list a function that torch, NumPy and Python name
    differently.
    """
    return _CANONICAL.get(name, name)


def operators(operand: Callable[[Any], Any]) -> dict[str, Callable[..., Any]]:
    """Functions with a Python operator, by their canonical names.

    Args:
        operand: converts an operand to a value of the tracer.
    """

    def one(apply: Callable[[Any], Any]) -> Callable[..., Any]:
        def function(input: Any) -> Any:
            return apply(operand(input))

        return function

    def two(apply: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def function(input: Any, other: Any) -> Any:
            return apply(operand(input), operand(other))

        return function

    def scaled(apply: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def function(input: Any, other: Any, *, alpha: Any = 1) -> Any:
            return apply(operand(input), operand(other) if alpha == 1 else operand(other) * alpha)

        return function

    def swapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda input, other, **named: function(other, input, **named)  # noqa: A006

    plain = (
        "mul", "floordiv", "mod", "eq", "ne", "ge", "gt", "le", "lt", "and_", "or_", "xor",
        "lshift", "rshift",
    )  # fmt: skip
    return {
        **{name.strip("_"): two(getattr(operator, name)) for name in plain},
        "add": scaled(operator.add), "sub": scaled(operator.sub),
        "rsub": swapped(scaled(operator.sub)),
        "rfloordiv": swapped(two(operator.floordiv)), "rmod": swapped(two(operator.mod)),
        "neg": one(operator.neg), "abs": one(abs), "invert": one(operator.invert),
    }  # fmt: skip


# ------------------------------------------------------------------ integers that wrap around

_NARROW = {
    "int8": range(-(1 << 7), 1 << 7), "uint8": range(1 << 8),
    "int16": range(-(1 << 15), 1 << 15), "uint16": range(1 << 16),
}  # fmt: skip
"""Values of the types in which torch, NumPy and JAX wrap around, and formulas do not. 32 bits count
as 64: ids and positions are far from their ends."""


def narrow_of(dtype: object) -> str:
    """The name of a dtype if its arithmetic wraps around early, else nothing."""
    name = str(dtype).rpartition(".")[2]
    return name if name in _NARROW else ""


def common_narrow(*values: Any) -> str:
    """The narrow dtype in which a library computes with these values; nothing if it computes in a
    wider one. Python's numbers and conditions take the dtype of the other values."""
    names = [
        x.narrow if isinstance(x, Followed) else narrow_of(getattr(x, "dtype", ""))
        for x in values
        if type(x) not in (int, bool) and not (isinstance(x, Followed) and x.decides())
    ]
    return max(names) if names and all(names) else ""


def checked_narrow(
    refuse: Callable[[str], NoReturn], symbol: str, *values: object, grows: bool = False
) -> str:
    """Return `common_narrow`, and refuse arithmetic that may wrap around in the user's library.

    Args:
        refuse: raises the tracer's error.
        symbol: the operation.
        grows: whether the result may be larger than the operands; else only plain integers that
            the narrow dtype lacks are refused.
    """
    narrow = common_narrow(*values)
    if narrow and (grows or any(type(x) is int and x not in _NARROW[narrow] for x in values)):
        convert = "call .long() on the array first, or .astype(int)"
        refuse(f"{symbol} of {narrow} values may wrap around: {convert}")
    return narrow


def exceeds(narrow: str, low: float, high: float) -> bool:
    """Whether values from low to high may exceed a narrow dtype."""
    return bool(narrow) and not (low in _NARROW[narrow] and high in _NARROW[narrow])


# ------------------------------------------------------------------ protocols


class Followed:
    """Passes operations of torch and NumPy on a traced value to its tracer."""

    __slots__ = ()
    _called: ClassVar[Callable[..., Any]]
    """(library, function, positional arguments, named ones) -> the result."""
    _refused: ClassVar[Callable[..., Any]]
    """Raises the tracer's error with a finding."""
    narrow: str = ""
    """The dtype of the array that an integer was read from, if that wraps around early."""

    def decides(self) -> bool:
        """Whether the value is a condition."""
        return False

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **named: Any) -> Any:
        if method != "__call__":
            self._refused(f"it uses numpy.{ufunc.__name__}.{method}")
        return self._called("numpy", ufunc, args, named)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        return self._called("numpy", function, args, named)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        return cls._called("torch", function, args, named or {})


def attribute(name: str, dtype: str) -> Any:
    """Return an attribute as a 0-dimensional tensor has it; None if there is none of this name."""
    torch = sys.modules.get("torch")
    match name:
        case "shape":
            return ()
        case "ndim":
            return 0
        case "device" if torch is not None:
            return device()
        case "dtype" if torch is not None:
            return getattr(torch, dtype)
    return None


@cache
def device() -> Any:
    """The device that traced values claim: tensors moved there stay where they are."""
    return sys.modules["torch"].device("cpu")


def torch_calls(
    seen: Callable[..., Any], refuse: Callable[[str], NoReturn]
) -> AbstractContextManager[Any]:
    """During the `with` block, `seen` handles every torch call, so that traced values can index
    tensors.

    Args:
        seen: takes a function, its positional arguments and its named ones.
        refuse: raises the tracer's error: a random number would be drawn once, for all pairs.
    """
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else _mode(torch, seen, refuse)()


@cache
def _mode(torch: Any, seen: Callable[..., Any], refuse: Callable[[str], NoReturn]) -> type:
    def answered(_: object, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if _draws(torch, name):
            refuse(f"torch.{name} draws once, for all pairs; index a tensor drawn before")
        return seen(function, args, named or {})

    bases = (torch.overrides.TorchFunctionMode,)
    return type("Tracing", bases, {"__torch_function__": answered})


@cache
def _draws(torch: Any, name: str) -> bool:
    """Whether a function of torch draws random numbers."""
    packet = None if name.startswith("_") else getattr(torch.ops.aten, name, None)
    overloads = (getattr(packet, overload) for overload in (packet.overloads() if packet else ()))
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def computed(function: Any, args: Any, named: Any) -> Any:
    """Return the result of a function of torch on the user's tensors, inside of a traced function.

    A call reads the present content of tensors. One that was computed here is computed again after
    a write into those that it was computed from. Views of the user's tensors share their memory.
    """
    tensor = sys.modules["torch"].Tensor
    sources = [x for x in _flat((args, named)) if isinstance(x, tensor)]
    before = [version_of(source) for source in sources]
    result = function(*args, **named)
    for source, version in zip(sources, before, strict=True):
        if version_of(source) != version:
            forget_computation(source)
    single = type(result) is tensor
    several = result if isinstance(result, tuple) and sources else ()
    for number, made in enumerate((result,) if single and sources else several):
        if type(made) is tensor and not any(_owns(source, made) for source in sources):

            def again(content: Callable[[Any], Any], number: int = number) -> Any:
                values = function(*_mapped(content, args), **_mapped(content, named))
                return values if single else values[number]

            computed_by(made, again, sources)
    return result


def _flat(value: Any) -> Iterator[Any]:
    """The values inside of nested tuples, lists and dicts."""
    kind = type(value)
    if kind not in (tuple, list, dict):
        yield value
        return
    for item in value.values() if kind is dict else value:
        yield from _flat(item)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The values inside of nested tuples, lists and dicts, changed."""
    kind = type(value)
    if kind is dict:
        return {name: _mapped(change, item) for name, item in value.items()}
    if kind in (tuple, list):
        return kind([_mapped(change, item) for item in value])
    return change(value)


def _owns(source: Any, made: Any) -> bool:
    """Whether a result is the source itself, or a view of it that needs no computation."""
    if source is made or is_computed(source):
        return source is made
    try:
        return bool(source.untyped_storage().data_ptr() == made.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return True


def among(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value, or one in a tuple or list, is exactly of one of the kinds."""
    kind = type(value)
    if kind is tuple or kind is list:
        return any(among(item, kinds) for item in value)
    return kind in kinds


# ------------------------------------------------------------------ rows of tables


class TableRows:
    """A table in which some dimensions are indexed."""

    __slots__ = ("_array", "_index")

    def __init__(self, array: Any, index: tuple[Any, ...]) -> None:
        self._array, self._index = array, index

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions that are left."""
        sizes = zip(self._array.shape, self._index, strict=True)
        return tuple(size for size, index in sizes if index is None)

    def _placed(self, given: Any) -> tuple[list[int], list[Any]]:
        """Return the remaining dimensions, and the indices of the first ones."""
        parts = list(given) if type(given) is tuple else [given]
        left = [axis for axis, index in enumerate(self._index) if index is None]
        for number, part in enumerate(parts):
            if part is Ellipsis:
                parts[number : number + 1] = [slice(None)] * (len(left) - len(parts) + 1)
                break
        return left, parts
