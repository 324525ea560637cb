"""Common code of passes with lists that are built on the device, just before they run.

The lists are in the workspace of the call. Calls of several streams, threads and CUDA graphs
therefore share no memory.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from maskc.core.abi import ATTENTION, LISTED_POINTERS, POINTERS, WORK_FIELDS, Numbers, Pointers
from maskc.core.bundle import SourceUnit
from maskc.core.captured import HELD, Held
from maskc.core.sizes import Sizes
from maskc.core.tensors import Device, Output, singles
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.options import PlanOptions
from maskc.layout import Work
from maskc.runtime.arrays.known import Library
from maskc.runtime.device_lists.watched import Watched
from maskc.runtime.launch.cuda import CudaKernel
from maskc.runtime.launch.prepared import DEVICE_LISTS, PreparedLaunch

DELTA = POINTERS.index("delta")
"""The index in a call's pointers of the workspace."""
KEPT = struct.Struct(f"{len(LISTED_POINTERS)}Q")
"""Members of the argument block from KEPT_AT on: tables that are known before the lists."""
KEPT_AT = ATTENTION.row_ptr.offset
INT = 4
"""Bytes of an int32."""
_ALIGNED = 4
"""int32 entries to which every part of a workspace is rounded up: 16 bytes."""


class Unlisted(Exception):
    """The host must make the lists of this call."""


class Asked(NamedTuple):
    """A call whose mask reads data."""

    options: PlanOptions
    given: Sequence[Any]
    """q, k and v, then other arrays of the call."""
    data: Mapping[str, Any]
    """The caller's keywords."""
    held: Held | None
    """Arrays captured by formulas of the mask."""
    sizes: Sizes
    device: Device

    @property
    def empty(self) -> bool:
        """Whether the call has no pairs."""
        sizes = self.sizes
        return 0 in (sizes.batch, sizes.heads_q, sizes.n_q, sizes.n_kv)

    @property
    def keywords(self) -> Mapping[str, Any]:
        """The data of the mask by name, captured arrays as they are."""
        return self.data if self.held is None else {**self.data, HELD: self.held}

    @property
    def keywords_of_call(self) -> Mapping[str, Any]:
        """The keywords with the contents of captured arrays, cut to the call's sequences and heads.

        Raises:
            DataShape: an array has fewer rows for sequences or heads than there are.
        """
        if self.held is None:
            return self.data
        sizes = self.sizes
        held = self.held.of_call(sizes.batch, sizes.heads_q, sizes.n_q, sizes.n_kv)
        return {**self.data, HELD: held}


class DeviceLists(Protocol):
    """Makes such plans for one bundle; safe to use from several threads."""

    active: bool
    """Whether the device can make the lists of this mask."""

    def bind(self, asked: Asked) -> Bound | None:
        """Return the parameters of a call, and its data on the device; None if the host must read
        the data."""

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> DeviceListedPlan:  # fmt: skip
        """Plan a pass over some tokens; arguments as in SourceSelector.plan.

        Raises:
            Unlisted: the host must make the lists.
        """


class CallablePlan(Protocol):
    """One direction of one signature, for data that lie on the device."""

    @property
    def kernel(self) -> object:
        """See Runnable."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """See Runnable."""

    def place(self, library: Library, q: Any, watched: Watched | None) -> tuple[Any, int]:
        """See Runnable.place, for a call with `watched` arrays; None if changes to them cannot be
        detected."""

    def moved(self, given: Any) -> Any:
        """Return the data of a call from those of one whose arrays have the same layouts and lie
        elsewhere; None if they must be read again."""

    def enqueue(
        self, given: Any, sent: Any, pointers: Pointers, numbers: Numbers, stream: int
    ) -> None:
        """Enqueue the launches like `Runnable.run`, with the data of the call."""


class DataCall:
    """One call of such a plan."""

    __slots__ = ("_given", "kernel", "outputs", "plan", "watched")

    def __init__(self, plan: CallablePlan, given: Any, watched: Watched | None = None) -> None:
        """`given`, as `enqueue` takes it."""
        self.plan, self._given, self.watched = plan, given, watched
        self.kernel, self.outputs = plan.kernel, plan.outputs

    def changed(self, watched: Watched) -> DataCall | None:
        """Return the call with arrays that were written, or with others of the same layouts; None
        if its data must be read again."""
        given = self.plan.moved(self._given)
        if given is None:
            if self.watched is None or self.watched.places != watched.places:
                return None
            given = self._given  # the same arrays, with other values
        return DataCall(self.plan, given, watched)

    def place(self, library: Library, q: Any) -> tuple[Any, int]:
        """Return the arguments of the launches, and the stream to launch on."""
        return self.plan.place(library, q, self.watched)

    def run(self, sent: Any, pointers: Pointers, numbers: Numbers, stream: int) -> None:
        self.plan.enqueue(self._given, sent, pointers, numbers, stream)


@dataclass(frozen=True, eq=False)
class DeviceListedPlan(ABC):
    """One direction of one signature, whose lists of tiles the device makes."""

    main: PreparedLaunch
    """The pass itself. Its tables are those that do not depend on the lists."""
    lists: CudaKernel
    """Makes the lists."""

    @property
    def size(self) -> int:
        return self.main.size

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.lists.name, *self.main.sources)

    @property
    def layouts(self) -> tuple[str, ...]:
        return (DEVICE_LISTS,) * len(self.sources)

    @cached_property
    def kernel(self) -> object:
        return self.main.kernel

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        return self.main.outputs

    def called(self, given: Any) -> DataCall:
        return DataCall(self, given)

    def moved(self, given: Any) -> Any:
        return None

    def place(self, library: Library, q: Any, watched: Watched | None) -> tuple[Any, int]:
        """Return the arguments of the pass; its lists are in the workspace."""
        return self.main.place(library, q)

    @abstractmethod
    def enqueue(
        self, given: Any, sent: Any, pointers: Pointers, numbers: Numbers, stream: int
    ) -> None:
        """Make the lists and run the pass, in order."""


def pack_parts(
    names: Iterable[str], counts: Mapping[str, int], start: int
) -> tuple[tuple[int, ...], int]:
    """Where the parts of a workspace lie, one behind another.

    Args:
        names: of the parts, in order.
        counts: int32 entries of those that are made.
        start: entries that are taken.

    Returns:
        (bytes from the start to each part, -1 for one that is not made; int32 entries in all).
    """
    places, end = [], start
    for count in map(counts.get, names):
        end = -(-end // _ALIGNED) * _ALIGNED
        places.append(-1 if count is None else INT * end)
        end += count or 0
    return tuple(places), end


def with_room(
    plan: PreparedLaunch, backward: bool, room_from: Callable[[int], tuple[tuple[int, ...], int]]
) -> tuple[PreparedLaunch, tuple[int, ...]]:
    """Return the plan with room for the lists after its workspace, and their offsets.

    Args:
        room_from: (where parts of the lists are, entries in all) of a workspace whose first entries
            are taken.
    """
    at = 3 if backward else 2
    taken = plan.outputs[at].shape[0] if backward else 0
    room, entries = room_from(taken)
    outputs = (*plan.outputs[:at], singles(entries), *plan.outputs[at + 1 :])
    return replace(plan, outputs=outputs), room


def words_of_results(
    outputs: tuple[Output, ...], backward: bool, itemsize: int, count: int
) -> list[int]:
    """Words of four bytes in each of the `count` results that a launch may spoil.

    Args:
        outputs: of the pass.
        itemsize: bytes of an element of its tensors.
    """
    places = (0, 1, 2, 4, 4) if backward else (0, 1)
    tensors = 3 if backward else 1
    words = [
        prod(outputs[place].shape) * (itemsize if number < tensors else INT) // INT
        for number, place in enumerate(places)
    ]
    return words + [0] * (count - len(words))


def unknown_work(items: int, shared: int = 0, parts: int = 0) -> Work:
    """Return a work list of known length only, without its content.

    Args:
        items: its items.
        shared: tile columns to which several items add, or rows that may be cut.
        parts: shares of these columns, or parts of these rows, in all.
    """
    merges = np.zeros((shared, len(WORK_FIELDS)), np.int32)
    if shared:
        merges[0, 3] = parts
    nothing = np.broadcast_to(np.zeros((), np.int32), (items, len(WORK_FIELDS)))
    return Work(nothing, items, shared > 0, merges)
