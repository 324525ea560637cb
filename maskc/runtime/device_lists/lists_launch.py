"""Passes whose tile lists are made on the device from data there, or were made before and still
hold.

Lists are in separate memory, a few per stream, and are reused until an array changes. Inside CUDA
graphs they are built at every replay.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from maskc.core import abi
from maskc.core.abi import (
    ATTENTION,
    LISTED_POINTERS,
    MAX_ARRAYS,
    MAX_RESULTS,
    MAX_SELECTIONS,
    POINTERS,
    Numbers,
    Pointers,
)
from maskc.core.errors import DataRange
from maskc.core.problem import Direction
from maskc.core.tensors import singles
from maskc.runtime.arrays.known import Library, zeros
from maskc.runtime.device_lists.call import (
    INT,
    KEPT,
    KEPT_AT,
    Asked,
    DataCall,
    DeviceListedPlan,
)
from maskc.runtime.device_lists.reports import Reports
from maskc.runtime.device_lists.watched import Watched
from maskc.runtime.launch.cuda import Arguments, Step
from maskc.runtime.launch.prepared import Sent

_WRITTEN = {
    Direction.forward: ("out", "lse"),
    Direction.backward: ("dq", "dk", "dv", "dsink", "dslopes"),
}
"""Results of a pass, among POINTERS."""


LISTS = abi.structure(abi.LISTS_FIELDS)
"""Argument block of the launch that builds lists. It begins with pointers: to the data, to tables
from the host, to the parts of the memory of lists, to the state, and to the report and the
results that wrong data overwrite."""
OWN = struct.Struct(f"{LISTS.most.offset // 8}Q{MAX_ARRAYS + 1}q")
"""Members that are filled in: pointers, the promised lengths, and a ticket."""
_WRITE_SOURCES = [struct.Struct(f"{count}Q").pack_into for count in range(MAX_ARRAYS + 1)]
"""Write the first of them, where the data lie, by the number of arrays."""
_WRITE_STATES, _STATES_AT = struct.Struct("2Q").pack_into, LISTS.state.offset
_WRITE_REPORT = struct.Struct(f"{2 + MAX_RESULTS}Q{MAX_ARRAYS + 1}q").pack_into
"""Write those from the reports on, where data may be wrong."""
_REPORT_AT = LISTS.report.offset
_NO_REPORT = (0,) * (2 + MAX_RESULTS + MAX_ARRAYS + 1)
ARRAYS = tuple(f"array{number}" for number in range(MAX_ARRAYS))
SEEN = tuple(f"seen{number}" for number in range(MAX_SELECTIONS))
PARTS = (
    *ARRAYS, "bounds", "starts", *SEEN, "bits_q", "bits_k", "counts_q", "counts_k", "row_ptr",
    "col_ptr", "row_tiles", "col_tiles", "work", "counter", "verdict",
)  # fmt: skip
"""The parts of the memory of lists, as the block has them."""
OF_PASS = itemgetter(*map(PARTS.index, LISTED_POINTERS[:6]))
"""The parts that the pass reads as lists."""
OF_MASK = (LISTS.cases.offset - LISTS.source.offset) // 8
"""Pointers before those that selections alone have: what is given, candidates, constants."""
BEHIND_STATE = (LISTS.most.offset - LISTS.spent.offset) // 8 + MAX_ARRAYS + 1
"""Members of OWN behind the state."""
_OF_SELECTIONS = (0,) * 3
"""Tables that selections alone have."""


class CallArrays(NamedTuple):
    """The data of a call, as launches read them."""

    places: Pointers
    """Addresses by slot."""
    most: Pointers
    """Promised lengths by slot."""
    offsets: tuple[tuple[int, int], ...] | None
    """The index in `Watched.state` of the address of the array of each slot, and the bytes from
    there; None if unknown."""
    checked: Asked | None
    """The call, where its lists are checked."""


class Lists:
    """Lists on the device, in memory of one stream, with everything that launches read. A call owns
    them exclusively, so that no other thread overwrites them before they are read."""

    __slots__ = (
        "arguments", "fresh", "lse", "owner", "places", "sent", "sound", "states", "ticket",
        "usual", "watched",
    )  # fmt: skip

    def __init__(
        self, usual: Sent, arguments: Arguments, places: list[int], states: tuple[int, int],
        owner: Any, sound: bool,
    ) -> None:  # fmt: skip
        """See the class.

        Args:
            usual: what the pass reads.
            places: of the parts, 0 for those that are not made.
            states: address of zeros for the next launch, and of the memory that it must clear.
            sound: whether no data can be wrong.
        """
        self.usual = self.sent = usual
        self.states = states
        self.lse = usual.lse
        self.arguments, self.places, self.owner = arguments, places, owner
        self.fresh = True
        """Whether they must still be built."""
        self.watched: Watched | None = None
        """The arrays of the call that they were built from; None if changes cannot be detected."""
        self.ticket, self.sound = 0, sound
        """Ticket for the report of the device, see `Reports`; and whether the data cannot be wrong,
        or the device has confirmed them."""

    def with_block(self, block: bytes) -> Lists:
        """These, read by a call with more behind `struct Attention`."""
        self.sent = self.sent.with_block(block)
        return self


_MAX_KEPT = 2
"""Lists that are kept for a stream."""
_MAX_STREAMS = 16
_ARRAY = ATTENTION.array.offset

Read = Callable[[int, int], np.ndarray | None]
"""Copies int32 words at an address of the device; None if no kernel has run there."""
Kept = dict[tuple[Any, ...], Lists]
"""Unused lists of one stream, by the state of the data they were built from; the latest last."""


@dataclass(frozen=True, eq=False)
class ListsPlan(DeviceListedPlan):
    """A pass with lists built on the device. They are in separate memory, and are reused until an
    array changes."""

    entries: int
    """The entries of this memory, of four bytes."""
    state: int
    """The entries of the state. There are two states: each launch uses one and clears the other."""
    before: tuple[Step, ...]
    """The launch that makes the lists."""
    after: tuple[Step, ...]
    """The launch that overwrites results if data turn out to be wrong; none if they cannot, or if
    the lists say so."""
    doubtful: bool
    """Whether data may turn out to be wrong."""
    numbers: bytes
    """The block without what every call has anew."""
    room: tuple[int, ...]
    """Bytes from the start of the lists' memory to each of its parts; -1 for those that are not
    made."""
    reports: Reports
    names: str
    """Names of the data, for messages."""
    compare: Callable[[Asked, Mapping[str, int], Read], None]
    """Compares lists with the host's, for a call that is checked; see `ListsCheck`."""
    kept: dict[int, Kept] = field(default_factory=dict, kw_only=True)
    """By stream."""

    @property
    def size(self) -> int:
        return self.main.size + INT * self.entries * _MAX_KEPT

    @cached_property
    def results(self) -> tuple[int, ...]:
        """Results that wrong data overwrite, among POINTERS."""
        names = _WRITTEN[self.main.direction] if self.after else ()
        return tuple(map(POINTERS.index, names))

    def called(self, given: Any) -> DataCall:
        sources = given.sources
        most = (*(x.most for x in sources), *(0,) * (MAX_ARRAYS - len(sources)))
        places, offsets, watched = tuple(x.pointer for x in sources), None, given.watched
        if watched is not None and given.order is not None:
            starts = [watched.places[at] for at in given.order]
            shifts = (place - start for place, start in zip(places, starts, strict=True))
            offsets = tuple((2 * at, by) for at, by in zip(given.order, shifts, strict=True))
        return DataCall(self, CallArrays(places, most, offsets, given.checked), watched)

    def moved(self, given: CallArrays) -> CallArrays | None:
        return given if given.offsets is not None and given.checked is None else None

    def check(self) -> None:
        """Raise what an earlier call reported.

        Raises:
            DataRange: something was wrong with its data.
        """
        if self.reports.wrong():
            finding = (
                "in an earlier call, whose results are NaN, a value did not fit 32 bits, or "
                "cumulative lengths did not ascend from 0 to the length at most, or a document had "
                "more tokens than max_seqlen promised"
            )
            hint = "number documents from 0; give the longest length, or leave max_seqlen out"
            raise DataRange(self.names, finding, hint, at=self.names)

    def place(self, library: Library, q: Any, watched: Watched | None) -> tuple[Lists, int]:
        """Lists for a call alone, and the stream to launch on; see PreparedLaunch.place.

        Raises:
            DataRange: something was wrong with the data of an earlier call.
        """
        if self.reports.words[0]:
            self.check()
        sent, stream = self.main.place(library, q)
        lists = self._taken(library, q, sent, stream, watched)
        lists.sent, lists.watched = lists.usual, watched
        return lists, stream

    def _taken(
        self, library: Library, q: Any, sent: Sent, stream: int, watched: Watched | None
    ) -> Lists:
        """Take lists exclusively for a call: existing lists of its arrays, or unused memory for new
        ones.

        Args:
            sent: what the pass reads besides.
            watched: None if nobody can tell whether arrays change.
        """
        if watched is None or not sent.lasting:
            return self._new(library, q, sent, stream)
        kept = self.kept.get(stream)
        if kept is None:
            if len(self.kept) >= _MAX_STREAMS:
                self.kept.clear()
            kept = self.kept.setdefault(stream, {})
        lists = kept.pop(watched.state, None)
        if lists is None:
            if len(kept) < _MAX_KEPT:
                return self._new(library, q, sent, stream)
            try:
                lists = kept.pop(next(iter(kept)))  # unused for longest
            except (KeyError, RuntimeError, StopIteration):  # another thread took them
                return self._new(library, q, sent, stream)
        elif lists.watched is watched or (lists.watched and watched.same(lists.watched)):
            return lists
        lists.fresh, lists.ticket, lists.sound = True, 0, not self.doubtful
        return lists

    def _new(self, library: Library, q: Any, sent: Sent, stream: int) -> Lists:
        owner, base = library.empty(q, singles(self.entries))
        state, state_at = zeros(library, q, singles(2 * self.state))
        places = [base + offset if offset >= 0 else 0 for offset in self.room]
        template = bytearray(sent.template)
        row_ptr, row_tiles, col_ptr, col_tiles, _, _, head_variant, mask_args, distances, _ = (
            KEPT.unpack_from(template, KEPT_AT)
        )
        KEPT.pack_into(template, KEPT_AT, *OF_PASS(places), head_variant, mask_args, distances, 0)
        struct.pack_into(f"{MAX_ARRAYS}Q", template, _ARRAY, *places[:MAX_ARRAYS])
        known = [
            row_ptr, col_ptr, row_tiles, col_tiles, mask_args, *_OF_SELECTIONS, *places,
        ]  # fmt: skip
        lasting = sent.lasting and not library.lends(stream)
        usual = replace(sent, template=bytes(template), free={}, lasting=lasting)
        states = state_at, state_at + INT * self.state
        pointers = (*(0,) * MAX_ARRAYS, *known, *states, *_NO_REPORT)
        arguments, sound = Arguments(self.numbers, OWN, pointers), not self.doubtful
        return Lists(usual, arguments, known, states, (owner, state), sound)

    def enqueue(
        self, given: CallArrays, lists: Lists, pointers: Pointers, numbers: Numbers, stream: int
    ) -> None:
        """Build the lists if they are not built yet, and run the pass.

        Results are overwritten if data are wrong. For lists that are kept, this check stops once
        the host knows that their data are valid.

        Raises:
            WrongDeviceLists, ListsNotRead: the lists of a call that is checked.
        """
        launch, reports = self.lists.launch, self.reports
        fresh, arguments, watched = lists.fresh, lists.arguments, lists.watched
        if not (lists.sound or fresh) and reports.fine(lists.ticket):
            lists.sound = True
        doubtful = not lists.sound
        if doubtful:
            if fresh and lists.usual.lasting:
                lists.ticket = reports.ticket()
            results = [pointers[place] for place in self.results]
            _WRITE_REPORT(
                arguments.block, _REPORT_AT, *reports.addresses(lists.ticket), *results,
                *(0,) * (MAX_RESULTS - len(results)), *given.most, lists.ticket,
            )  # fmt: skip
        if fresh:
            places: Sequence[int] = given.places
            if given.offsets is not None and watched is not None:
                state = watched.state
                places = [state[at] + by for at, by in given.offsets]
            _WRITE_SOURCES[len(places)](arguments.block, 0, *places)
            states = lists.states
            _WRITE_STATES(arguments.block, _STATES_AT, *states)
            launch(self.before, stream, arguments)
            lists.states, lists.fresh = states[::-1], False
            if given.checked is not None:
                parts = dict(zip(PARTS, lists.places[-len(PARTS) :], strict=True))
                self.compare(given.checked, parts, partial(self.lists.read, stream))
        self.main.run(lists.sent, pointers, numbers, stream)
        if doubtful and self.after:
            launch(self.after, stream, arguments)
        kept = self.kept.get(stream) if lists.usual.lasting else None
        if kept is not None and watched is not None:
            kept[watched.state] = lists
