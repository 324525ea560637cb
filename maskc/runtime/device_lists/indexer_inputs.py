"""Ranking tensors of single keys that stay on the device: checked tensors of a call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from maskc.core.dtypes import E4M3
from maskc.core.errors import (
    DataMissing,
    DataRange,
    DataShape,
    DataType,
    Misaligned,
    NotContiguous,
    WrongDevice,
)
from maskc.core.selection import FACTORS, SHAPES, Score, Selection, Share, with_factors
from maskc.core.sizes import Sizes
from maskc.core.tensors import Array, Device, Shape
from maskc.dispatch.checks import ALIGNMENT
from maskc.layout.topk.indexer import INDEXINGS, MAX_HEADS, Indexing
from maskc.runtime.arrays.known import array_of

CODES = {"float32": 0, "bfloat16": 1, "float16": 2}
"""The codes by which kernels know the elements of weights and of given scores."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Ranking tensors of a call."""

    arrays: Mapping[str, Array]
    """`index_q`, `index_k`, `index_w` and perhaps FACTORS, or `scores`; four dimensions where they
    are scores."""
    lists: int
    """Sequences that have lists of their own; 1 where all share theirs."""
    groups: int
    """The groups of the heads of a sequence, likewise."""
    heads: int
    """The heads of the indexer, or those whose scores are averaged."""

    @property
    def key(self) -> Hashable:
        """All but where they are."""
        return tuple((name, *array[1:]) for name, array in self.arrays.items())

    @property
    def indexing(self) -> Indexing | None:
        """Computation of the scores; None if they are given, or if rows are too long."""
        q = self.arrays.get("index_q")
        return q and _indexing(q)


def ranking_on(
    device: Device,
    selection: Selection,
    data: Mapping[str, Any],
    sizes: Sizes,
    dtypes: tuple[str, ...],
) -> Ranking:
    """The tensors of a call by which keys are chosen.

    Args:
        device: of q, k and v.
        data: the caller's keywords.
        sizes: of the call.
        dtypes: of an indexer's queries and keys, one for both.

    Raises:
        DataMissing, DataShape, DataType, DataRange, NotAnArray, WrongDevice, NotContiguous,
        Misaligned.
    """
    if selection.score is Score.indexer:
        return _indexer(device, data, sizes, dtypes)
    return _given(device, selection, data, sizes)


def _indexer(
    device: Device, data: Mapping[str, Any], sizes: Sizes, dtypes: tuple[str, ...]
) -> Ranking:
    data = with_factors(data)
    q = _view("index_q", device, data, dtypes)
    k = _view("index_k", device, data, (q.dtype,))
    w = _view("index_w", device, data, tuple(CODES))
    factors = _view(FACTORS, device, data, tuple(CODES)) if FACTORS in data else None
    batch, n_q, n_kv = sizes.batch, sizes.n_q, sizes.n_kv
    if len(q.shape) != 4:
        raise DataShape("index_q", q.shape, f"[{batch}, heads, {n_q}, dim]", at="index_q")
    heads, dim = q.shape[1], q.shape[3]
    arrays = {"index_q": q, "index_k": k, "index_w": w} | ({FACTORS: factors} if factors else {})
    shapes = (heads, n_q, dim), (n_kv, dim), (heads, n_q), (n_kv,)
    for (name, array), rest in zip(arrays.items(), shapes, strict=False):
        if array.shape not in ((batch, *rest), (1, *rest)):
            wanted = f"[{', '.join(map(str, (batch, *rest)))}]"
            raise DataShape(name, array.shape, wanted, at=name)
    step, most = ALIGNMENT // _size(q), max(way.dim for way in INDEXINGS)
    if _indexing(q) is None or dim % step or not 0 < heads <= MAX_HEADS:
        finding = f"{heads} heads of {dim} elements"
        limits = f"take 1 to {MAX_HEADS} heads, and a multiple of {step} up to {most} elements"
        raise DataRange("index_q", finding, limits, at="index_q")
    for name, array in (("index_q", q), ("index_k", k)):
        _check_rows(name, array)
    return Ranking(arrays, max(x.shape[0] for x in arrays.values()), 1, heads)


def _indexing(q: Array) -> Indexing | None:
    """The first that has room for a row of index_q."""
    dim, in_e4m3 = q.shape[-1], q.dtype == E4M3
    fits = (way for way in INDEXINGS if way.in_e4m3 == in_e4m3 and 0 < dim <= way.dim)
    return next(fits, None)


def _size(array: Array) -> int:
    """Bytes of an element of index_q or index_k."""
    return 1 if array.dtype == E4M3 else 2


def _given(device: Device, selection: Selection, data: Mapping[str, Any], sizes: Sizes) -> Ranking:
    view = _view("scores", device, data, tuple(CODES))
    shape = (1, 1, *view.shape)[-4:] if 2 <= len(view.shape) <= 4 else ()
    lengths = (sizes.n_q, sizes.n_kv)
    if (
        shape[2:] != lengths
        or shape[0] not in (1, sizes.batch)
        or shape[1] not in (1, sizes.heads_q)
    ):
        wanted = f"[{lengths[0]}, {lengths[1]}], with {sizes.heads_q} heads and then a batch of " \
                 f"{sizes.batch} in front or without"  # fmt: skip
        raise DataShape("scores", view.shape, wanted, at="scores")
    if 0 not in shape and shape[3] > 1 and view.strides[-1] != 1:
        raise NotContiguous("scores", view.strides[-1], at="scores")
    strides = (0, 0, *view.strides)[-4:]
    groups, heads = 1, shape[1]
    if shape[1] > 1 and selection.share is Share.group:
        groups, heads = sizes.heads_kv, sizes.heads_q // sizes.heads_kv
    array = view._replace(shape=shape, strides=strides)
    return Ranking({"scores": array}, shape[0], groups, heads)


def _view(name: str, device: Device, data: Mapping[str, Any], dtypes: tuple[str, ...]) -> Array:
    x = data.get(name)
    if x is None:
        raise DataMissing(name, SHAPES[name], at=name)
    array = array_of(x, name)
    if array.device != device:
        where, there = (f"{kind}:{index}" for kind, index in (array.device, device))
        raise WrongDevice(name, where, "this call", there, at=name)
    if array.dtype not in dtypes:
        raise DataType(name, array.dtype, " or ".join(dtypes), at=name)
    return array


def _check_rows(name: str, array: Array) -> None:
    """Rows that are copied 16 bytes at a time."""
    if 0 in array.shape:
        return
    if array.strides[-1] != 1:
        raise NotContiguous(name, array.strides[-1], at=name)
    steps = zip(array.strides[:-1], array.shape[:-1], strict=True)
    bytes_apart = [_size(array) * step for step, count in steps if count > 1]
    if any(value % ALIGNMENT for value in (array.pointer, *bytes_apart)):
        raise Misaligned(name, ALIGNMENT, at=name)


def steps_of(array: Array, *dimensions: int) -> Shape:
    """Strides of some dimensions, 0 for one that all share."""
    return tuple(array.strides[d] if array.shape[d] > 1 else 0 for d in dimensions)
