"""Forward passes that repeat an earlier one: the same shapes and options, tensors elsewhere.

Layers of a model share masks and lengths. What a call checks, plans and looks up is then known from
the first of them; the others only say where their tensors lie. The data of the mask may have other
values since: then lists of tiles are made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from maskc.core.abi import Numbers, Pointers
from maskc.core.captured import Held
from maskc.core.tensors import Output
from maskc.runtime.arrays.known import Library
from maskc.runtime.device_lists.call import DELTA, DataCall
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.device_lists.watched import Watched

_OPTIONS = slice(10, None)
"""POINTERS behind the workspace."""


class FirstPass(NamedTuple):
    """A pass that has just been enqueued."""

    call: DataCall
    library: Library
    stream: int
    pointers: Pointers
    """Addresses in the order of `core/abi`: five, or all."""
    numbers: Numbers
    outputs: tuple[Output, ...]


class RepeatedPass:
    """Enqueues a pass again. The arrays of its data stay the same; `renew` says that something was
    written into them."""

    __slots__ = (
        "_data", "_first", "_held", "_index", "_plan", "_stale", "_unaligned", "_watched",
        "_workspace",
    )  # fmt: skip

    def __init__(
        self, launched: FirstPass, plan: ListsPlan, watched: Watched, data: Mapping[str, Any],
        held: Held | None, unaligned: int,
    ) -> None:  # fmt: skip
        """Prepare for more passes; nothing is launched yet.

        Args:
            launched: the pass that others repeat.
            plan, watched: of its call.
            data, held: what its mask reads.
            unaligned: bits that no address may have.
        """
        self._first, self._plan, self._watched = launched, plan, watched
        self._data, self._held, self._unaligned = data, held, unaligned
        self._index = plan.main.device[1]
        self._workspace = launched.outputs[2] if len(launched.outputs) > 2 else None
        self._stale = False

    def renew(self) -> None:
        """Look at the data again before the next pass."""
        self._stale = True

    def run(self, q: Any, tensors: tuple[int, int, int, int, int], block: bytes) -> bool:
        """Enqueue the pass; return whether it could be.

        Args:
            q: of the call, which says where new memory lies.
            tensors: addresses of q, k, v, out and lse, which are like those of the first pass.
            block: what kernels find behind `struct Attention`.
        """
        call, library, stream, before, numbers, _ = self._first
        plan = self._plan
        if library.stream(self._index) != stream or (stream and plan.lists.capturing(stream)):
            return False
        if (tensors[0] | tensors[1] | tensors[2]) & self._unaligned or plan.reports.words[0]:
            return False
        if self._stale:
            watched = self._watched.again(self._data, self._held)
            if watched is None:
                return False
            self._watched, self._stale = watched, False
        watched = self._watched
        kept = plan.kept.get(stream)
        lists = None if kept is None else kept.pop(watched.state, None)  # until they have been read
        if kept is not None and lists is not None and lists.watched is not watched:
            kept[watched.state] = lists  # of another array at the address
            lists = None
        if kept is None or lists is None:
            lists, _ = plan.place(library, q, watched)
        pointers: Pointers = tensors
        if len(before) > len(tensors):
            space = 0
            if self._workspace is not None:
                _, space = library.empty(q, self._workspace)
            pointers = (*tensors, *before[len(tensors) : DELTA], space, *before[_OPTIONS])
        sent = lists.usual.with_block(block)
        if kept is None or lists.fresh or not lists.sound:
            lists.sent = sent
            call.run(lists, pointers, numbers, stream)
            return True
        try:
            plan.main.run(sent, pointers, numbers, stream)
        finally:
            kept[watched.state] = lists
        return True
