"""Arrays that a formula captured: data that the mask holds itself.

A captured array is known by its content. A torch tensor stays alive and is read again when its
version says that somebody wrote into it; arrays of other libraries are copied when the mask is
made. Masks that differ only in such content share a plan and its kernels. An array may also be
computed of the user's function, anew for the lengths of each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b, sha256
from typing import Any, Protocol

import numpy as np

from maskc.core.errors import DataRange, DataShape, NeedsLengths
from maskc.core.expr import Expr
from maskc.core.leading import leading
from maskc.core.source import SourceLoc

HELD = "_captured"
"""The keyword under which the values of a mask's captured arrays travel; no user's name starts
with an underscore."""


Lengths = tuple[int | None, int | None]
"""Numbers of queries and keys of a call; None means any number."""
ANY_LENGTHS: Lengths = (None, None)


class Captured:
    """An integer or boolean array and where the mask reads it first."""

    __slots__ = ("_array", "_digest", "_now", "_version", "at", "fixed", "source")

    def __init__(self, source: Any, at: SourceLoc | None = None) -> None:
        """Read the array now; an array on a device only when needed.

        Args:
            source: a torch tensor, which is watched; or a NumPy array, which is copied.
            at: where the user's formula reads it.

        Raises:
            DataRange: a value beyond 32 bits.
        """
        self.at = at
        watched = hasattr(source, "detach")
        self.source: Any = source if watched else None
        """The torch tensor that is watched, or a private copy; None if there is none. It is the
        user's own object, because a compiler identifies a tensor that its graph writes by the
        object."""
        self.fixed = not watched
        self._version = version_of(source) if watched else None
        self._array: np.ndarray | None = None
        self._digest: bytes | None = None
        if not self.on_device:
            self._array = _int32(_host(source) if watched else source, at)
        self._now: tuple[object, Captured] | None = None

    @classmethod
    def of(cls, array: np.ndarray, at: SourceLoc | None = None) -> Captured:
        """Wrap an int32 array of any shape that never changes."""
        made = cls.__new__(cls)
        made._array, made.source, made._version, made.at = array, None, None, at
        made.fixed, made._now, made._digest = True, None, None
        return made

    @classmethod
    def at_rest(cls, tensor: Any, at: SourceLoc | None = None) -> Captured:
        """Wrap a torch tensor that is not written while this object is used.

        Raises:
            DataRange: a value beyond 32 bits.
        """
        made = cls(tensor, at)
        if not made.on_device:
            return cls.of(made.array, at)
        made.fixed = True
        return made

    @property
    def on_device(self) -> bool:
        """Whether reading it on the host waits for a device."""
        return self.source is not None and self.source.device.type != "cpu"

    @property
    def array(self) -> np.ndarray:
        """The present content, int32 in C order, of the shape that was captured."""
        values = self._array
        if self.source is not None:
            version = version_of(self.source)
            if values is None or version is None or version != self._version:
                values = self._array = _int32(_host(self.source), self.at)
                self._version = version
        if values is None:
            raise TypeError("neither an array nor a tensor")
        return values

    @property
    def digest(self) -> bytes:
        """The digest of the present shape and content; of an array that nobody changes it is found
        once."""
        digest = self._digest
        if digest is None:
            array = np.ascontiguousarray(self.array)
            content = blake2b(repr(array.shape).encode(), digest_size=32)
            content.update(array.data)
            digest = content.digest()
            if self.fixed:
                self._digest = digest
        return digest

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple((self.source if self._array is None else self._array).shape)

    def sequences(self, rank: int) -> int:
        """The size of the array's dimension of sequences; 1 if it has none.

        Args:
            rank: the indices that a formula gives.
        """
        return leading(self.shape, rank)[0]

    def heads(self, rank: int) -> int:
        """The size of the array's dimension of query heads; 1 if it has none."""
        return leading(self.shape, rank)[1]

    def of_call(self, batch: int, heads: int, n_q: int, n_kv: int) -> Captured:
        """The array in a call of so many sequences, query heads, queries and keys."""
        return self

    def now(self) -> Captured:
        """The content of this moment, for good; the same object as before where nothing was
        written."""
        if self.fixed:
            return self
        if self.on_device:  # a copy there, which waits for nothing
            mark = version_of(self.source)
            if self._now is None or mark is None or self._now[0] != mark:
                self._now = mark, Captured.at_rest(self.source.detach().clone(), self.at)
            return self._now[1]
        if self._now is None or self._now[0] is not self.array:
            self._now = self.array, Captured.of(self.array, self.at)
        return self._now[1]

    def is_always(self, other: object) -> bool:
        """Whether both will always have equal content: the same tensor, or equal arrays that never
        change."""
        if not isinstance(other, Captured) or isinstance(other, Computed):
            return False
        if self.fixed or other.fixed:
            return self.fixed and other.fixed and self == other
        return self.source is other.source or self._place() == other._place()

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
        """Return the address of the tensor, and its number of writes."""
        source = self.source
        mark = version_of(source)
        return (
            source.device,
            source.data_ptr(),
            source.stride(),
            source.is_neg(),
            source.dtype,
            mark,
        )

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


class Evaluation(Protocol):
    """Computes arrays of a user's function for the lengths of a call."""

    @property
    def at(self) -> SourceLoc | None:
        """The place of what cannot be followed."""

    @property
    def sequences(self) -> int:
        """The number of sequences with pairs of their own, if the number of the call is unknown."""

    @property
    def heads(self) -> int:
        """The number of query heads with pairs of their own, if the number of the call is
        unknown."""

    def arrays(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[Captured, ...]:
        """The arrays for so many sequences, query heads, queries and keys; remembered."""

    def now(self) -> Evaluation:
        """Return this object with the current content of the function's tensors; itself if nothing
        was written."""


_ANY_SIZE = 1 << 30
"""Stands for a dimension whose size lengths decide."""


class Computed(Captured):
    """An array that an Evaluation computes for the lengths of a call."""

    __slots__ = ("_evaluation", "_number", "_present", "_rank")

    def __init__(self, evaluation: Evaluation, number: int, rank: int) -> None:
        """Store the arguments; nothing is computed yet.

        Args:
            number: of the array among those that the evaluation gives.
            rank: the indices that a formula gives.
        """
        self._evaluation, self._number, self._rank = evaluation, number, rank
        self.source, self.fixed, self.at = None, False, evaluation.at
        self._present: Computed = self

    @property
    def on_device(self) -> bool:
        """Return False: the content is on the host."""
        return False

    @property
    def array(self) -> np.ndarray:
        """There is none without lengths.

        Raises:
            NeedsLengths: always (MC133).
        """
        raise NeedsLengths(at=self.at)

    digest = array  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes that stand for any."""
        return (_ANY_SIZE,) * self._rank

    def sequences(self, rank: int) -> int:
        """The number of sequences with pairs of their own."""
        return self._evaluation.sequences

    def heads(self, rank: int) -> int:
        """The number of query heads with pairs of their own."""
        return self._evaluation.heads

    def of_call(self, batch: int, heads: int, n_q: int, n_kv: int) -> Captured:
        """The array in a call of so many sequences, query heads, queries and keys."""
        return self._evaluation.arrays(batch, heads, n_q, n_kv)[self._number]

    def now(self) -> Captured:
        """The array of what the function reads at this moment."""
        present = self._evaluation.now()
        if self._present._evaluation is not present:
            same = present is self._evaluation
            self._present = self if same else Computed(present, self._number, self._rank)
        return self._present

    def is_always(self, other: object) -> bool:
        """Whether both are one array of one evaluation."""
        return self == other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Computed):
            return False
        same = self._evaluation is other._evaluation
        return same and (self._number, self._rank) == (other._number, other._rank)

    def __hash__(self) -> int:
        return hash((id(self._evaluation), self._number))

    def __repr__(self) -> str:
        return f"Computed({self._number}, {self.at})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Computed, (self._evaluation, self._number, self._rank)


_REDO = "_maskc_redo"
"""The attribute of a tensor that a traced function computed: how to compute it again."""


Run = Callable[[Callable[[Any], Any]], Any]
"""Computes a tensor, given a function that returns the present content of those before it."""


@dataclass(eq=False)
class Redo:
    """The computation of a tensor by a traced function."""

    run: Run
    sources: tuple[Any, ...]
    """The tensors that it depends on, of those that exist without the function."""
    versions: tuple[int | None, ...]
    """Writes to the sources when it ran last."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of the tensor are plain tensors."""
        return type(None), ()


def computed_by(tensor: Any, run: Run, sources: Sequence[Any]) -> None:
    """Note how a traced function computed a tensor, so that calls read its present content.

    Args:
        tensor: the result.
        run: as in `Redo`.
        sources: the tensors among its arguments.
    """
    known = {
        id(origin): origin
        for source in sources
        for origin in (getattr(source, _REDO).sources if is_computed(source) else (source,))
    }
    origins = tuple(known.values())
    setattr(tensor, _REDO, Redo(run, origins, tuple(map(version_of, origins))))


def is_computed(tensor: Any) -> bool:
    """Whether a traced function computed a tensor."""
    return hasattr(tensor, _REDO)


def forget_computation(tensor: Any) -> None:
    """Note that something else was written into a tensor that a traced function computed."""
    if is_computed(tensor):
        delattr(tensor, _REDO)


def present(tensor: Any, results: dict[int, Any] | None = None) -> Any:
    """Return the tensor; one that a traced function computed gets its present content.

    If gradients flow through the computation, it runs again, because a backward pass consumes its
    graph.
    """
    redo: Redo | None = getattr(tensor, _REDO, None)
    if redo is None:
        return tensor
    results = {} if results is None else results
    if id(tensor) not in results:
        versions = tuple(map(version_of, redo.sources))
        if tensor.requires_grad:
            results[id(tensor)] = redo.run(partial(present, results=results))
        elif versions != redo.versions or None in versions:
            redo.versions = versions
            results[id(tensor)] = tensor.copy_(redo.run(partial(present, results=results)))
        else:
            results[id(tensor)] = tensor
    return results[id(tensor)]


def recomputed(tensor: Any) -> Any:
    """Return the present content of a tensor inside of a graph, which computes it every time."""
    redo: Redo | None = getattr(tensor, _REDO, None)
    return tensor if redo is None else redo.run(recomputed)


def version_of(tensor: Any) -> int | None:
    """Return torch's counter of writes to a tensor.

    None if writes are not counted, as in inference mode.
    """
    try:
        owner = tensor if is_computed(tensor) else tensor._base
        if owner is not None and not owner.requires_grad:
            present(owner)
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
        finding = f"values reach {array.min()} and {array.max()}, beyond 32 bits"
        raise DataRange("a captured array", finding, "kernels read 32-bit integers", at=at)
    values.flags.writeable = False
    return values


@dataclass(frozen=True)
class Reading:
    """A formula over captured arrays."""

    raw: Expr
    """The formula as the user wrote it: an index may be out of range if another condition excludes
    the pair."""
    read: Expr
    """The formula as kernels read it: no index is below 0."""
    at: SourceLoc | None = field(default=None, compare=False)
    lengths: Lengths = ANY_LENGTHS
    """The queries and keys for which the formula was made."""

    def check(self, n_q: int, n_kv: int) -> None:
        """Raise an error for other lengths than those of the formula.

        Raises:
            DataShape.
        """
        check_lengths(self.lengths, n_q, n_kv, self.at)


def check_lengths(made: Lengths, n_q: int, n_kv: int, at: SourceLoc | None) -> None:
    """Raise an error for other lengths than those of a mask."""
    lengths = tuple("any" if size is None else size for size in made)
    if any(size not in (None, n) for size, n in zip(made, (n_q, n_kv), strict=True)):
        what = f"({n_q}, {n_kv}), the queries and keys of the call"
        raise DataShape("the mask's matrix", lengths, what, at=at)


@dataclass(frozen=True)
class Held:
    """All captured arrays of a mask, by the names that its formulas use."""

    tables: tuple[tuple[str, int, Captured], ...]
    """Yield (name, number of indices, values), with leading dimensions as in
    `maskc.core.leading`."""
    readings: tuple[Reading, ...]
    heads: int = 1
    """Query heads of the call, where formulas compute with them."""

    @cached_property
    def fixed(self) -> bool:
        """Whether no content can change."""
        return all(values.fixed for _, _, values in self.tables)

    @cached_property
    def watched(self) -> tuple[Any, ...]:
        """The torch tensors whose contents may change, in order: operands of an operator."""
        return tuple(v.source for _, _, v in self.tables if _is_operand(v))

    def over(self, tensors: Sequence[Any]) -> Held:
        """Return these arrays with `watched` replaced by the current tensors.

        Kernels of compilers write without incrementing the counter, so host tensors are read each
        time.

        Raises:
            DataRange: a value beyond 32 bits.
        """
        pairs = zip(self.watched, tensors, strict=True)
        if all(held is now and now.device.type != "cpu" for held, now in pairs):
            return self
        rest = iter(tensors)
        tables = (
            (name, rank, Captured.at_rest(next(rest), v.at) if _is_operand(v) else v)
            for name, rank, v in self.tables
        )
        return replace(self, tables=tuple(tables))

    @cached_property
    def computed(self) -> bool:
        """Whether the content of some array depends on lengths."""
        return any(isinstance(values, Computed) for _, _, values in self.tables)

    @cached_property
    def identity(self) -> str:
        """A text that is equal for two objects if their content is always equal.

        Content that may change is identified by its object in this process.
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

    def of_call(self, batch: int, heads: int, n_q: int, n_kv: int) -> Held:
        """The contents of this moment for so many sequences, query heads, queries and keys.

        Raises:
            DataShape: an array has fewer rows for sequences or heads than there are.
        """
        here = self.now()
        call = (batch, heads, n_q, n_kv) if here.computed else (batch, heads)
        known = here.__dict__.get("_of_call")
        if known is None or known[0] != call:
            tables = tuple(
                (name, rank, _fitting(values.of_call(batch, heads, n_q, n_kv), rank, batch, heads))
                for name, rank, values in here.tables
            )
            known = call, replace(here, tables=tables, heads=heads)
            here.__dict__["_of_call"] = known
        return known[1]

    @cached_property
    def sources(self) -> tuple[Any, ...]:
        """The torch tensors of the arrays, in order; None for an array that never changes."""
        return tuple(values.source for _, _, values in self.tables)

    def source_of(self, name: str) -> Any:
        """The torch tensor that holds an array; None if there is none."""
        return next((values.source for table, _, values in self.tables if table == name), None)

    @property
    def extents(self) -> tuple[int, int]:
        """Return the number of sequences and heads that the arrays distinguish; 1 if all share
        theirs."""
        return self.sequences, max(values.heads(rank) for _, rank, values in self.tables)

    @property
    def sequences(self) -> int:
        """Number of sequences with arrays of their own; 1 if all sequences share them."""
        return max(values.sequences(rank) for _, rank, values in self.tables)

    def of_question(self, n_heads: int | None, n_q: int, n_kv: int) -> Held:
        """Return the current contents, for all sequences and heads that differ.

        Args:
            n_heads: the query heads, where somebody says.
            n_q: queries; n_kv: keys.
        """
        heads = n_heads or self.extents[1]
        return self.of_call(self.sequences, heads, n_q, n_kv)

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (self.tables, self.readings, self.heads)


def _is_operand(values: Captured) -> bool:
    """Whether an array may change and is not a function of lengths."""
    return not values.fixed and not isinstance(values, Computed)


def _fitting(values: Captured, rank: int, batch: int, heads: int) -> Captured:
    """The array without the rows of sequences and heads that a call does not have."""
    front = values.shape[: len(values.shape) - rank]
    wanted = (batch, heads) if len(front) > 1 else (batch if rank == 1 else heads,)[: len(front)]
    for size, least in zip(front, wanted, strict=True):
        if 1 != size < least:
            what = f"{least} of the call in place of {size}, one row for each sequence or head"
            raise DataShape("a captured array", values.shape, what, at=values.at)
    if all(size <= least for size, least in zip(front, wanted, strict=True)):
        return values
    cut = tuple(slice(0, max(least, 1)) for least in wanted)
    return Captured.of(np.ascontiguousarray(values.array[cut]), values.at)
