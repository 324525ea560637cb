"""Values that depend on an index and cannot be traced: tables, computed for the lengths of a call.

In masks, anything that torch can compute from q alone, or from k alone, is evaluated for all
queries or keys and read from a table: bits of two integers (Morton order), rounded roots, sums
over a row of an array. Intermediate values, such as tensors with dimensions or real numbers,
are `Opaque`. Score formulas have tables over several indices, see `placed_scores`.
"""

from __future__ import annotations

import operator
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial, reduce
from typing import Any, NamedTuple, NoReturn, TypeVar

from maskc.core import expr as E
from maskc.core.errors import MaskcError, NotTraceable, ScoreNotTraceable
from maskc.core.evaluator import Evaluator
from maskc.core.source import caller
from maskc.dsl.followed import Followed, TableRows, attribute, during, narrow_of

Run = Callable[[Any], Any]
"""Computes a tensor from a dictionary of 0-dimensional tensors, one for each symbol. The dictionary
also caches the value of each function, because formulas read most values several times.
"""
REFUSED = (NotTraceable, ScoreNotTraceable)
_allowed: ContextVar[ComputedTables | None] = ContextVar("maskc_tabled", default=None)


class ComputedTables(Evaluator):
    """The tables that replace parts of one formula."""

    symbols: tuple[str, ...]
    """Symbols that values may depend on."""
    together: bool
    """Whether a value may depend on several symbols."""

    @abstractmethod
    def entry(self, places: Places, sample: Any) -> Any:
        """The formula of a table's entry; None if a value cannot be one."""

    @abstractmethod
    def expr_of(self, value: Any) -> Any:
        """The formula of a traced value; None if it is none."""

    @abstractmethod
    def check(self, expr: Any) -> set[str]:
        """Check which symbols a formula depends on.

        Raises:
            MaskcError: it depends on something else.
        """

    @abstractmethod
    def read_by(self, expr: Any) -> Iterator[Any]:
        """Yield the captured arrays that a formula reads."""

    def value(self, expr: Any, env: Mapping[str, Any]) -> Any:
        """The value of a formula."""
        if isinstance(expr, E.Pick):
            parts = (expr.condition, expr.then, expr.other)
            return torch_of().where(*(self.value(part, env) for part in parts))
        return super().value(expr, env)

    def extreme(self, least: bool, values: list[Any]) -> Any:
        """The minimum or maximum of some numbers."""
        torch = torch_of()
        return reduce(torch.minimum if least else torch.maximum, map(torch.as_tensor, values))


Tables = TypeVar("Tables", bound=ComputedTables)


class Places(NamedTuple):
    """A computation of a value from indices."""

    symbols: tuple[str, ...]
    run: Run
    tensors: tuple[Any, ...]
    """Tensors that it reads."""

    @property
    def device(self) -> str:
        """The device of its tensors."""
        return next((str(x.device) for x in self.tensors if x.device.type != "cpu"), "cpu")

    def over(self, *places: Any) -> Any:
        """Return the values at vectors of indices, with one dimension for each symbol.

        Args:
            places: int64 vectors on the device, one for each symbol.
        """
        torch, count = torch_of(), len(self.symbols)

        def at(*one: Any) -> Any:
            return self.run(dict(zip(self.symbols, one, strict=True)))

        result = at
        for place in reversed(range(count)):
            result = torch.vmap(
                result, in_dims=tuple(0 if n == place else None for n in range(count))
            )
        with torch.no_grad():
            return result(*places)


def torch_of() -> Any:
    """torch, which whoever computes tables has loaded."""
    return sys.modules["torch"]


def tabling(tables: Tables) -> AbstractContextManager[Tables]:
    """While values of places may be computed."""
    return during(_allowed, tables)


def tabled(
    function: Callable[..., Any], args: Any, named: Mapping[str, Any], refused: MaskcError
) -> Any:
    """The value of a function that cannot be followed: a table's formula, or an Opaque.

    Raises:
        MaskcError: `refused`: its arguments depend on more than tables may, it writes into one of
            them, or it raises.
    """
    tables = _allowed.get()
    if tables is None or "torch" not in sys.modules or "out" in named or _writes(function):
        raise refused
    symbols: set[str] = set()
    tensors: list[Any] = []
    try:
        runs = [_run_of(arg, tables, symbols, tensors) for arg in args]
        by_name = {name: _run_of(arg, tables, symbols, tensors) for name, arg in named.items()}
        if not symbols or (len(symbols) > 1 and not tables.together):
            raise refused

        def run(env: Any) -> Any:
            if run not in env:
                keywords = {name: arg(env) for name, arg in by_name.items()}
                env[run] = function(*(arg(env) for arg in runs), **keywords)
            return env[run]

        order = tuple(arg for arg in tables.symbols if arg in symbols)
        places = Places(order, run, tuple(tensors))
        zero = torch_of().zeros(1, dtype=torch_of().int64, device=places.device)
        sample = places.over(*(zero for _ in order))[(0,) * len(order)]
    except REFUSED:
        raise refused from None
    except Exception as error:
        raise refused from error
    result = tables.entry(places, sample)
    return Opaque(places, sample) if result is None else result


def _writes(function: Callable[..., Any]) -> bool:
    """Whether a function is a method of tensors that writes into its tensor, such as add_."""
    name = getattr(function, "__name__", "")
    return name.endswith("_") and not name.endswith("__") and hasattr(torch_of().Tensor, name)


def answered(
    meaning_of: Callable[[str, str], Callable[..., Any] | None],
    refuse: Callable[[str], NoReturn], library: str, function: Any, args: Any,
    named: Mapping[str, Any],
) -> Any:  # fmt: skip
    """The result of a function that was given traced values: by its meaning, or as a table.

    Args:
        meaning_of: what a function does with traced values, by its library and its name without
            underscores.
        refuse: raises the tracer's error about what was found.
        library: of the function, "torch" or "numpy".

    Raises:
        MaskcError: it can be neither followed nor computed into a table.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        meaning = meaning_of(library, name.strip("_"))
        if meaning is None:
            refuse(f"it uses {library}.{name}")
        try:
            return meaning(*args, **named)
        except TypeError as error:
            refuse(f"{library}.{name}: {error}")
    except REFUSED as refused:
        if library != "torch":
            raise
        return tabled(function, args, named, refused)


# ------------------------------------------------------------------ operands


def _run_of(value: Any, tables: ComputedTables, symbols: set[str], tensors: list[Any]) -> Run:
    """Return a way to compute an argument, and record its dependencies."""
    kind = type(value)
    expr = tables.expr_of(value)
    if expr is not None:
        symbols |= tables.check(expr)
        tensors += filter(_is_tensor, tables.read_by(expr))
        if (narrow := getattr(value, "narrow", "")) == "":
            return lambda env: tables.value(expr, env)
        dtype = getattr(torch_of(), narrow)
        return lambda env: torch_of().as_tensor(tables.value(expr, env)).to(dtype)
    if kind is Opaque:
        symbols.update(value._places.symbols)
        tensors += value._places.tensors
        return value._places.run  # type: ignore[no-any-return]
    if issubclass(kind, TableRows):
        array = value._array
        for part in value._index:
            if part is not None:
                symbols |= tables.check(part)
                tensors += filter(_is_tensor, tables.read_by(part))
        tensors += filter(_is_tensor, (array,))
        return lambda env: as_tensor(array)[
            tuple(slice(None) if x is None else tables.value(x, env) for x in value._index)
        ]
    if kind in (tuple, list):
        parts = [_run_of(arg, tables, symbols, tensors) for arg in value]
        return lambda env: kind(part(env) for part in parts)
    tensors += filter(_is_tensor, (value,))
    return lambda env: value


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach")


def widened(tensor: Any) -> Any:
    """A tensor in 64 bits if arithmetic in its dtype wraps around early: formulas do not."""
    return tensor.long() if narrow_of(tensor.dtype) else tensor


def as_tensor(array: Any) -> Any:
    """An array of NumPy or torch as a tensor."""
    return array if _is_tensor(array) else torch_of().as_tensor(array)


# ------------------------------------------------------------------ values


def _refuse(what: str) -> NoReturn:
    raise NotTraceable(what, at=caller())


def _opaque(library: str, function: Any, args: Any, named: Mapping[str, Any]) -> Any:
    name = getattr(function, "__name__", repr(function))
    refused = NotTraceable(f"it uses {library}.{name}", at=caller())
    return tabled(function, args, named, refused)


class Opaque(Followed):
    """A value of places that is not an entry of a table, such as a tensor with dimensions."""

    __slots__ = ("_places", "_sample")
    _called = staticmethod(_opaque)
    _refused = staticmethod(_refuse)

    def __init__(self, places: Places, sample: Any) -> None:
        self._places, self._sample = places, sample

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("shape", "ndim", "dtype"):
            return getattr(self._sample, name)
        if name == "device":
            return attribute("device", "")
        function = getattr(sys.modules["torch"].Tensor, name, None)
        if not callable(function):
            _refuse(f"it uses .{name}")
        return lambda *args, **named: _opaque("torch", function, (self, *args), named)

    def __getitem__(self, index: Any) -> Any:
        return _opaque("torch", operator.getitem, (self, index), {})

    def __bool__(self) -> bool:
        _refuse("Python has to decide about a value that every pair has for itself")

    __int__ = __float__ = __index__ = __len__ = __iter__ = __contains__ = __bool__
    __hash__ = None  # type: ignore[assignment]


_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift",
    "rshift",
)  # fmt: skip
_OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "neg", "invert", "abs")


def operators_by_name() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The names of methods by which Python calls operators, and functions of torch for these."""
    for name in (*_BINARY, *_OTHERS):
        function = getattr(operator, name)
        yield f"__{name.strip('_')}__", function
        if name in _BINARY:
            yield f"__r{name.strip('_')}__", _turned(function)


def _turned(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda one, two: function(two, one)


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: _opaque("operator", function, values, {})


for _name, _function in operators_by_name():
    setattr(Opaque, _name, _operator(_function))


def tabling_now() -> bool:
    """Whether values of places may be computed."""
    return _allowed.get() is not None


def torch_method(name: str) -> Callable[..., Any]:
    """A method of tensors, by its name."""
    return lambda self, *args, **named: getattr(self, name)(*args, **named)


def or_tabled(method: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of traced values that computes a table where it cannot be followed."""

    def either(*values: Any, **named: Any) -> Any:
        try:
            return method(*values, **named)
        except REFUSED as refused:
            return tabled(function, values, named, refused)

    return either


def table_operators(kind: type) -> None:
    """Let operators of a class of traced values compute tables where they cannot be followed."""
    for name, function in operators_by_name():
        if (method := kind.__dict__.get(name)) is not None:
            setattr(kind, name, or_tabled(method, function))


def member(
    value: Followed, name: str, dtype: Callable[[], str],
    find: Callable[[str], Callable[..., Any] | None], refuse: Callable[[str], NoReturn],
) -> Any:  # fmt: skip
    """Return an attribute or a method of a traced value, as its `__getattr__`.

    Args:
        dtype: returns the name of the dtype of the value in torch. A value that `copy` or `pickle`
            is making has none yet.
        find: returns the tracer's method of a name, or None.
        refuse: raises the tracer's error.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    if (known := attribute(name, dtype())) is not None:
        return known

    def unknown(*_: Any, **__: Any) -> NoReturn:
        refuse(f"it uses .{name}")

    function = find(name)
    if function is None and not tabling_now():
        unknown()
    return partial(or_tabled(function or unknown, torch_method(name)), value)
