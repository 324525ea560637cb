"""Arrays that a formula captured: data that the mask holds itself.

A captured array is known by its content. A torch tensor stays alive and is read again when its
version says that somebody wrote into it; arrays of other libraries are copied when the mask is
made. Masks that differ only in such content share a plan and its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b, sha256
from typing import Any

import numpy as np

from maskc.core.errors import DataRange, DataShape
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc

HELD = "_captured"
"""The keyword under which the values of a mask's captured arrays travel; no user's name starts
with an underscore."""


Lengths = tuple[int | None, int | None]
"""Queries and keys of a call; None stands for any number of them."""
ANY_LENGTHS: Lengths = (None, None)


class Captured:
    """An integer or boolean array and where the mask reads it first."""

    __slots__ = ("_array", "_digest", "_now", "_version", "at", "fixed", "source")

    def __init__(self, source: Any, at: SourceLoc | None = None) -> None:
        """Read the array now; one on a device when somebody asks for it.

        Args:
            source: a torch tensor, which is watched; or a NumPy array, which is copied.
            at: where the user's formula reads it.

        Raises:
            DataRange: a value beyond 32 bits.
        """
        self.at = at
        watched = hasattr(source, "detach")
        self.source: Any = source.detach() if watched else None
        """The torch tensor that is watched, or a copy of it that nobody writes into; None where
        there is none."""
        self.fixed = not watched
        self._version = _version(source) if watched else None
        self._array: np.ndarray | None = None
        self._digest: bytes | None = None
        if not self.on_device:
            self._array = _int32(_host(source) if watched else source, at)
        self._now: tuple[object, Captured] | None = None

    @classmethod
    def of(cls, array: np.ndarray, at: SourceLoc | None = None) -> Captured:
        """Make one over an int32 array of any shape that nobody changes."""
        made = cls.__new__(cls)
        made._array, made.source, made._version, made.at = array, None, None, at
        made.fixed, made._now, made._digest = True, None, None
        return made

    @property
    def on_device(self) -> bool:
        """Whether reading it on the host waits for a device."""
        return self.source is not None and self.source.device.type != "cpu"

    @property
    def array(self) -> np.ndarray:
        """The present content, int32 in C order, of the shape that was captured."""
        found = self._array
        if self.source is not None:
            version = _version(self.source)
            if found is None or version is None or version != self._version:
                found = self._array = _int32(_host(self.source), self.at)
                self._version = version
        if found is None:
            raise TypeError("neither an array nor a tensor")
        return found

    @property
    def digest(self) -> bytes:
        """The digest of the present shape and content; of an array that nobody changes it is found
        once."""
        found = self._digest
        if found is None:
            array = np.ascontiguousarray(self.array)
            content = blake2b(repr(array.shape).encode(), digest_size=32)
            content.update(array.data)
            found = content.digest()
            if self.fixed:
                self._digest = found
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple((self.source if self._array is None else self._array).shape)

    def now(self) -> Captured:
        """The content of this moment, for good; the same object as before where nothing was
        written."""
        if self.fixed:
            return self
        if self.on_device:  # a copy there, which waits for nothing
            mark = _version(self.source)
            if self._now is None or mark is None or self._now[0] != mark:
                copy = Captured(self.source.clone(), self.at)
                copy.fixed = True
                self._now = mark, copy
            return self._now[1]
        if self._now is None or self._now[0] is not self.array:
            self._now = self.array, Captured.of(self.array, self.at)
        return self._now[1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Captured):
            return NotImplemented
        if self is other:
            return True
        if self.shape != other.shape:
            return False
        if self.on_device and other.on_device:  # told apart by where they are, without waiting
            return self._place() == other._place()
        if self._digest is not None and other._digest is not None:
            return self._digest == other._digest
        mine, its = self.array, other.array
        return mine is its or (mine.shape == its.shape and np.array_equal(mine, its))

    def _place(self) -> tuple[object, ...]:
        """The place where the tensor lies, and how often somebody wrote into it."""
        own = self.source
        return own.device, own.data_ptr(), own.stride(), own.is_neg(), own.dtype, _version(own)

    def __hash__(self) -> int:
        return hash(self.shape)

    def __repr__(self) -> str:
        digest = sha256(self.array.tobytes()).hexdigest()[:16]
        return f"Captured({self.shape}, {digest})"

    def __copy__(self) -> Captured:
        return self

    def __deepcopy__(self, memo: object) -> Captured:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Captured.of, (self.array, self.at)


def _version(tensor: Any) -> int | None:
    """The counter that grows when somebody writes into the tensor.

    It is None where nothing counts, as in inference mode.
    """
    try:
        version: int = tensor._version
    except RuntimeError:
        return None
    return version


def _host(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.numpy(force=True)
    return array


def _int32(array: np.ndarray, at: SourceLoc | None) -> np.ndarray:
    values = np.array(array, dtype="<i4", order="C", copy=True)
    if array.dtype != np.bool_ and array.dtype != np.int32 and not np.array_equal(values, array):
        found = f"values reach {array.min()} and {array.max()}, beyond 32 bits"
        raise DataRange("a captured array", found, "kernels read 32-bit integers", at=at)
    values.flags.writeable = False
    return values


@dataclass(frozen=True)
class Reading:
    """A formula over captured arrays."""

    raw: Expr
    """The formula as the user wrote it: an index may lie outside where another condition excludes
    it."""
    read: Expr
    """The formula as kernels read it: no index is below 0."""
    at: SourceLoc | None = field(default=None, compare=False)
    lengths: Lengths = ANY_LENGTHS
    """The queries and keys for which the formula was made."""

    def check(self, n_q: int, n_kv: int) -> None:
        """Refuse other lengths than those for which the formula was made.

        Raises:
            DataShape.
        """
        check_lengths(self.lengths, n_q, n_kv, self.at)


def check_lengths(made: Lengths, n_q: int, n_kv: int, at: SourceLoc | None) -> None:
    """Refuse other lengths than those for which a mask was made.

    Raises:
        DataShape.
    """
    found = tuple("any" if size is None else size for size in made)
    if any(size not in (None, n) for size, n in zip(made, (n_q, n_kv), strict=True)):
        what = f"({n_q}, {n_kv}), the queries and keys of the call"
        raise DataShape("the mask's matrix", found, what, at=at)


@dataclass(frozen=True)
class Held:
    """All captured arrays of a mask, by the names that its formulas use."""

    tables: tuple[tuple[str, int, Captured], ...]
    """(name, indices that a formula gives, values). Vectors are [N] or [sequences, N]; tables
    [rows, cols], [heads, rows, cols] or [sequences, heads, rows, cols]; likewise with more
    indices."""
    readings: tuple[Reading, ...]
    heads: int = 1
    """Query heads of the call, where formulas compute with them."""

    @cached_property
    def fixed(self) -> bool:
        """Whether no content can change."""
        return all(values.fixed for _, _, values in self.tables)

    @cached_property
    def identity(self) -> str:
        """Text that is equal where two hold the same for ever.

        Contents that may change are told apart by who holds them, in this process.
        """
        if not self.fixed or any(values.on_device for _, _, values in self.tables):
            return f"held at {id(self)}"
        return sha256(repr((self.tables, self.heads)).encode()).hexdigest()

    def now(self) -> Held:
        """The contents of this moment; the same object as before where nothing was written."""
        if self.fixed:
            return self
        tables = tuple((name, rank, values.now()) for name, rank, values in self.tables)
        known: Held | None = self.__dict__.get("_now")
        if known is not None and all(
            a[2] is b[2] for a, b in zip(known.tables, tables, strict=True)
        ):
            return known
        made = self.__dict__["_now"] = replace(self, tables=tables)
        return made

    def of_call(self, batch: int, heads: int) -> Held:
        """The contents of this moment for so many sequences and query heads.

        Raises:
            DataShape: an array has fewer rows for sequences or heads than there are.
        """
        here = self.now()
        known = here.__dict__.get("_of_call")
        if known is None or known[0] != (batch, heads):
            tables = tuple((n, r, _fitting(v, r, batch, heads)) for n, r, v in here.tables)
            known = (batch, heads), replace(here, tables=tables, heads=heads)
            here.__dict__["_of_call"] = known
        return known[1]

    @cached_property
    def sources(self) -> tuple[Any, ...]:
        """The torch tensors that hold the arrays, in order; None where nobody changes one."""
        return tuple(values.source for _, _, values in self.tables)

    def source_of(self, name: str) -> Any:
        """The torch tensor that holds an array; None where there is none."""
        return next((values.source for own, _, values in self.tables if own == name), None)

    @property
    def extents(self) -> tuple[int, int]:
        """How many sequences and heads the arrays tell apart; 1 where all share theirs."""
        leading = [_leading(values, rank) for _, rank, values in self.tables]
        batch, heads = zip(*leading, strict=True)
        return max(batch), max(heads)

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (self.tables, self.readings, self.heads)


def _leading(values: Captured, rank: int) -> tuple[int, int]:
    """(sequences, heads) of an array, 1 where it has no such dimension."""
    front = (1, 1, *values.shape[: len(values.shape) - rank])
    return (front[-2], front[-1]) if rank > 1 else (front[-1], 1)


def _fitting(values: Captured, rank: int, batch: int, heads: int) -> Captured:
    """The array without the rows of sequences and heads that a call does not have."""
    front = values.shape[: len(values.shape) - rank]
    wanted = (batch, heads)[2 - len(front) :] if rank > 1 else (batch,)[1 - len(front) :]
    for size, least in zip(front, wanted, strict=True):
        if 1 != size < least:
            what = f"{least} of the call in place of {size}, one row for each sequence or head"
            raise DataShape("a captured array", values.shape, what, at=values.at)
    if all(size <= least for size, least in zip(front, wanted, strict=True)):
        return values
    cut = tuple(slice(0, max(least, 1)) for least in wanted)
    return Captured.of(np.ascontiguousarray(values.array[cut]), values.at)
