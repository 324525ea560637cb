"""The caller's data as plain int64 arrays for one sequence of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from maskc.core.data import QUESTION, CuSeqlens, DataDecl, DataKind, Parents, check_truths
from maskc.core.errors import DataMissing, DataRange, DataShape, DataType
from maskc.core.tensors import not_an_array, refuse_masked
from maskc.core.unknown import unknown_keyword, wrong_ids

Read = np.ndarray | CuSeqlens | Parents | tuple["Read", ...]
"""Result of `read` for the data of one declaration."""


def check_names(wanted: dict[str, DataDecl], params: set[str], data: Mapping[str, object]) -> None:
    """Every array is there, and nothing else but parameters.

    Raises:
        DataMissing, DataUnknown.
    """
    for name in data:
        if name not in wanted and name not in params:
            raise unknown_keyword(name, [*wanted, *params], QUESTION)
    for name, decl in wanted.items():
        if data.get(name) is None:
            raise DataMissing(name, decl.kind.value, at=name)


def read(decl: DataDecl, raw: object) -> Read:
    """The data that were passed for one declaration, with int64 arrays inside.

    Returns:
        An array, a pair of arrays for queries and keys (or for ends), CuSeqlens or Parents.

    Raises:
        DataShape: a pair is needed and something else was given.
        DataType: the elements are neither integers nor booleans.
        NotAnArray: something is not an array, or a masked one (MC444).
    """
    match decl.kind:
        case DataKind.documents:
            if isinstance(raw, tuple) and len(raw) == 2 and not all(map(_is_number, raw)):
                return _ids_of(decl, raw[0]), _ids_of(decl, raw[1])
            return _ids_of(decl, raw)
        case DataKind.tree if isinstance(raw, Parents):
            return Parents(_array(decl, raw.array))
        case DataKind.tree | DataKind.intervals:
            parts = tuple(raw) if isinstance(raw, Iterable) else ()
            if len(parts) != 2:
                raise DataShape(decl.name, type(raw).__name__, "a pair of arrays", at=decl.name)
            return _array(decl, parts[0]), _array(decl, parts[1])
    return _array(decl, raw)


def _is_number(part: Any) -> bool:
    return not isinstance(part, CuSeqlens) and np.ndim(part) == 0


def _ids_of(decl: DataDecl, raw: object) -> Read:
    if isinstance(raw, CuSeqlens):
        return CuSeqlens(_array(decl, raw.array))
    return _array(decl, raw)


def _array(decl: DataDecl, raw: object) -> np.ndarray:
    """int64, from NumPy, torch, CuPy or lists."""
    refuse_masked(raw, decl.name)
    if hasattr(raw, "detach") and hasattr(raw, "numpy") and not getattr(raw, "is_sparse", False):
        raw = raw.numpy(force=True)
    elif hasattr(raw, "get") and hasattr(raw, "__cuda_array_interface__"):
        raw = raw.get()
    try:
        array = np.asarray(raw)
    except (TypeError, ValueError):
        raise not_an_array(decl.name, raw) from None
    truths = decl.kind in (DataKind.flags, DataKind.table)
    if array.size and array.dtype.kind not in ("biu" if truths else "iu"):
        wanted = "booleans or integers" if truths else "integers"
        raise DataType(decl.name, array.dtype, wanted, at=decl.name)
    return _signed(decl, array)


_MAX = 2**63 - 1
_FARTHEST = 2**62 - 1
"""Positions are subtracted from each other: larger ones could leave 64 bits."""


def _signed(decl: DataDecl, array: np.ndarray) -> np.ndarray:
    """int64 of the same meaning: nothing wraps.

    Raises:
        DataRange: an id, a time or a parent beyond 64 signed bits, or a position beyond 63.
    """
    if array.dtype == bool or decl.kind in (DataKind.flags, DataKind.table):
        check_truths(decl.name, array)
        truths: np.ndarray = array != 0
        return truths.astype(np.int64)
    if array.dtype == np.uint64 and array.size and array.max() > _MAX:
        if decl.kind is not DataKind.intervals:
            fault = f"{array.max()} does not fit 64 signed bits"
            raise DataRange(decl.name, fault, "number tokens and documents from 0", at=decl.name)
        array = np.minimum(array, np.uint64(_MAX))  # beyond all keys, as it was
    signed = array.astype(np.int64)
    if decl.kind is DataKind.positions and signed.size:
        least, most = int(signed.min()), int(signed.max())
        if max(-least, most) > _FARTHEST:
            reached = f"its values reach from {least} to {most}"
            raise DataRange(decl.name, reached, "subtract the smallest one", at=decl.name)
    return signed


def parts(value: Read) -> tuple[Read, ...]:
    """Return both items of a pair; a single item otherwise."""
    return value if isinstance(value, tuple) else (value,)


def _leaves(value: Read) -> list[np.ndarray]:
    if isinstance(value, tuple):
        return [array for part in value for array in _leaves(part)]
    return [np.asarray(value.array) if isinstance(value, (CuSeqlens, Parents)) else value]


_TABLES = (DataKind.table, DataKind.key_lists)
"""Kinds with two dimensions of their own, before which heads may stand alone."""


def _has_batch(decl: DataDecl, array: np.ndarray) -> bool:
    return array.ndim == 4 if decl.kind in _TABLES else array.ndim > 1


def _has_heads(decl: DataDecl, array: np.ndarray) -> bool:
    """Whether an array of one sequence has a dimension of heads in front."""
    return array.ndim == (3 if decl.kind in _TABLES else 2)


def batch_of(wanted: dict[str, DataDecl], data: Mapping[str, Read]) -> int | None:
    """The size of the leading batch dimension, None if nothing has one.

    Raises:
        DataShape: two arrays disagree.
    """
    size: int | None = None
    for name, decl in wanted.items():
        for array in filter(partial(_has_batch, decl), _leaves(data[name])):
            if size not in (None, 1, len(array)) and len(array) != 1:
                raise DataShape(name, array.shape, f"batch {size}", at=name)
            size = len(array) if size is None else max(size, len(array))
    return size


def for_sequence(decl: DataDecl, value: Read, index: int) -> Read:
    """The part of one sequence: the same kind of thing without its batch dimension."""
    return _part(partial(_has_batch, decl), value, index)


def for_head(decl: DataDecl, value: Read, head: int) -> Read:
    """The part of one head, of data of one sequence."""
    return _part(partial(_has_heads, decl), value, head)


def _part(is_divided: Callable[[np.ndarray], bool], value: Read, index: int) -> Read:
    """One entry of the first dimension of arrays that are divided by it, or the only one."""
    if isinstance(value, tuple):
        return tuple(_part(is_divided, part, index) for part in value)
    if isinstance(value, (CuSeqlens, Parents)):
        return type(value)(_part(is_divided, np.asarray(value.array), index))
    if not is_divided(value):
        return value
    entries: np.ndarray = value[index if len(value) > 1 else 0]
    return entries


def heads_of(decl: DataDecl, value: Read) -> int:
    """Number of heads with data of their own; 1 if all heads share them.

    Raises:
        DataShape: two arrays disagree.
    """
    heads = 1
    for array in (array for array in _leaves(value) if array.ndim > 2):
        count = array.shape[-3 if decl.kind in _TABLES else -2]
        if count not in (1, heads) and heads != 1:
            raise DataShape(decl.name, array.shape, f"{heads} heads", at=decl.name)
        heads = max(heads, count)
    return heads


def is_by_head(decl: DataDecl, value: Read) -> bool:
    """Whether data of one sequence have rows for several heads."""
    return any(_has_heads(decl, array) and len(array) > 1 for array in _leaves(value))


# ------------------------------------------------------------------ one sequence


def vector(name: str, given: Read, length: int) -> np.ndarray:
    """int64 [length].

    Raises:
        DataShape: another shape.
    """
    array = np.asarray(given)
    if array.shape != (length,):
        raise DataShape(name, array.shape, f"[{length}]", at=name)
    return array


def key_lists(name: str, given: Read, n_q: int, n_kv: int) -> np.ndarray:
    """int64 [n_q, K]: keys, or -1.

    Raises:
        DataShape, DataRange: another shape, or no key (MC303, MC305).
    """
    lists = np.asarray(given)
    if lists.ndim != 2 or len(lists) != n_q:
        raise DataShape(name, lists.shape, f"[{n_q}, K]", at=name)
    if lists.size and (lists.min() < -1 or lists.max() >= n_kv):
        fault = f"lists name keys from {lists.min()} to {lists.max()} of {n_kv}"
        raise DataRange(name, fault, "keys count from 0, and -1 stands for none", at=name)
    return lists


def pair(name: str, given: Read, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Two int64 [length]."""
    first, second = parts(given)
    return vector(name, first, length), vector(name, second, length)


def document_ids(decl: DataDecl, given: Read, n_q: int, n_kv: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the queries [n_q] and of the keys [n_kv]."""
    name = decl.name
    if isinstance(given, tuple):
        return _ids(name, given[0], n_q, _NO_QUERY), _ids(name, given[1], n_kv, _NO_KEY)
    length = max(n_q, n_kv)
    of_q, of_k = (_ids(name, given, length, nobody) for nobody in (_NO_QUERY, _NO_KEY))
    return of_q[tokens(decl, n_q, length)], of_k[tokens(decl, n_kv, length)]


def tokens(decl: DataDecl, count: int, of: int) -> np.ndarray:
    """Return the tokens of the queries, or of the keys, int64 [count]: the last ones of all, or the
    first."""
    return np.arange(count) + (0 if decl.from_start else of - count)


def of_queries(decl: DataDecl, given: Read, n_q: int, n_kv: int) -> np.ndarray:
    """int64 [n_q], from an entry per query or per token."""
    array = np.asarray(given)
    if n_q < n_kv and array.shape == (n_kv,):
        array = array[tokens(decl, n_q, n_kv)]
    return vector(decl.name, array, n_q)


_NO_QUERY, _NO_KEY = -(2**63), 1 - 2**63
"""Ids of queries and of keys behind the last document: no two are equal."""


def _ids(name: str, given: Read, length: int, nobody: int) -> np.ndarray:
    if not isinstance(given, CuSeqlens):
        ids = np.asarray(given)
        if ids.shape != (length,):
            raise wrong_ids(name, ids, length, f"[{length}]")
        return ids
    array = np.asarray(given.array)
    if array.ndim != 1:
        raise DataShape(name, array.shape, "[documents + 1]", at=name)
    ends = [int(end) for end in array]
    if not ends or ends[0] != 0 or ends[-1] > length or ends != sorted(ends):
        mistake = f"{ends} must ascend from 0 to at most {length}"
        hint = "cumulative lengths are 0, then the end of each document; tokens may follow the last"
        raise DataRange(name, mistake, hint, at=name)
    ids = np.full(length, nobody, dtype=np.int64)
    for document in range(len(ends) - 1):
        ids[ends[document] : ends[document + 1]] = document
    return ids


def ancestors(
    name: str, parents: Parents, length: int, tokens: np.ndarray | None = None
) -> np.ndarray:
    """bool [tokens, length]: whether column k is the row's token itself or one of its ancestors.

    Args:
        tokens: of the rows; all of them when None.

    Raises:
        DataRange: the parents do not form a forest (MC305).
    """
    parent = vector(name, np.asarray(parents.array), length)
    rows = range(length) if tokens is None else tokens.tolist()
    above = np.zeros((len(rows), length), dtype=bool)
    for row, token in enumerate(rows):
        at = token
        while at != -1:
            if not 0 <= at < length or above[row, at]:
                fault = f"from token {token} the parents lead to {at}"
                raise DataRange(name, fault, "parents are token indices; -1 marks a root", at=name)
            above[row, at] = True
            at = int(parent[at])
    return above
