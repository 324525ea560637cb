"""Forward passes that repeat an earlier one: the same shapes, options and data, tensors elsewhere.

Layers of a model share masks and lengths. What a call checks, plans and looks up is then known from
the first of them; the others only say where their tensors lie.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from maskc.core.abi import Numbers, Pointers
from maskc.core.tensors import Output
from maskc.runtime.arrays.known import Library
from maskc.runtime.device_lists.call import DELTA
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.device_lists.watched import Watched
from maskc.runtime.launch.prepared import Sent

_MOST_BLOCKS = 256
"""Blocks behind `struct Attention` that are remembered: one for each layer with scales of its
own."""
_OPTIONS = slice(10, None)
"""POINTERS behind the workspace."""


class FirstPass(NamedTuple):
    """A pass that has just been enqueued."""

    plan: ListsPlan
    watched: Watched
    library: Library
    stream: int
    pointers: Pointers
    """Addresses in the order of `core/abi`: five, or all."""
    numbers: Numbers
    outputs: tuple[Output, ...]


class RepeatedPass:
    """Enqueues a pass again while its lists of tiles stay as they are."""

    __slots__ = ("_first", "_index", "_sents", "_unaligned", "_workspace")

    def __init__(self, launched: FirstPass, unaligned: int) -> None:
        """`unaligned`: bits that no address may have."""
        self._first, self._unaligned = launched, unaligned
        self._index = launched.plan.main.device[1]
        self._workspace = launched.outputs[2] if len(launched.outputs) > 2 else None
        self._sents: dict[bytes, tuple[Sent, Sent]] = {}
        """By block: what the lists gave, and the same with the block."""

    def run(self, q: Any, tensors: tuple[int, int, int, int, int], block: bytes) -> bool:
        """Enqueue the pass; return whether it could be.

        Args:
            q: of the call, which says where new memory lies.
            tensors: addresses of q, k, v, out and lse, which are like those of the first pass.
            block: what kernels find behind `struct Attention`.
        """
        plan, watched, library, stream, before, numbers, _ = self._first
        main = plan.main
        if library.stream(self._index) != stream or (stream and plan.lists.capturing(stream)):
            return False
        if (tensors[0] | tensors[1] | tensors[2]) & self._unaligned or plan.reports.words[0]:
            return False
        kept = plan.kept.get(stream)
        lists = None if kept is None else kept.pop(watched, None)  # until they have been read
        if kept is None or lists is None:
            return False
        try:
            if lists.fresh or (plan.after and not lists.sound):
                return False
            known = self._sents.get(block)
            if known is None or known[0] is not lists.usual:
                if len(self._sents) >= _MOST_BLOCKS:
                    self._sents.clear()
                known = self._sents[block] = lists.usual, lists.usual.with_block(block)
            pointers: Pointers = tensors
            if len(before) > len(tensors):
                space = 0
                if self._workspace is not None:
                    _, space = library.empty(q, self._workspace)
                pointers = (*tensors, *before[len(tensors) : DELTA], space, *before[_OPTIONS])
            main.run(known[1], pointers, numbers, stream)
        finally:
            kept[watched] = lists
        return True
