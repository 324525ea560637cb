"""Data of a call that stay on the device: where kernels find them, whether they have changed."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from maskc.core.captured import Held
from maskc.core.data import CuSeqlens, DataDecl, DataKind
from maskc.core.leading import pair_of
from maskc.core.sizes import Sizes
from maskc.core.tensors import Array, Device
from maskc.layout import NO_PROMISE, promised
from maskc.layout.inputs.captured import reads_inside
from maskc.runtime.arrays.known import library_of
from maskc.runtime.device_lists.call import Asked
from maskc.runtime.device_lists.watched import Watched

CODES = {
    "bool": (0, 1), "uint8": (0, 1), "int8": (1, 1), "int16": (2, 2), "int32": (3, 4),
    "int64": (4, 8),
}  # fmt: skip
"""The code in `struct Lists` and the bytes of each type of elements that kernels read."""
_FEW_QUERIES = 128
"""Up to this many queries (one or two tile rows), tables with an entry per pair stay on the device.
With more rows, device lists would keep tiles that the host can drop."""
AS_IS, BOOLEAN, CLIPPED, CUMULATIVE = range(4)
"""Conversions of an element to 32 bits."""


class Source(NamedTuple):
    """An array as kernels read it."""

    pointer: int
    most: int
    """Largest number of tokens of a document, for cumulative lengths; differs between calls."""
    rule: int
    code: int
    shape: tuple[int, int, int, int]
    """(sequences, heads, rows, entries of a row); of cumulative lengths the tokens that they are
    about."""
    strides: tuple[int, int, int, int]
    """Strides in elements; 0 where all share theirs."""
    ends: int = 0
    """Cumulative lengths of a sequence."""
    array: int = 0
    """The identity of the caller's array."""

    @property
    def doubtful(self) -> bool:
        """Whether values must be validated on the device: lengths, and numbers of more than 32
        bits."""
        return self.rule == CUMULATIVE or (self.rule == AS_IS and self.code == 4)

    @property
    def dense(self) -> bool:
        """Whether entries follow one another in memory, in their order."""
        sizes = accumulate(reversed(self.shape), mul, initial=1)
        sides = zip(reversed(self.shape), reversed(self.strides), sizes, strict=False)
        return all(count == 1 or step == size for count, step, size in sides)

    @property
    def key(self) -> Hashable:
        """Everything except the array, its address and the exact bound."""
        return self[2:7]


class Given(NamedTuple):
    """The data of a call."""

    sources: tuple[Source, ...]
    """The sources by the kernels' slots."""
    watched: Watched | None
    """The arrays that are watched; None if a later call cannot be compared with this one."""
    order: tuple[int, ...] | None
    """The position among `watched.places` of each source's array; None if unknown."""
    checked: Asked | None = None
    """The call, where its lists are compared with the host's."""


class _Unreadable(Exception):
    """The host must read the data, and say what is wrong if anything is."""


class Reader:
    """Finds the arrays of one mask among the keywords of a call."""

    def __init__(
        self, decls: tuple[DataDecl, ...], arrays: tuple[str, ...], has_pairs: bool = False
    ) -> None:
        """Remember names.

        Args:
            decls: data of the mask.
            arrays: names that formulas use, in the order of the kernels' slots.
            has_pairs: whether one of these has an entry for each query and key.
        """
        self._decls, self._arrays, self._has_pairs = decls, arrays, has_pairs
        self._sound: object = None

    def read(self, asked: Asked) -> Given | None:
        """Return the data of a call if kernels can read them directly.

        Returns:
            None if data are missing, on another device, of another dtype or shape, or of an unknown
            library. The host then reads them, and reports mistakes.

        Raises:
            NotAnArray: a tensor without memory.
            DataType, DataRange: a bound that is not a length.
        """
        if asked.empty or (self._has_pairs and asked.sizes.n_q > _FEW_QUERIES):
            return None
        sizes, keywords, held = asked.sizes, asked.data, asked.held
        by_name: dict[str, Source] = {}
        tables: dict[str, Source] = {}
        try:
            for decl in self._decls:
                call = _Call(asked.device, sizes, decl)
                if decl.held:
                    names = decl.held_as or decl.arrays
                    tables |= {name: _table_of(call, held, name) for name in dict.fromkeys(names)}
                    sources = _held(call, [tables[name] for name in names])
                else:
                    sources = _READERS[decl.kind](call, keywords.get(decl.name))
                by_name |= zip(decl.arrays, sources, strict=True)
        except _Unreadable:
            return None
        if held is not None and not self._inside(held, tables, keywords, sizes):
            return None
        watched = Watched.of(asked.data, asked.held)
        checked = asked if os.environ.get("MASKC_CHECK") == "1" else None
        sources = tuple(by_name[name] for name in self._arrays)
        order = None
        if watched is not None:
            order = watched.order_of([source.array for source in sources])
        return Given(sources, watched, order, checked)

    def _inside(
        self, held: Held, tables: Mapping[str, Source], keywords: Mapping[str, Any], sizes: Sizes
    ) -> bool:
        """Whether all indices into captured arrays are in range; cached for a few sizes."""
        shapes = {name: source.shape[2:] for name, source in tables.items()}
        key = (sizes.n_q, sizes.n_kv, *shapes.items())
        params = {name: x for name, x in keywords.items() if type(x) is int}
        if params or self._sound != key:
            self._sound = key if reads_inside(held, params, sizes, shapes) else None
        return self._sound == key


# ------------------------------------------------------------------ arrays of a call


class _Call(NamedTuple):
    """The place where an array is read, and for whom."""

    device: Device
    sizes: Sizes
    decl: DataDecl

    def view(self, given: Any) -> Array:
        """An array on the call's device, of integers or booleans."""
        library = library_of(type(given))
        if library is None or type(given) is np.ndarray:
            raise _Unreadable
        view = library.view(given, self.decl.name)
        if view.device != self.device or view.dtype not in CODES:
            raise _Unreadable
        return view

    def vector(self, given: Any, length: int, rule: int, *, tokens: bool = True) -> Source:
        """Return one value per token, [N] or [batch, N]; the last or the first `length` of them
        count.

        Args:
            length: tokens of one side.
            tokens: whether the array may have a value for every token instead.
        """
        array = self.view(given)
        if array.dtype == "bool" and rule != BOOLEAN:
            raise _Unreadable
        all_tokens = max(self.sizes.n_q, self.sizes.n_kv)
        if array.shape[-1:] != (length,) and not (tokens and array.shape[-1:] == (all_tokens,)):
            raise _Unreadable
        batch, over_batch = self._batch(array)
        code, size = CODES[array.dtype]
        first = 0 if self.decl.from_start else array.shape[-1] - length
        step = array.strides[-1]
        return Source(
            array.pointer + first * step * size, NO_PROMISE, rule, code, (batch, 1, 1, length),
            (over_batch, 0, 0, step), array=id(given),
        )  # fmt: skip

    def _batch(self, array: Array) -> tuple[int, int]:
        """(sequences, elements from one to the next) of a vector, which all heads share."""
        if len(array.shape) == 1:
            return 1, 0
        if array.shape[1:-1] not in ((), (1,)) or array.shape[0] not in (1, self.sizes.batch):
            raise _Unreadable
        step = array.strides[0] if array.shape[0] > 1 else 0
        return array.shape[0] if step else 1, step

    def cumulative(self, given: CuSeqlens, length: int) -> Source:
        """The documents of `length` tokens, from their cumulative lengths."""
        array = self.view(given.array)
        if not array.shape or array.shape[-1] < 1 or array.dtype not in ("int32", "int64"):
            raise _Unreadable
        batch, over_batch = self._batch(array)
        most = promised(self.decl.name, given)
        return Source(
            array.pointer, NO_PROMISE if most is None else most, CUMULATIVE,
            CODES[array.dtype][0], (batch, 1, 1, length), (over_batch, 0, 0, array.strides[-1]),
            array.shape[-1], id(given.array),
        )  # fmt: skip


def _documents(call: _Call, given: Any) -> tuple[Source, ...]:
    """Return the documents of queries and of keys; the same object if one array has both."""
    sizes, shared = call.sizes, type(given) is not tuple
    pair, equal = (given, given) if shared else given, sizes.n_q == sizes.n_kv
    if len(pair) != 2 or (type(pair[0]) is CuSeqlens) != (type(pair[1]) is CuSeqlens):
        raise _Unreadable
    documents = []
    for one, length in zip(pair, (sizes.n_q, sizes.n_kv), strict=True):
        if type(one) is not CuSeqlens:
            documents.append(call.vector(one, length, AS_IS, tokens=shared))
        elif shared and not equal:
            raise _Unreadable
        else:
            documents.append(call.cumulative(one, length))
    return (documents[0], documents[0]) if shared and equal else tuple(documents)


def _flags(call: _Call, given: Any) -> tuple[Source, ...]:
    on_queries, sizes = call.decl.on_queries, call.sizes
    length = sizes.n_q if on_queries else sizes.n_kv
    return (call.vector(given, length, BOOLEAN, tokens=on_queries),) * len(call.decl.arrays)


def _positions(call: _Call, given: Any) -> tuple[Source, ...]:
    length = call.sizes.n_q if call.decl.on_queries else call.sizes.n_kv
    return (call.vector(given, length, AS_IS, tokens=False),)


def _pair(given: Any) -> tuple[Any, Any]:
    if type(given) not in (tuple, list) or len(given) != 2:
        raise _Unreadable
    return given[0], given[1]


def _intervals(call: _Call, given: Any) -> tuple[Source, ...]:
    return tuple(call.vector(one, call.sizes.n_q, CLIPPED) for one in _pair(given))


def _tree(call: _Call, given: Any) -> tuple[Source, ...]:
    tin, tout = _pair(given)
    n_q, n_kv = call.sizes.n_q, call.sizes.n_kv
    all_tokens = max(n_q, n_kv)
    if any(call.view(one).shape[-1:] != (all_tokens,) for one in (tin, tout)):
        raise _Unreadable
    of_k = (call.vector(one, n_kv, AS_IS) for one in (tin, tout))
    return (*of_k, call.vector(tin, n_q, AS_IS))


def _table(call: _Call, given: Any) -> tuple[Source, ...]:
    array, sizes, block = call.view(given), call.sizes, call.decl.block
    grid = (-(-sizes.n_q // block), -(-sizes.n_kv // block))
    if len(array.shape) not in (2, 3, 4) or array.shape[-2:] != grid:
        raise _Unreadable
    batch, heads = (1, 1, *array.shape[:-2])[-2:]
    if batch not in (1, sizes.batch) or heads not in (1, sizes.heads_q):
        raise _Unreadable
    over = (0, 0, *array.strides[:-2])[-2:]
    strides = tuple(step if n > 1 else 0 for n, step in zip((batch, heads), over, strict=True))
    code, _ = CODES[array.dtype]
    return (
        Source(
            array.pointer, NO_PROMISE, BOOLEAN, code, _four(batch, heads, *grid),
            _four(*strides, *array.strides[-2:]), array=id(given),
        ),
    )  # fmt: skip


def _four(batch: int, head: int, row: int, column: int) -> tuple[int, int, int, int]:
    return batch, head, row, column


def _table_of(call: _Call, held: Held | None, name: str) -> Source:
    """An array that the mask's formula captured, laid out as `Held` says."""
    rank, sizes = call.decl.rank, call.sizes
    if held is None or not any(entry[:2] == (name, rank) for entry in held.tables):
        raise _Unreadable  # of more indices, which formulas read as two
    given = held.source_of(name)
    array = call.view(given)
    front, sides = array.shape[: len(array.shape) - rank], array.shape[len(array.shape) - rank :]
    over, inner = array.strides[: len(front)], array.strides[len(front) :]
    (batch, heads), steps = pair_of(front, rank, 1), pair_of(over, rank, 0)
    if rank == 1 and heads > 1:
        raise _Unreadable  # blocks of a vector are those of all heads
    wanted = (sizes.batch, sizes.heads_q)
    if any(1 != n < least for n, least in zip((batch, heads), wanted, strict=True)) or 0 in sides:
        raise _Unreadable
    shape = tuple(1 if n == 1 else least for n, least in zip((batch, heads), wanted, strict=True))
    strides = tuple(step if n > 1 else 0 for n, step in zip(shape, steps, strict=True))
    code, _ = CODES[array.dtype]
    return Source(
        array.pointer, NO_PROMISE, AS_IS, code, _four(*shape, *(1, *sides)[-2:]),
        _four(*strides, *(0, *inner)[-2:]), array=id(given),
    )  # fmt: skip


_RULES = {DataKind.flags: BOOLEAN, DataKind.intervals: CLIPPED, DataKind.table: BOOLEAN}


def _held(call: _Call, tables: list[Source]) -> tuple[Source, ...]:
    """The arrays of one declaration, each cut from a captured array; equal ones are one object."""
    decl, sizes = call.decl, call.sizes
    if not decl.held_as:
        return tuple(tables)
    made: dict[Source, Source] = {}
    for number, table in enumerate(tables):
        if decl.sides:
            grid = 1, sizes.n_q if decl.sides[number] == "q" else sizes.n_kv
        else:
            grid = -(-sizes.n_q // decl.block), -(-sizes.n_kv // decl.block)
        rule, shape = _RULES.get(decl.kind, AS_IS), _four(*table.shape[:2], *grid)
        source = table._replace(rule=rule, shape=shape)
        tables[number] = made.setdefault(source, source)
    return tuple(tables)


_READERS = {
    DataKind.documents: _documents,
    DataKind.flags: _flags,
    DataKind.intervals: _intervals,
    DataKind.positions: _positions,
    DataKind.tree: _tree,
    DataKind.table: _table,
}
