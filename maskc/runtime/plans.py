"""What repeated calls share: everything but the pointers, prepared once per signature."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from maskc.core import abi
from maskc.core.problem import Direction
from maskc.runtime.arrays import Device, Library, Shape
from maskc.runtime.tables import Tables

ATTENTION = abi.structure()

_captured: dict[int, object] = {}
"""Device memory that some CUDA graph reads whenever it is replayed: kept for good."""


class Kernel(Protocol):
    """Built entry points, in whatever form they run."""

    def capturing(self, stream: int) -> bool:
        """Whether launches on a stream become nodes of a CUDA graph (CUDA only)."""

    def workspace(self, block: ctypes.Structure) -> int:
        """fp32 entries that `delta` must have in a backward."""

    def launch(
        self, direction: Direction, block: ctypes.Structure, stream: int, grid: int, tables: Tables,
        params: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Run one pass, or enqueue it."""


@dataclass(frozen=True, eq=False)
class Output:
    """How to allocate one result."""

    shape: Shape
    tokens_first: bool = False
    """Stored as [B, N, H, D], like the input it goes with."""

    def make(self, library: Library, q: Any, single: bool = False) -> tuple[Any, int]:
        """(array, pointer) in q's library, on its device: fp32, or q's dtype."""
        return library.empty(q, self.shape, single, self.tokens_first)

    def zeros(self, library: Library, q: Any, single: bool = False) -> tuple[Any, int]:
        """The same, cleared."""
        made = self.make(library, q, single)
        library.clear(made[0])
        return made


@dataclass(frozen=True, eq=False)
class Plan:
    """One direction of one signature."""

    direction: Direction
    kernel: Kernel | None
    """None where every result is empty or zero."""
    device: Device
    grid: int
    """CUDA blocks."""
    params: Mapping[str, int]
    tables: Tables
    numbers: bytes
    """The argument block with everything but pointers."""
    outputs: tuple[Output, ...]
    """out; or dq, dk, dv."""
    sent: dict[int, tuple[bytes, object]] = field(default_factory=dict)
    """By stream: the argument block with pointers into that stream's tables, and their owner."""

    @property
    def size(self) -> int:
        """Bytes this plan keeps alive."""
        return self.tables.size

    @property
    def spare_lse(self) -> bool:
        """Whether argument blocks come with memory for an lse that nobody reads (CUDA, forward).

        Launches of one stream run in order and only write there, so they may share it.
        """
        return self.device[0] == "cuda" and self.direction is Direction.forward

    def arguments(self, library: Library, q: Any) -> tuple[Any, int]:
        """(a fresh argument block lacking only the tensors, the stream to launch on).

        Every stream gets a copy of the tables of its own, allocated and filled in its order, so
        that no launch ever waits for another stream. While a CUDA graph is being captured the
        copy of another stream serves, which is why calls are warmed up first.
        """
        if self.kernel is None:
            return ATTENTION.from_buffer_copy(self.numbers), 0
        if self.device[0] == "cpu":
            stream, capturing = 0, False
        else:
            stream = library.stream(self.device[1])
            capturing = self.kernel.capturing(stream)
        entry = self.sent.get(stream)
        if entry is None and capturing:
            entry = next(iter(self.sent.values()), None)
        if entry is None:
            entry = self._send(library, q, stream)
        if capturing:
            _captured[id(entry)] = entry
        return ATTENTION.from_buffer_copy(entry[0]), stream

    def _send(self, library: Library, q: Any, stream: int) -> tuple[bytes, object]:
        tables, place = self.tables, (self.device, stream)
        packed, offsets = tables.packed
        copy = tables.copies.get(place)
        if copy is None:
            on_host = self.device[0] == "cpu"
            copy = (packed, packed.ctypes.data) if on_host else library.send(q, packed)
            tables.copies[place] = copy
        owner, base = copy
        block = ATTENTION.from_buffer_copy(self.numbers)
        for name, offset in offsets.items():
            if name.startswith("array"):
                block.array[int(name[5:])] = base + offset
            else:
                setattr(block, name, base + offset)
        if self.spare_lse and self.kernel is not None:
            spare, block.lse = self.outputs[1].make(library, q, True)
            owner = (owner, spare)
        entry = self.sent[stream] = (bytes(block), owner)
        return entry

    def run(self, block: Any, stream: int) -> None:
        """Launch, unless there is nothing to compute."""
        if self.kernel is not None:
            self.kernel.launch(self.direction, block, stream, self.grid, self.tables, self.params)


class Kept(Protocol):
    """A value that knows its size."""

    @property
    def size(self) -> int:
        """Bytes."""


Value = TypeVar("Value", bound=Kept)


class Recent(Generic[Value]):
    """The latest values by key; bounded in number and in bytes."""

    def __init__(self, most: int = 256, most_bytes: int = 1 << 28) -> None:
        self._values: dict[object, Value] = {}
        self._most, self._most_bytes = most, most_bytes
        self.get = self._values.get

    def put(self, key: object, value: Value) -> None:
        """Add a value, dropping the oldest where it is too much; the caller holds a lock."""
        values = self._values
        values[key] = value
        total = sum(kept.size for kept in values.values())
        while len(values) > 1 and (len(values) > self._most or total > self._most_bytes):
            total -= values.pop(next(iter(values))).size
