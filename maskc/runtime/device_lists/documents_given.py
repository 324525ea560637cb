"""Documents of a call: what stays on the device, and lists of tiles from those on the host."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from maskc.core.data import CuSeqlens, DataDecl
from maskc.core.sizes import Sizes
from maskc.core.tensors import Array, Device
from maskc.layout import NO_PROMISE, promised
from maskc.runtime.arrays.known import LIBRARIES
from maskc.runtime.device_lists.watched import Watched

_BYTES = {"int32": 4, "int64": 8}
"""The bytes of the elements that kernels read."""


class Source(NamedTuple):
    """What tells the documents of all queries, or of all keys."""

    array: Array
    """Ids [n] or [lists, n], or cumulative lengths [ends] or [lists, ends]."""
    cumulative: bool
    most: int = NO_PROMISE
    """Tokens of a document; differs from call to call."""

    @property
    def pointer(self) -> int:
        """The address at which the array starts."""
        return self.array.pointer

    @property
    def lists(self) -> int:
        """Sequences that it tells apart."""
        return self.array.shape[0] if len(self.array.shape) == 2 else 1

    @property
    def list_stride(self) -> int:
        """Elements from one sequence to the next, 0 where all share theirs."""
        return self.array.strides[0] if self.lists > 1 else 0

    @property
    def element_bytes(self) -> int:
        """The bytes of an id or a length: 4 or 8."""
        return _BYTES[self.array.dtype]

    @property
    def ends(self) -> int:
        """Cumulative lengths of a sequence; 0 where there are ids."""
        return self.array.shape[-1] if self.cumulative else 0

    @property
    def doubtful(self) -> bool:
        """Whether values may turn out to be wrong: lengths, and ids of more than 32 bits."""
        return self.cumulative or self.element_bytes > 4

    def part(self, length: int, from_start: bool) -> Source:
        """The ids of the last tokens, or of the first ones."""
        array = self.array
        (tokens, step), last = (array.shape[-1], array.strides[-1]), not from_start
        first = array.pointer + last * (tokens - length) * step * self.element_bytes
        return self._replace(array=array._replace(pointer=first, shape=(*array.shape[:-1], length)))

    @property
    def key(self) -> Hashable:
        """All but where it is, and the exact promise."""
        return self.array[1:], self.cumulative


Given = tuple[Source, Source]
"""The ids of queries and of keys."""


class Documents(NamedTuple):
    """What a call gives."""

    sources: Given
    watched: Watched | None
    """None where nobody can tell whether the arrays change."""


def lists_of(given: Given) -> int:
    """How many sequences bring documents of their own; 1 where all share theirs."""
    return max(source.lists for source in given)


def given_on(device: Device, value: Any, sizes: Sizes, decl: DataDecl) -> Given | None:
    """What a call gives as documents, where kernels can read it as it is.

    Args:
        device: of the call's tensors.
        value: the caller's: an array, mc.cu_seqlens of one, or a pair of such.
        sizes: of the call; none is 0.
        decl: of the documents.

    Returns:
        None where something is on another device, of another dtype or shape, of a library not
        known by name, or cumulative lengths of all tokens where there are more keys than queries or
        the other way round: the host reads it then, and says what is wrong if anything is.

    Raises:
        NotAnArray: a tensor without memory.
        DataType, DataRange: a promise that is no length.
    """
    name = decl.name
    if type(value) is not tuple:
        one = _source(device, value, max(sizes.n_q, sizes.n_kv), sizes.batch, name)
        if one is None or sizes.n_q == sizes.n_kv:
            return None if one is None else (one, one)
        if one.cumulative:
            return None
        return one.part(sizes.n_q, decl.from_start), one.part(sizes.n_kv, decl.from_start)
    if len(value) != 2:
        return None
    of_q = _source(device, value[0], sizes.n_q, sizes.batch, name)
    of_k = _source(device, value[1], sizes.n_kv, sizes.batch, name)
    return None if of_q is None or of_k is None else (of_q, of_k)


def _source(device: Device, value: Any, length: int, batch: int, name: str) -> Source | None:
    cumulative = type(value) is CuSeqlens
    array = value.array if cumulative else value
    library = LIBRARIES.get(type(array))
    if library is None or type(array) is np.ndarray:
        return None
    found = library.view(array, name)
    shape = found.shape
    fits = len(shape) in (1, 2) and (shape[-1] > 0 if cumulative else shape[-1] == length)
    if found.device != device or found.dtype not in _BYTES or not fits:
        return None
    if len(shape) == 2 and shape[0] not in (1, batch):
        return None
    most = promised(name, value)
    return Source(found, cumulative, NO_PROMISE if most is None else most)
