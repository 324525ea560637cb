"""Values of one index alone that no formula says: data, computed for the lengths of a call.

Whatever torch can compute of q, or of k, is evaluated for all queries or keys and read from a
table: bits of two integers (Morton order), roots that are rounded, sums over a row of an array.
Values that are no integer or condition without dimensions are `Opaque` until they become one.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from maskc.core import expr as E
from maskc.core.captured import Computed
from maskc.core.errors import NeedsLengths, NotTraceable
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc, caller
from maskc.dsl.evaluation import Evaluated
from maskc.dsl.followed import Followed, TableRows, attribute, during

Run = Callable[[Mapping[str, Any]], Any]
"""A tensor of one index, by the tensors without dimensions that stand for symbols."""
_INDICES = ("q", "k")
_allowed: ContextVar[IndexTables | None] = ContextVar("maskc_tabled", default=None)


class IndexTables:
    """Tables that a formula reads, computed ones and arrays that it captured."""

    def __init__(self, array_of: Callable[[str], tuple[Any, int] | None]) -> None:
        """Begin without tables.

        Args:
            array_of: a captured array by its name in formulas, and its indices.
        """
        self.array_of = array_of
        self.runs: dict[str, Run] = {}
        self.made: dict[str, Computed] = {}


def tabling(tables: IndexTables) -> AbstractContextManager[IndexTables]:
    """While values of one index may be computed."""
    return during(_allowed, tables)


def tabled(
    function: Callable[..., Any], args: Any, named: Mapping[str, Any], refused: NotTraceable
) -> Any:
    """The value of a function that cannot be followed: a table's formula, or an Opaque.

    Raises:
        NotTraceable: its arguments depend on more than one index, or it raises.
    """
    tables = _allowed.get()
    torch = sys.modules.get("torch")
    if tables is None or torch is None:
        raise refused
    symbols: set[str] = set()
    tensors: list[Any] = []
    try:
        runs = [_run_of(each, tables, symbols, tensors) for each in args]
        by_name = {name: _run_of(each, tables, symbols, tensors) for name, each in named.items()}
        if len(symbols) != 1:
            raise refused

        def run(env: Mapping[str, Any]) -> Any:
            return function(
                *(each(env) for each in runs), **{n: x(env) for n, x in by_name.items()}
            )

        device = next((str(x.device) for x in tensors if x.device.type != "cpu"), "cpu")
        (symbol,) = symbols
        zero = torch.zeros((), dtype=torch.int64, device=device)
        with torch.no_grad():
            sample = run({symbol: zero})
    except NotTraceable:
        raise refused from None
    except Exception as error:
        raise refused from error
    if not isinstance(sample, torch.Tensor):
        raise refused
    whole = not (sample.is_floating_point() or sample.is_complex())
    if sample.ndim or not whole:
        return Opaque(symbol, run, sample, tuple(tensors))
    evaluation = OfIndex(symbol, run, tuple(tensors), device, caller())
    name = f"computed{len(tables.made)}"
    tables.runs[name], tables.made[name] = run, Computed(evaluation, 0, 1)
    load = E.Load(name, (E.Sym(symbol),))
    from maskc.dsl.traced import Traced

    return Traced(E.ne(load, E.ZERO) if sample.dtype is torch.bool else load)


# ------------------------------------------------------------------ operands


def _run_of(value: Any, tables: IndexTables, symbols: set[str], tensors: list[Any]) -> Run:
    """Return a way to compute an argument, and record its dependencies."""
    from maskc.dsl.traced import Traced

    kind = type(value)
    if kind is Traced:
        symbols |= _symbols(value.expr)
        return lambda env: _tensor(value.expr, env, tables)
    if kind is Opaque:
        symbols.add(value._symbol)
        tensors += value._tensors
        return value._run  # type: ignore[no-any-return]
    if issubclass(kind, TableRows):
        array = value._array
        for part in value._index:
            symbols |= _symbols(part) if part is not None else set()
        if hasattr(array, "detach"):
            tensors.append(array)
        return lambda env: _as_tensor(array)[
            tuple(slice(None) if x is None else _tensor(x, env, tables) for x in value._index)
        ]
    if kind in (tuple, list):
        parts = [_run_of(each, tables, symbols, tensors) for each in value]
        return lambda env: kind(part(env) for part in parts)
    if hasattr(value, "detach"):
        tensors.append(value)
    return lambda env: value


def _symbols(expr: Expr) -> set[str]:
    """The indices of a formula.

    Raises:
        NotTraceable: it depends on something else than queries or keys.
    """
    found = set(E.symbols(expr))
    if not found <= set(_INDICES) or E.params(expr):
        raise NotTraceable("it depends on more than an index", at=caller())
    return found


def _as_tensor(array: Any) -> Any:
    return array if hasattr(array, "detach") else sys.modules["torch"].as_tensor(array)


def _tensor(expr: Expr, env: Mapping[str, Any], tables: IndexTables) -> Any:
    """The value of a formula."""
    torch = sys.modules["torch"]

    def of(part: Expr) -> Any:
        return _tensor(part, env, tables)

    match expr:
        case E.Sum(constant, terms):
            return sum((factor * of(term) for factor, term in terms), constant)
        case E.Sym(name):
            return env[name]
        case E.FloorDiv(num, den):
            return of(num) // den
        case E.Mod(num, den):
            return of(num) % den
        case E.Min(args) | E.Max(args):
            join = torch.minimum if isinstance(expr, E.Min) else torch.maximum
            return reduce(join, (torch.as_tensor(of(arg)) for arg in args))
        case E.Load(name, index):
            if name in tables.runs:
                return tables.runs[name](env)
            array, rank = tables.array_of(name) or (None, 0)
            if array is None or array.ndim != rank:
                raise NotTraceable("it reads an array by sequence or head", at=caller())
            return _as_tensor(array)[tuple(map(of, index))]
        case E.Pick(condition, then, other):
            return torch.where(of(condition), of(then), of(other))
        case E.Truth(value):
            return value
        case E.Cmp(op, lhs):
            value = of(lhs)
            return value >= 0 if op == ">=" else value == 0 if op == "==" else value != 0
        case E.Member(inner, ranges, inside):
            value = of(inner)
            found = reduce(operator.or_, ((value >= a) & (value <= b) for a, b in ranges))
            return found if inside else ~found
        case E.All(terms) | E.Any(terms):
            return reduce(
                operator.and_ if isinstance(expr, E.All) else operator.or_, map(of, terms)
            )
    raise NotTraceable(f"no value for {type(expr).__name__}", at=caller())


# ------------------------------------------------------------------ values


def _refuse(what: str) -> NoReturn:
    raise NotTraceable(what, at=caller())


def _opaque(library: str, function: Any, args: Any, named: Mapping[str, Any]) -> Any:
    name = getattr(function, "__name__", repr(function))
    refused = NotTraceable(f"it uses {library}.{name}", at=caller())
    return tabled(function, args, named, refused)


class Opaque(Followed):
    """A real number, or a tensor with dimensions, of one index."""

    __slots__ = ("_run", "_sample", "_symbol", "_tensors")
    _called = staticmethod(_opaque)
    _refused = staticmethod(_refuse)

    def __init__(self, symbol: str, run: Run, sample: Any, tensors: tuple[Any, ...]) -> None:
        self._symbol, self._run, self._sample, self._tensors = symbol, run, sample, tensors

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
    """Whether values of one index may be computed."""
    return _allowed.get() is not None


def torch_method(name: str) -> Callable[..., Any]:
    """A method of tensors, by its name."""
    return lambda self, *args, **named: getattr(self, name)(*args, **named)


def or_tabled(method: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A method of traced values that computes a table where it cannot be followed."""

    def either(*values: Any, **named: Any) -> Any:
        try:
            return method(*values, **named)
        except NotTraceable as refused:
            return tabled(function, values, named, refused)

    return either


# ------------------------------------------------------------------ evaluation


class OfIndex(Evaluated):
    """Computes the table of one index."""

    sequences = heads = 1

    def __init__(
        self, symbol: str, run: Run, tensors: tuple[Any, ...], device: str, at: SourceLoc | None
    ) -> None:
        super().__init__(tensors, at)
        self._symbol, self._run, self._device = symbol, run, device

    def __reduce__(self) -> NoReturn:
        """Refuse to leave the process: a trace made what it runs.

        Raises:
            NeedsLengths: always (MC133).
        """
        raise NeedsLengths(at=self.at)

    def what_decides(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[int, ...]:
        """The number of queries, or of keys."""
        return (n_q if self._symbol == "q" else n_kv,)

    def evaluate(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
        """The values for all queries, or for all keys."""
        (count,) = self.what_decides(batch, heads, n_q, n_kv)
        if not count:
            return (np.zeros(0, np.int32),)
        torch = sys.modules["torch"]
        index = torch.arange(count, device=self._device)
        with torch.no_grad():
            found = torch.vmap(lambda place: self._run({self._symbol: place}))(index)
        return (found.cpu().numpy(),)
