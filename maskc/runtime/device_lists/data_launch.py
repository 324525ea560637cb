"""Passes whose tile lists are made on the device from data there, or were made before and still
hold."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

from maskc.core import abi
from maskc.core.abi import LISTED_POINTERS, MAX_ARRAYS, POINTERS, Pointers
from maskc.core.errors import DataRange
from maskc.core.problem import Direction
from maskc.runtime.device_lists.call import (
    KEPT,
    KEPT_AT,
    DeviceListedCall,
    Made,
    RememberedCall,
    RememberedPlan,
)
from maskc.runtime.device_lists.data_given import Given
from maskc.runtime.launch.arguments import Arguments
from maskc.runtime.launch.cuda import Step
from maskc.runtime.launch.prepared import Sent

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


@dataclass(frozen=True, eq=False)
class DataPlan(RememberedPlan):
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
    report: ctypes.c_int32
    """Where the device tells the host that something given was wrong."""
    names: str
    """Of the data, for messages."""

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
        return RememberedCall(self, given)

    def enqueue_with(
        self, given: Given, made: Made, fresh: bool, sent: Sent, pointers: Pointers,
        scale: float | None, softcap: float | None, stream: int,
    ) -> None:  # fmt: skip
        """Make the lists where that is to be done, and run the pass."""
        own, launch, listed = self.own, self.lists.launch, None
        if fresh or self.after:
            listed = self._arguments(given, made, sent, pointers)
            if fresh:
                launch(self.before, stream, listed)
        if made.read is None or made.read[0] is not sent.template:
            made.read = sent.template, self._read(made, sent)
        own.run(own, sent, pointers + made.read[1], scale, softcap, stream)
        if listed is not None and self.after:
            launch(self.after, stream, listed)

    def _places(self, made: Made) -> list[int]:
        """Of PARTS; 0 for those that are not made."""
        return [made.base + offset if offset >= 0 else 0 for offset in self.room]

    def _arguments(
        self, given: Given, made: Made, sent: Sent, pointers: Pointers
    ) -> Arguments:  # fmt: skip
        """`struct DataLists` of a call."""
        at, sources = self._places(made), given.sources
        row_ptr, row_tiles, col_ptr, col_tiles, *_, mask_args, _, _ = KEPT.unpack_from(
            sent.template, KEPT_AT
        )
        blank = (0,) * (MAX_ARRAYS - len(sources))
        return Arguments(self.numbers, _OWN, (
            *(source.pointer for source in sources), *blank, *at[:MAX_ARRAYS],
            row_ptr, col_ptr, row_tiles, col_tiles, mask_args, *at[MAX_ARRAYS:],
            *self._spoilt(pointers), *(source.most for source in sources), *blank,
        ))  # fmt: skip

    def _read(self, made: Made, sent: Sent) -> tuple[int, ...]:
        """LISTED_POINTERS, and all arrays."""
        at = self._places(made)
        *_, head_variant, mask_args, distances, _ = KEPT.unpack_from(sent.template, KEPT_AT)
        lists = (at[part] for part in _LISTS)
        return (*lists, head_variant, mask_args, distances, 0, *at[:MAX_ARRAYS])

    def _spoilt(self, pointers: Pointers) -> tuple[int, ...]:
        """The report, and what is spoilt."""
        names = WRITTEN[self.own.direction] if self.after else ()
        results = [pointers[POINTERS.index(name)] for name in names]
        return ctypes.addressof(self.report), *results, *(0,) * (_RESULTS - len(results))
