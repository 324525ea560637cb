"""What single keys are chosen by, where it stays on the device: checked tensors of a call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from maskc.core.errors import (
    DataMissing,
    DataRange,
    DataShape,
    DataType,
    Misaligned,
    NotContiguous,
    WrongDevice,
)
from maskc.core.gather import INDEXED, MOST_HEADS
from maskc.core.selection import SHAPES, Score, Selection, Share
from maskc.runtime.arrays import LIBRARIES, Array, Device, Shape, library
from maskc.runtime.checks import ALIGNMENT, Sizes

CODES = {"float32": 0, "bfloat16": 1, "float16": 2}
"""By which kernels know the elements of weights and of given scores."""
_HALF_BYTES = 2
_STEP = 8
"""Elements of a row that are copied at once."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """What the keys of a call are ranked by."""

    arrays: Mapping[str, Array]
    """`index_q`, `index_k` and `index_w`, or `scores`; four dimensions where they are scores."""
    lists: int
    """Sequences that have lists of their own; 1 where all share theirs."""
    groups: int
    """Of the heads of a sequence, likewise."""
    heads: int
    """Of the indexer, or whose scores are averaged."""

    @property
    def key(self) -> Hashable:
        """All but where they are."""
        return tuple((name, *array[1:]) for name, array in self.arrays.items())


def ranking_on(
    device: Device, selection: Selection, data: Mapping[str, Any], sizes: Sizes, dtype: str
) -> Ranking:
    """The tensors of a call by which keys are chosen.

    Args:
        device: of q, k and v.
        data: the caller's keywords.
        sizes: of the call.
        dtype: of q, k and v, and so of an indexer's queries and keys.

    Raises:
        DataMissing, DataShape, DataType, DataRange, NotAnArray, WrongDevice, NotContiguous,
        Misaligned.
    """
    if selection.score is Score.indexer:
        return _indexer(device, data, sizes, dtype)
    return _given(device, selection, data, sizes)


def _indexer(device: Device, data: Mapping[str, Any], sizes: Sizes, dtype: str) -> Ranking:
    q = _view("index_q", device, data, (dtype,))
    k = _view("index_k", device, data, (dtype,))
    w = _view("index_w", device, data, tuple(CODES))
    batch, n_q, n_kv = sizes.batch, sizes.n_q, sizes.n_kv
    heads, dim = (q.shape[1], q.shape[3]) if len(q.shape) == 4 else ("heads", "dim")
    for name, array, rest in (
        ("index_q", q, (heads, n_q, dim)), ("index_k", k, (n_kv, dim)), ("index_w", w, (heads, n_q))
    ):  # fmt: skip
        if array.shape not in ((batch, *rest), (1, *rest)):
            wanted = f"[{', '.join(map(str, (batch, *rest)))}]"
            raise DataShape(name, array.shape, wanted, at=name)
    most = max(limit for _, limit in INDEXED)
    if not 0 < dim <= most or dim % _STEP or not 0 < heads <= MOST_HEADS:
        found = f"{heads} heads of {dim} elements"
        limits = f"take 1 to {MOST_HEADS} heads, and a multiple of {_STEP} up to {most} elements"
        raise DataRange("index_q", found, limits, at="index_q")
    for name, array in (("index_q", q), ("index_k", k)):
        _check_rows(name, array)
    lists = max(x.shape[0] for x in (q, k, w))
    return Ranking({"index_q": q, "index_k": k, "index_w": w}, lists, 1, heads)


def _given(
    device: Device, selection: Selection, data: Mapping[str, Any], sizes: Sizes
) -> Ranking:  # fmt: skip
    found = _view("scores", device, data, tuple(CODES))
    shape = (1, 1, *found.shape)[-4:] if 2 <= len(found.shape) <= 4 else ()
    own = (sizes.n_q, sizes.n_kv)
    if shape[2:] != own or shape[0] not in (1, sizes.batch) or shape[1] not in (1, sizes.heads_q):
        wanted = f"[{own[0]}, {own[1]}], with {sizes.heads_q} heads and then a batch of " \
                 f"{sizes.batch} in front or without"  # fmt: skip
        raise DataShape("scores", found.shape, wanted, at="scores")
    if 0 not in shape and shape[3] > 1 and found.strides[-1] != 1:
        raise NotContiguous("scores", found.strides[-1], at="scores")
    strides = (0, 0, *found.strides)[-4:]
    groups, heads = 1, shape[1]
    if shape[1] > 1 and selection.share is Share.group:
        groups, heads = sizes.heads_kv, sizes.heads_q // sizes.heads_kv
    array = found._replace(shape=shape, strides=strides)
    return Ranking({"scores": array}, shape[0], groups, heads)


def _view(name: str, device: Device, data: Mapping[str, Any], dtypes: tuple[str, ...]) -> Array:
    x = data.get(name)
    if x is None:
        raise DataMissing(name, SHAPES[name], at=name)
    known = library(x, name)
    found = LIBRARIES[type(known)].view(known, name)
    if found.device != device:
        where, there = (f"{kind}:{index}" for kind, index in (found.device, device))
        raise WrongDevice(name, where, "this call", there, at=name)
    if found.dtype not in dtypes:
        raise DataType(name, found.dtype, " or ".join(dtypes), at=name)
    return found


def _check_rows(name: str, array: Array) -> None:
    """Rows that are copied 16 bytes at a time."""
    if 0 in array.shape:
        return
    if array.strides[-1] != 1:
        raise NotContiguous(name, array.strides[-1], at=name)
    steps = zip(array.strides[:-1], array.shape[:-1], strict=True)
    bytes_apart = [_HALF_BYTES * step for step, count in steps if count > 1]
    if any(value % ALIGNMENT for value in (array.pointer, *bytes_apart)):
        raise Misaligned(name, at=name)


def steps_of(array: Array, *dimensions: int) -> Shape:
    """Strides of some dimensions, 0 for one that all share."""
    return tuple(array.strides[d] if array.shape[d] > 1 else 0 for d in dimensions)
