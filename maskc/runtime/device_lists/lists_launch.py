"""Passes whose tile lists are made on the device from data there, or were made before and still
hold.

Lists lie in memory of their own, some for each stream, and are kept while the arrays stay as they
are; inside CUDA graphs they are made at every replay.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

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
from maskc.runtime.device_lists.reports import Reports
from maskc.runtime.launch.arguments import Arguments
from maskc.runtime.launch.cuda import Step
from maskc.runtime.launch.prepared import Sent

_WRITTEN = {
    Direction.forward: ("out", "lse"),
    Direction.backward: ("dq", "dk", "dv", "dsink", "dalibi"),
}
"""What a pass writes, among POINTERS."""


class Block:
    """The argument block of kernels that make lists. It begins with pointers: to what is given, the
    lists before data, perhaps the mask's constants, the parts of the memory of lists, and what is
    reported and spoilt."""

    def __init__(self, fields: tuple[abi.Field, ...], parts: tuple[str, ...]) -> None:
        """`parts`: of the memory of lists, as the block has them."""
        self.structure: Any = abi.structure(fields)
        self.parts = parts
        self.sources = self.structure.kept_ptr.offset // 8
        """How many arrays it has room for."""
        self.constants = hasattr(self.structure, "mask_args")
        self.results = self.structure.result.size // 8
        self.own = struct.Struct(f"{self.structure.most.offset // 8}Q{self.sources + 1}q")
        """What every call has anew: pointers, the promised lengths, and a ticket."""
        self.lists = itemgetter(*map(parts.index, LISTED_POINTERS[:6]))
        """The parts that the pass reads as lists."""


ARRAYS = tuple(f"array{number}" for number in range(MAX_ARRAYS))
_LISTS = ("counts_q", "counts_k", "row_ptr", "col_ptr", "row_tiles", "col_tiles", "work", "counter")
DATA = Block(
    abi.DATA_LISTS_FIELDS, (*ARRAYS, "bounds", "bits_q", "bits_k", *_LISTS, "verdict")
)  # fmt: skip
"""The launch that makes lists of any data."""
DOCUMENTS = Block(
    abi.LISTED_FIELDS,
    ("ids_q", "ids_k", "bounds_q", "bounds_k", *_LISTS, "runs", "starts", "stops", "packed",
     "verdict"),
)  # fmt: skip
"""The launch that makes lists of documents."""


@dataclass(frozen=True, eq=False)
class ListsPlan(RememberedPlan):
    """A pass whose lists are made on the device."""

    block: Block
    before: tuple[Step, ...]
    """Launches that make the lists."""
    after: tuple[Step, ...]
    """The launch that spoils results, where something given may turn out to be wrong."""
    numbers: bytes
    """The block without what every call has anew."""
    room: tuple[int, ...]
    """Bytes from the start of the lists' memory to each of its parts; -1 for those that are not
    made."""
    arrays: Callable[[list[int]], tuple[int, ...]]
    """The parts that the kernel's `array` starts with."""
    reports: Reports
    names: str
    """The names of the data, for messages."""

    def called(self, given: Any) -> DeviceListedCall:
        """A call with these data.

        Raises:
            DataRange: something was wrong with those of an earlier call.
        """
        if self.reports.wrong():
            found = (
                "in an earlier call, whose results are NaN, a value did not fit 32 bits, or "
                "cumulative lengths did not ascend from 0 to the length, or a document had more "
                "tokens than max_seqlen promised"
            )
            hint = "number documents from 0; give the longest length, or leave max_seqlen out"
            raise DataRange(self.names, found, hint, at=self.names)
        return RememberedCall(self, given)

    def enqueue_with(
        self, given: Any, made: Made, fresh: bool, sent: Sent, pointers: Pointers,
        scale: float | None, softcap: float | None, stream: int,
    ) -> None:  # fmt: skip
        """Make the lists where that is to be done, and run the pass.

        Results are spoilt where data are wrong, until the host has seen that those of lists that
        are kept are not.
        """
        own, launch = self.own, self.lists.launch
        doubtful = self.after and not made.sound
        if doubtful and not fresh and self.reports.fine(made.ticket):
            made.sound, doubtful = True, False
        listed = None
        if fresh or doubtful:
            if fresh and doubtful and made.watched is not None:
                made.ticket = self.reports.ticket()
            listed = self._arguments(given, made, sent, pointers)
        if fresh and listed is not None:
            launch(self.before, stream, listed)
        if made.read is None or made.read[0] is not sent.owner:
            made.read = sent.owner, self._read(made, sent)
        own.run(own, sent, pointers + made.read[1], scale, softcap, stream)
        if doubtful and listed is not None:
            launch(self.after, stream, listed)

    def _places(self, made: Made) -> list[int]:
        """The places of the parts; 0 for those that are not made."""
        return [made.base + offset if offset >= 0 else 0 for offset in self.room]

    def _arguments(
        self, given: Any, made: Made, sent: Sent, pointers: Pointers
    ) -> Arguments:  # fmt: skip
        """The block of a call."""
        block, sources = self.block, given.sources
        row_ptr, row_tiles, col_ptr, col_tiles, *_, mask_args, _, _ = KEPT.unpack_from(
            sent.template, KEPT_AT
        )
        blank = (0,) * (block.sources - len(sources))
        names = _WRITTEN[self.own.direction] if self.after else ()
        results = [pointers[POINTERS.index(name)] for name in names]
        return Arguments(self.numbers, block.own, (
            *(source.pointer for source in sources), *blank,
            row_ptr, col_ptr, row_tiles, col_tiles, *((mask_args,) if block.constants else ()),
            *self._places(made), *self.reports.addresses(made.ticket),
            *results, *(0,) * (block.results - len(results)),
            *(source.most for source in sources), *blank, made.ticket,
        ))  # fmt: skip

    def _read(self, made: Made, sent: Sent) -> tuple[int, ...]:
        """LISTED_POINTERS, and arrays."""
        at = self._places(made)
        *_, head_variant, mask_args, distances, _ = KEPT.unpack_from(sent.template, KEPT_AT)
        return (*self.block.lists(at), head_variant, mask_args, distances, 0, *self.arrays(at))
