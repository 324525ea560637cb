"""What the caller passes, as plain int64 arrays for one sequence of the batch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from maskc.core.data import QUESTION, CuSeqlens, DataDecl, DataKind, Parents, unknown_keyword
from maskc.core.errors import (
    DataMissing,
    DataRange,
    DataShape,
    DataType,
    NotAnArray,
)

Given = dict[str, object]
"""By declaration name: what the caller passed, or what `read` made of it."""


def check_names(wanted: dict[str, DataDecl], params: set[str], data: Given) -> None:
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


def read(decl: DataDecl, raw: object) -> object:
    """What was passed for one declaration, with int64 arrays inside.

    Returns:
        An array, a pair of what stands for queries and keys (or ends), CuSeqlens or Parents.

    Raises:
        DataShape: no pair where one is needed. DataType, NotAnArray: not integers or booleans.
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


def _is_number(part: object) -> bool:
    return not isinstance(part, CuSeqlens) and np.ndim(part) == 0  # type: ignore[arg-type]


def _ids_of(decl: DataDecl, raw: object) -> object:
    if isinstance(raw, CuSeqlens):
        return CuSeqlens(_array(decl, raw.array))
    return _array(decl, raw)


def _array(decl: DataDecl, raw: object) -> np.ndarray:
    """int64, from NumPy, torch, CuPy or lists."""
    if hasattr(raw, "detach") and hasattr(raw, "cpu"):
        raw = raw.detach().cpu()
    elif hasattr(raw, "get") and hasattr(raw, "__cuda_array_interface__"):
        raw = raw.get()
    try:
        array = np.asarray(raw)
    except (TypeError, ValueError):
        raise NotAnArray(decl.name, type(raw).__name__, at=decl.name) from None
    truths = decl.kind in (DataKind.flags, DataKind.table)
    if array.size and array.dtype.kind not in ("biu" if truths else "iu"):
        wanted = "booleans or integers" if truths else "integers"
        raise DataType(decl.name, array.dtype, wanted, at=decl.name)
    return array.astype(np.int64)


def _leaves(value: object) -> list[np.ndarray]:
    if isinstance(value, tuple):
        return [array for part in value for array in _leaves(part)]
    return [value.array if isinstance(value, (CuSeqlens, Parents)) else value]  # type: ignore


def _has_batch(decl: DataDecl, array: np.ndarray) -> bool:
    return array.ndim == (4 if decl.kind is DataKind.table else 2)


def batch_of(wanted: dict[str, DataDecl], data: Given) -> int | None:
    """The size of the leading batch dimension, None where nothing has one.

    Raises:
        DataShape: two arrays disagree.
    """
    size = None
    for name, decl in wanted.items():
        for array in filter(partial(_has_batch, decl), _leaves(data[name])):
            if size not in (None, 1, len(array)) and len(array) != 1:
                raise DataShape(name, array.shape, f"batch {size}", at=name)
            size = len(array) if size is None else max(size, len(array))
    return size


def for_sequence(decl: DataDecl, value: object, index: int) -> object:
    """The part of one sequence: the same kind of thing without its batch dimension."""
    if isinstance(value, tuple):
        return tuple(for_sequence(decl, part, index) for part in value)
    if isinstance(value, (CuSeqlens, Parents)):
        return type(value)(for_sequence(decl, value.array, index))
    if _has_batch(decl, value):  # type: ignore[arg-type]
        return value[index if len(value) > 1 else 0]  # type: ignore[arg-type,index]
    return value


# ------------------------------------------------------------------ one sequence


def vector(name: str, given: object, length: int) -> np.ndarray:
    """int64 [length].

    Raises:
        DataShape: another shape.
    """
    if np.shape(given) != (length,):  # type: ignore[arg-type]
        raise DataShape(name, np.shape(given), f"[{length}]", at=name)  # type: ignore[arg-type]
    return given  # type: ignore[return-value]


def pair(name: str, given: object, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Two int64 [length]."""
    first, second = given  # type: ignore[misc]
    return vector(name, first, length), vector(name, second, length)


def document_ids(name: str, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the queries [n_q] and of the keys [n_kv]."""
    if isinstance(given, tuple):
        return _ids(name, given[0], n_q), _ids(name, given[1], n_kv)
    if n_q != n_kv:
        found = type(given).__name__ if isinstance(given, CuSeqlens) else np.shape(given)  # type: ignore
        raise DataShape(name, found, "a pair, for queries and for keys", at=name)
    return _ids(name, given, n_q), _ids(name, given, n_kv)


def _ids(name: str, given: object, length: int) -> np.ndarray:
    if not isinstance(given, CuSeqlens):
        return vector(name, given, length)
    ends = [int(end) for end in given.array]  # type: ignore[attr-defined]
    if not ends or ends[0] != 0 or ends[-1] != length or ends != sorted(ends):
        raise DataRange(name, f"{ends} do not rise from 0 to {length}", "", at=name)
    ids = np.empty(length, dtype=np.int64)
    for document in range(len(ends) - 1):
        ids[ends[document] : ends[document + 1]] = document
    return ids


def ancestors(name: str, parents: Parents, length: int) -> np.ndarray:
    """bool [length, length]: whether column k is row q itself or one of its ancestors."""
    parent = vector(name, parents.array, length)
    above = np.zeros((length, length), dtype=bool)
    for token in range(length):
        at = token
        while at != -1:
            if not 0 <= at < length or above[token, at]:
                found = f"from token {token} the parents lead to {at}"
                raise DataRange(name, found, "parents are token indices; -1 marks a root", at=name)
            above[token, at] = True
            at = int(parent[at])
    return above
