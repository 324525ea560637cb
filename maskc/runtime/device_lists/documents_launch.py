"""Passes whose tile lists are made on the device, just before they run, from documents there.

Lists lie in memory of their own, one for each stream, and are kept while the arrays of documents
stay as they are; inside CUDA graphs they are made at every replay.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from maskc.core import abi
from maskc.core.abi import LISTED_POINTERS, POINTERS, Pointers
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
from maskc.runtime.device_lists.documents_given import Documents
from maskc.runtime.launch.arguments import Arguments
from maskc.runtime.launch.cuda import Step
from maskc.runtime.launch.prepared import Sent

LISTED = abi.structure(abi.LISTED_FIELDS)
PARTS = (
    "ids_q", "ids_k", "bounds_q", "bounds_k", "counts_q", "counts_k", "row_ptr", "col_ptr",
    "row_tiles", "col_tiles", "work", "counter", "runs", "starts", "stops", "packed", "verdict",
)  # fmt: skip
"""Parts of the workspace, in the order of `struct Listed`."""
WRITTEN = {
    Direction.forward: ("out", "lse"),
    Direction.backward: ("dq", "dk", "dv", "dsink", "dalibi"),
}
"""What a pass writes, among POINTERS."""

_lists = itemgetter(*map(PARTS.index, LISTED_POINTERS[:6]))
"""Of the parts those that the pass reads as lists."""
_OWN = struct.Struct(f"{LISTED.most.offset // 8}Q2q")
"""The members of `struct Listed` that every call has anew, its first: pointers, and `most`."""
_RESULTS = LISTED.result.size // 8


@dataclass(frozen=True, eq=False)
class ListedPlan(RememberedPlan):
    """A pass whose lists of documents are made on the device."""

    before: tuple[Step, ...]
    """Launches that make the lists."""
    after: tuple[Step, ...]
    """The launch that spoils results, where something given may turn out to be wrong."""
    numbers: bytes
    """`struct Listed` without what every call has anew."""
    room: tuple[int, ...]
    """Bytes from the start of the lists' memory to each of PARTS; -1 for those that are not
    made."""
    arrays: Callable[[list[int]], tuple[int, ...]]
    """Of the parts those that the kernel's `array` starts with."""
    report: ctypes.c_int32
    """Where the device tells the host that something given was wrong."""
    name: str
    """Of the data."""

    def called(self, given: Documents) -> DeviceListedCall:
        """A call with these documents.

        Raises:
            DataRange: something was wrong with those of an earlier call.
        """
        if self.report.value:
            self.report.value = 0
            found = (
                "in an earlier call, whose results are NaN, an id did not fit 32 bits, or "
                "cumulative lengths did not ascend from 0 to the length, or a document had more "
                "tokens than max_seqlen promised"
            )
            hint = "number the documents from 0; give the longest length, or leave max_seqlen out"
            raise DataRange(self.name, found, hint, at=self.name)
        return RememberedCall(self, given)

    def enqueue_with(
        self, given: Documents, lists: Made, fresh: bool, sent: Sent, pointers: Pointers,
        scale: float | None, softcap: float | None, stream: int,
    ) -> None:  # fmt: skip
        """Make the lists where that is to be done, and run the pass."""
        own, launch = self.own, self.lists.launch
        of_q, of_k = given.sources
        made = [lists.base + offset if offset >= 0 else 0 for offset in self.room]
        row_ptr, row_tiles, col_ptr, col_tiles, *_, mask_args, distances, _ = KEPT.unpack_from(
            sent.template, KEPT_AT
        )
        listed = Arguments(self.numbers, _OWN, (
            of_q.array.pointer, of_k.array.pointer, row_ptr, col_ptr, row_tiles, col_tiles, *made,
            *self._spoilt(pointers), of_q.most, of_k.most,
        ))  # fmt: skip
        if fresh:
            launch(self.before, stream, listed)
        seen = (*pointers, *_lists(made), 0, mask_args, distances, 0, *self.arrays(made))
        own.run(own, sent, seen, scale, softcap, stream)
        if self.after:
            launch(self.after, stream, listed)

    def _spoilt(self, pointers: Pointers) -> tuple[int, ...]:
        """The report, and what is spoilt."""
        names = WRITTEN[self.own.direction] if self.after else ()
        results = [pointers[POINTERS.index(name)] for name in names]
        return ctypes.addressof(self.report), *results, *(0,) * (_RESULTS - len(results))
