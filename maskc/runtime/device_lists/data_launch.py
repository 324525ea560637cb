"""Passes whose tile lists are made on the device from data there, or were made before and still
hold."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any

from maskc.core import abi
from maskc.core.abi import LISTED_POINTERS, MAX_ARRAYS, POINTERS, Pointers
from maskc.core.errors import DataRange
from maskc.core.problem import Direction
from maskc.core.tensors import singles
from maskc.runtime.arrays.known import Library
from maskc.runtime.device_lists.call import KEPT, KEPT_AT, DeviceListedCall, DeviceListedPlan
from maskc.runtime.device_lists.data_given import Given, Watched
from maskc.runtime.launch.arguments import Arguments
from maskc.runtime.launch.cuda import Step
from maskc.runtime.launch.prepared import PER_THREAD, Sent

LISTED = abi.structure(abi.DATA_LISTS_FIELDS)
ARRAYS = tuple(f"array{number}" for number in range(MAX_ARRAYS))
PARTS = (
    *ARRAYS, "bounds", "bits_q", "bits_k", "counts_q", "counts_k", "row_ptr", "col_ptr",
    "row_tiles", "col_tiles", "work", "counter", "verdict",
)  # fmt: skip
"""Parts of the memory of lists, in the order of `struct DataLists`."""
WRITTEN = {
    Direction.forward: ("out", "lse"),
    Direction.backward: ("dq", "dk", "dv", "dsink", "dalibi"),
}
"""What a pass writes, among POINTERS."""

_LISTS = tuple(map(PARTS.index, LISTED_POINTERS[:6]))
"""Of the parts those that the pass reads as lists."""
_OWN = struct.Struct(f"{LISTED.most.offset // 8}Q{MAX_ARRAYS}q")
"""The members of `struct DataLists` that every call has anew, its first: pointers, and `most`."""
_RESULTS = LISTED.result.size // 8
_NO_POINTERS = (0,) * len(POINTERS)
_MOST_KEPT = 2
"""Lists that are kept for a stream."""
_MOST_STREAMS = 16


class Made:
    """Lists on the device."""

    __slots__ = ("base", "listed", "owner", "watched")

    def __init__(self, watched: Watched | None, owner: Any, base: int) -> None:
        self.watched, self.owner, self.base = watched, owner, base


@dataclass(frozen=True, eq=False)
class DataPlan(DeviceListedPlan):
    """A pass whose lists are made on the device."""

    before: tuple[Step, ...]
    """Launches that make the lists."""
    after: tuple[Step, ...]
    """The launch that spoils results, where something given may turn out to be wrong."""
    numbers: bytes
    """`struct DataLists` without what every call has anew."""
    room: tuple[int, ...]
    """Bytes from the start of the lists' memory to each of PARTS; -1 for those that are not
    made."""
    entries: int
    """Of this memory, of four bytes."""
    report: ctypes.c_int32
    """Where the device tells the host that something given was wrong."""
    names: str
    """Of the data, for messages."""
    kept: dict[int, tuple[Made, ...]] = field(default_factory=dict)
    """By stream, the latest first; only ever replaced as a whole."""

    @property
    def size(self) -> int:
        """Bytes this plan keeps alive."""
        return self.own.size + 4 * self.entries * _MOST_KEPT

    def called(self, given: Given) -> DeviceListedCall:
        """A call with these data.

        Raises:
            DataRange: something was wrong with those of an earlier call.
        """
        if self.report.value:
            self.report.value = 0
            found = (
                "in an earlier call, whose results are NaN, a value did not fit 32 bits, or "
                "cumulative lengths did not ascend from 0 to the length, or a document had more "
                "tokens than max_seqlen promised"
            )
            hint = "number documents from 0; give the longest length, or leave max_seqlen out"
            raise DataRange(self.names, found, hint, at=self.names)
        return DataCall(self, given)

    def known(self, stream: int, watched: Watched | None) -> Made | None:
        """Lists that still hold."""
        if watched is not None:
            for made in self.kept.get(stream, ()):
                if watched.same(made.watched):
                    return made
        return None

    def keep(self, stream: int, made: Made) -> None:
        """Remember lists that have been enqueued."""
        if stream not in self.kept and len(self.kept) >= _MOST_STREAMS:
            self.kept.clear()
        self.kept[stream] = (made, *self.kept.get(stream, ()))[:_MOST_KEPT]


class DataCall(DeviceListedCall):
    """One call: where the memory of its lists is found as soon as the stream is known."""

    __slots__ = ("_fresh", "_made")

    def __init__(self, plan: DataPlan, given: Given) -> None:
        super().__init__(plan, given)
        self.place = self._place
        self._made: Made
        self._fresh = True

    def _place(self, library: Library, q: Any) -> tuple[Sent, int]:
        plan: DataPlan = self._plan
        sent, stream = plan.own.place(library, q)
        watched = self._given.watched
        if stream == PER_THREAD or (stream and plan.own.kernel.capturing(stream)):
            watched = None
        made = plan.known(stream, watched)
        self._fresh = made is None
        self._made = made or Made(watched, *library.empty(q, singles(plan.entries)))
        return sent, stream

    def run(
        self, _: object, sent: Sent, pointers: Pointers, scale: float | None,
        softcap: float | None, stream: int,
    ) -> None:  # fmt: skip
        """Enqueue everything that is not there yet."""
        plan, made = self._plan, self._made
        own, launch = plan.own, plan.lists.launch
        pointers += _NO_POINTERS[len(pointers) :]
        at = [made.base + offset if offset >= 0 else 0 for offset in plan.room]
        listed = None
        row_ptr, row_tiles, col_ptr, col_tiles, *_, mask_args, distances, _ = KEPT.unpack_from(
            sent.template, KEPT_AT
        )
        if self._fresh or plan.after:
            sources = self._given.sources
            blank = (0,) * (MAX_ARRAYS - len(sources))
            listed = Arguments(plan.numbers, _OWN, (
                *(source.pointer for source in sources), *blank, *at[:MAX_ARRAYS],
                row_ptr, col_ptr, row_tiles, col_tiles, mask_args, *at[MAX_ARRAYS:],
                *self._spoilt(pointers), *(source.most for source in sources), *blank,
            ))  # fmt: skip
        if self._fresh and listed is not None:
            launch(plan.before, stream, listed)
            if made.watched is not None:
                plan.keep(stream, made)
        lists = [at[part] for part in _LISTS]
        head_variant = _HEAD_VARIANT.unpack_from(sent.template, _HEAD_VARIANT_AT)[0]
        seen = (*pointers, *lists, head_variant, mask_args, distances, 0, *at[:MAX_ARRAYS])
        own.run(own, sent, seen, scale, softcap, stream)
        if listed is not None and plan.after:
            launch(plan.after, stream, listed)

    def _spoilt(self, pointers: Pointers) -> tuple[int, ...]:
        """The report, and what is spoilt."""
        plan = self._plan
        names = WRITTEN[plan.own.direction] if plan.after else ()
        results = [pointers[POINTERS.index(name)] for name in names]
        return ctypes.addressof(plan.report), *results, *(0,) * (_RESULTS - len(results))


_HEAD_VARIANT = struct.Struct("Q")
_HEAD_VARIANT_AT = abi.ATTENTION.head_variant.offset
