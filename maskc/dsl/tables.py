"""Captured arrays inside a traced function: an index makes a Load.

An array may have any rank and be read in steps, `table[b][q]` as well as `table[b, q]`. Plain
integers and slices select a part of it at once. A dimension that `b` or `h` indexes becomes the
dimension of sequences or heads that data of a call have too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np

from maskc.core import expr as E
from maskc.core.captured import Captured, Computed
from maskc.core.data import DataDecl, constant
from maskc.core.dtypes import dtype_name
from maskc.core.errors import BatchUsed, NeedsLengths, NotTraceable
from maskc.core.expr import Expr, is_condition
from maskc.core.source import SourceLoc, caller
from maskc.dsl.evaluation import Evaluated
from maskc.dsl.followed import TableRows, among, during, narrow_of
from maskc.dsl.tabled import (
    ComputedTables,
    Places,
    as_tensor,
    tabled,
    tabling_now,
    torch_method,
    torch_of,
    widened,
)
from maskc.dsl.traced import Traced, settled

BATCH = E.Sym("b")

_ALL = slice(None)


def _refuse(what: str) -> NoReturn:
    raise NotTraceable(what, at=caller())


class Registry:
    """The arrays of one traced function."""

    def __init__(self) -> None:
        self.tables: dict[str, DataDecl] = {}
        self._known: dict[object, tuple[str, Any]] = {}  # arrays stay alive: places are unique

    def name(self, array: Any, rank: int) -> str:
        """The name of an array that is laid out as `Held` says."""
        mark = (rank, *_place(array))
        if mark not in self._known:
            values = Captured(array, caller())
            same = (
                name for name, decl in self.tables.items()
                if decl.options == (rank,) and values.is_always(decl.values)
            )  # fmt: skip
            name = next(same, f"table{len(self.tables)}")
            if name not in self.tables:
                self.tables[name] = constant(name, rank, values)
            self._known[mark] = name, array
        return self._known[mark][0]

    def array_of(self, name: str) -> tuple[Any, int] | None:
        """An array by its name, and how many indices a formula gives; None if there is none."""
        array = self.tables.get(name)
        if array is None or not isinstance(array.values, Captured):
            return None
        held = array.values
        return (held.array if held.source is None else held.source), array.rank


_registry: ContextVar[Registry] = ContextVar("maskc_captured")


def capturing() -> AbstractContextManager[Registry]:
    """Collects the arrays that are indexed meanwhile."""
    return during(_registry, Registry())


def _place(array: Any) -> tuple[object, ...]:
    """Equal for views of the same memory."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data, array.shape, array.strides, array.dtype.str
    where = array.data_ptr(), array.is_neg(), str(array.device)
    return *where, tuple(array.shape), array.stride(), str(array.dtype)


class WatchedArray(np.ndarray):
    """A NumPy array that traced values may index."""

    def __getitem__(self, index: Any) -> Any:
        if among(index, (Traced,)):
            return read(self.view(np.ndarray), index)
        return super().__getitem__(index)


def read(array: Any, index: Any) -> object:
    """array[index], where the index holds traced values or the array was read by some."""
    rows = array if type(array) is IndexedRows else IndexedRows(array, (None,) * array.ndim)
    return rows[index]


_ROW = "it computes with a whole row of a captured array; index it by q or k first"


class IndexedRows(TableRows):
    """An array some of whose dimensions are indexed, in a formula of a mask."""

    __slots__ = ()

    @property
    def ndim(self) -> int:
        """The number of remaining dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def to(self, *_: Any, **__: Any) -> IndexedRows:
        """The rows themselves: where and how wide they are stored does not matter."""
        return self

    long = int = contiguous = clone = detach = cpu = to

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: tuple[Any, ...] = (), named: Any = None
    ) -> object:
        if getattr(function, "__name__", "") == "__getitem__":
            return read(*args)
        return tabled(function, args, named or {}, NotTraceable(_ROW, at=caller()))

    def _whole(self, *_: object) -> NoReturn:
        _refuse(_ROW)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _whole
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __iter__ = __bool__ = _whole
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __invert__ = __contains__ = _whole

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if tabling_now():
            refused = NotTraceable(_ROW, at=caller())
            return lambda *args, **named: tabled(torch_method(name), (self, *args), named, refused)
        _refuse(f"it uses .{name} of a row of a captured array; index it by q or k first")

    def __getitem__(self, given: Any) -> object:
        left, parts = self._placed(given)
        if len(parts) > len(left) or any(part is Ellipsis for part in parts):
            _refuse(f"an array of {len(left)} dimensions is indexed by {len(parts)}")
        array, index = self._array, list(self._index)
        for axis, part in reversed(list(zip(left, parts, strict=False))):
            if type(part) is Traced:
                if is_condition(part.expr):
                    _refuse("an index needs integers, found a condition")
                index[axis] = part.expr
            elif part is None:
                _refuse("an index adds a dimension to a captured array")
            elif not (type(part) is slice and part == _ALL):
                rank = array.ndim
                array = array[(_ALL,) * axis + (part,)]
                if array.ndim < rank:
                    del index[axis]
        known = [part for part in index if part is not None]
        return _load(array, known) if len(known) == len(index) else IndexedRows(array, tuple(index))


def _load(array: Any, index: list[Expr]) -> Traced:
    """An element, which is a condition where the array holds booleans."""
    load = element(array, index)
    if str(array.dtype).endswith("bool"):
        return Traced(settled(E.ne(load, E.ZERO)))
    return Traced(load, narrow_of(array.dtype))


def element(array: Any, index: list[Expr]) -> Expr:
    """An element as an integer: sequences and heads in front, as `Held` lays arrays out.

    Raises:
        NotTraceable: the array holds something else than integers and booleans (MC107).
        BatchUsed: the index computes with b (MC108).
    """
    kind = dtype_name(array)
    if kind != "bool" and not kind.startswith(("int", "uint")):
        what = f"a captured array holds {kind}, which a mask cannot compare exactly"
        _refuse(f"{what}: make integers of it, as .long() does")
    index = [  # one row is every head's
        E.ZERO if part == E.H and size == 1 else part
        for part, size in zip(index, array.shape, strict=True)
    ]
    of_batch = [axis for axis, part in enumerate(index) if part == BATCH]
    if len(of_batch) > 1 or any(
        BATCH.name in E.symbols(part) for axis, part in enumerate(index) if axis not in of_batch
    ):
        raise BatchUsed(at=caller())
    of_heads = [axis for axis, part in enumerate(index) if part == E.H][:1]
    leading = [*of_batch, *of_heads]
    own_axes = [axis for axis in range(len(index)) if axis not in leading]
    order = [*leading, *own_axes]
    if order != sorted(order):  # a compiler knows the user's tensor itself best
        array = array.permute(order) if hasattr(array, "permute") else array.transpose(order)
    read_by = tuple(index[axis] for axis in own_axes)
    if of_batch and array.shape[0] == 1:  # one row is everybody's
        array, of_batch = array[0], []
    if not of_heads and not read_by:
        array, read_by = array[..., None], (E.ZERO,)
    while of_heads and len(read_by) < 2:
        axis = array.ndim - len(read_by)
        array, read_by = array[(_ALL,) * axis + (None,)], (E.ZERO, *read_by)
    if of_batch and not of_heads and len(read_by) > 1:
        array = array[:, None]
    return E.Load(_registry.get().name(array, len(read_by)), read_by)


# ------------------------------------------------------------------ values of one index


class IndexTables(ComputedTables):
    """Tables of one index, and the other inputs of a mask's formula."""

    symbols = ("q", "k")
    together = False

    def __init__(self, registry: Registry) -> None:
        """Begin without tables.

        Args:
            registry: the captured arrays of the same formula.
        """
        self._array_of = registry.array_of
        self._places: dict[str, Places] = {}
        self.made: dict[str, Computed] = {}
        """The tables by their names in the formula."""

    def entry(self, places: Places, sample: Any) -> Any:
        """The formula of a table's entry; None if a value cannot be one."""
        whole = not (sample.is_floating_point() or sample.is_complex())
        if sample.ndim or not whole:
            return None
        name = f"computed{len(self.made)}"
        self._places[name], self.made[name] = places, Computed(OfIndex(places, caller()), 0, 1)
        load = E.Load(name, tuple(map(E.Sym, places.symbols)))
        if sample.dtype is torch_of().bool:
            return Traced(E.ne(load, E.ZERO))
        return Traced(load, narrow_of(sample.dtype))

    def expr_of(self, value: Any) -> Any:
        """The formula of a traced value; None if it is none."""
        return value.expr if type(value) is Traced else None

    def check(self, expr: Any) -> set[str]:
        """Check which symbols a formula depends on.

        Raises:
            NotTraceable: it depends on something else.
        """
        result = set(E.symbols(expr))
        if not result <= set(self.symbols) or E.params(expr):
            _refuse("it depends on more than an index")
        return result

    def read_by(self, expr: Any) -> Iterator[Any]:
        """Yield the captured arrays that a formula reads."""
        for name in E.arrays(expr):
            yield from (
                self._places[name].tensors
                if name in self._places
                else ((self._array_of(name) or (None,))[0],)
            )

    def element(self, array: str, index: tuple[Any, ...], env: Mapping[str, Any]) -> Any:
        """An element of a captured or computed array."""
        if array in self._places:
            return self._places[array].run(env)
        tensor, rank = self._array_of(array) or (None, 0)
        if tensor is None or tensor.ndim != rank:
            _refuse("it reads an array by sequence or head")
        return widened(as_tensor(tensor)[index])


class OfIndex(Evaluated):
    """Computes the table of one index."""

    sequences = heads = 1

    def __init__(self, places: Places, at: SourceLoc | None) -> None:
        super().__init__(places.tensors, at)
        self._places = places

    def __reduce__(self) -> NoReturn:
        """Refuse to leave the process: a trace made what it runs.

        Raises:
            NeedsLengths: always (MC133).
        """
        raise NeedsLengths(at=self.at)

    def what_decides(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[int, ...]:
        """The number of queries, or of keys."""
        return (n_q if self._places.symbols == ("q",) else n_kv,)

    def evaluate(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
        """The values for all queries, or for all keys."""
        (count,) = self.what_decides(batch, heads, n_q, n_kv)
        if not count:
            return (np.zeros(0, np.int32),)
        index = torch_of().arange(count, device=self._places.device)
        return (self._places.over(index).cpu().numpy(),)
