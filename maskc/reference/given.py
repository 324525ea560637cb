"""What the caller passes, as plain int64 arrays for one sequence of the batch."""

from __future__ import annotations

import numpy as np

from maskc.core.data import CuSeqlens, DataDecl, DataKind, Parents
from maskc.core.errors import DataMissing, DataRange, DataShape, DataType, DataUnknown

Given = dict[str, object]
"""By declaration name: an array, a pair of them, CuSeqlens or Parents."""


def check_names(wanted: dict[str, DataDecl], params: set[str], data: Given) -> None:
    """Every array is there, and nothing else but parameters.

    Raises:
        DataMissing, DataUnknown.
    """
    for name in data:
        if name not in wanted and name not in params:
            raise DataUnknown(name, ", ".join(sorted([*wanted, *params])) or "none", at=name)
    for name, decl in wanted.items():
        if data.get(name) is None:
            raise DataMissing(name, decl.kind.value, at=name)


def leaves(name: str, given: object) -> list[np.ndarray]:
    """The arrays inside what was given under one name."""
    if isinstance(given, (CuSeqlens, Parents)):
        return [_integers(name, given.array)]
    if isinstance(given, tuple) and not all(np.ndim(_inner(part)) == 0 for part in given):
        return [array for part in given for array in leaves(name, part)]
    return [_integers(name, given)]


def _inner(part: object) -> object:
    return part.array if isinstance(part, (CuSeqlens, Parents)) else part


def _integers(name: str, given: object) -> np.ndarray:
    array = np.asarray(given)
    if array.dtype.kind not in "biu" and array.size:
        raise DataType(name, array.dtype, "integers or booleans", at=name)
    return array.astype(np.int64)


def batch_of(wanted: dict[str, DataDecl], data: Given) -> int | None:
    """The size of the leading batch dimension, None where nothing has one.

    Raises:
        DataShape: two arrays disagree.
    """
    size = None
    for name, decl in wanted.items():
        for array in leaves(name, data[name]):
            if array.ndim != (4 if decl.kind is DataKind.table else 2):
                continue
            if size not in (None, 1, len(array)) and len(array) != 1:
                raise DataShape(name, array.shape, f"batch {size}", at=name)
            size = max(size or 0, len(array))
    return size


def for_sequence(decl: DataDecl, given: object, index: int | None) -> object:
    """The part of one sequence: the same kind of thing without its batch dimension."""
    if isinstance(given, (CuSeqlens, Parents)):
        return type(given)(for_sequence(decl, given.array, index))
    parts = leaves(decl.name, given)
    if len(parts) > 1 or (isinstance(given, tuple) and np.ndim(given[0])):
        return tuple(for_sequence(decl, part, index) for part in given)  # type: ignore
    array = parts[0]
    batched = array.ndim == (4 if decl.kind is DataKind.table else 2)
    return array[min(index or 0, len(array) - 1)] if batched else array


# ------------------------------------------------------------------ one sequence


def vector(name: str, given: object, length: int) -> np.ndarray:
    """int64 [length].

    Raises:
        DataShape: another shape.
    """
    array = _integers(name, given)
    if array.shape != (length,):
        raise DataShape(name, array.shape, f"[{length}]", at=name)
    return array


def pair(name: str, given: object, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Two int64 [length]."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise DataShape(name, type(given).__name__, "a pair of arrays", at=name)
    return vector(name, given[0], length), vector(name, given[1], length)


def document_ids(name: str, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the queries [n_q] and of the keys [n_kv]."""
    if isinstance(given, tuple):
        return _ids(name, given[0], n_q), _ids(name, given[1], n_kv)
    if n_q != n_kv:
        raise DataShape(name, np.shape(_inner(given)), "a pair, for queries and for keys", at=name)
    return _ids(name, given, n_q), _ids(name, given, n_kv)


def _ids(name: str, given: object, length: int) -> np.ndarray:
    if not isinstance(given, CuSeqlens):
        return vector(name, given, length)
    ends = [int(end) for end in _integers(name, given.array)]
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
