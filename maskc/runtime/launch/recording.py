"""Record the launches of a call instead of launching them.

A library that compiles whole programs, such as JAX, has no arrays when it needs to know how a call
runs: it has shapes. The call is then made with `Blank` arrays. Their addresses encode a buffer
and an offset. Every launch stores its argument block, and the addresses in it are found again
and relocated. This works for all kinds of plans without changes to them: in parts, over packed
rows, or with lists built on the device.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np

from maskc.core.abi import Numbers, Pointers
from maskc.core.errors import NotRecorded
from maskc.core.tensors import Array, Device, Output, Shape
from maskc.runtime.arrays.known import LIBRARIES, Seen
from maskc.runtime.launch.prepared import HostKernel, PreparedLaunch, Sent, filled
from maskc.runtime.launch.tensor_maps import KINDS

_TAG = 48
"""Bits below the sixteen that mark a recorded address. As floats such values are NaN, and as 64-bit
integers far below 0; an argument block contains neither."""
_BUFFER, _TABLE = 0xFFF1, 0xFFF2
_OF_BUFFER, _OF_TABLE = 40, 32
"""Bits of a place in a buffer of the call, and in a table."""
MADE = 128
"""The number of the first buffer that a call allocates; lower numbers are inputs."""
_TABLES = 1 << (_TAG - _OF_TABLE)


class Relocation(NamedTuple):
    """An address in an argument block."""

    at: int
    """Bytes from the start of the block."""
    buffer: int
    """The number of a buffer of the call; negative: of a table, -1 for the first one."""
    shift: int
    """Bytes from the start of the buffer."""


# ------------------------------------------------------------------ arrays


class Blank:
    """An array without memory."""

    __slots__ = ("array",)

    def __init__(
        self, number: int, shape: Shape, strides: Shape, dtype: str, device: Device
    ) -> None:
        """`number`: of the buffer that it lies in."""
        self.array = Array(address(number), shape, strides, dtype, device)

    @property
    def number(self) -> int:
        """The number of the buffer that it lies in."""
        return self.array.pointer >> _OF_BUFFER & 0xFF

    @property
    def shape(self) -> Shape:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return len(self.array.shape)

    @property
    def dtype(self) -> str:
        return self.array.dtype


class SentTable:
    """Integers from the host that every run reads. Kernels may use them as counters, but must
    restore them."""

    __slots__ = ("__weakref__", "address", "values")

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.ascontiguousarray(values)
        number = next(
            n for n in (next(_numbers) % _TABLES for _ in range(_TABLES)) if n not in _all
        )
        self.address = _TABLE << _TAG | number << _OF_TABLE
        _all[number] = self


_numbers = count()
_all: WeakValueDictionary[int, SentTable] = WeakValueDictionary()
"""Tables that a plan keeps, which may have been made in an earlier recording."""


def address(number: int) -> int:
    """The address on paper at which a buffer starts."""
    return _BUFFER << _TAG | number << _OF_BUFFER


class _Blanks:
    """The library of `Blank`."""

    ordered, graphs_own = True, False

    def read_all(self, arrays: list[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        return tuple(x.array[1:] for x in arrays), tuple(x.array.pointer for x in arrays)

    def plain(self, x: Any) -> Any:
        return x

    def view(self, x: Any, name: str) -> Array:
        array: Array = x.array
        return array

    def watch(self, x: Any) -> Seen | None:
        return None  # lists from earlier data never serve again

    def empty(self, x: Any, wanted: Output) -> tuple[Any, int]:
        made = _current().made
        dtype = wanted.dtype or x.array.dtype
        blank = Blank(MADE + len(made), wanted.shape, wanted.strides, dtype, x.array.device)
        made.append((wanted, dtype))
        return blank, blank.array.pointer

    def clear(self, made: Any) -> None:
        _current().steps.append(Clear(made.number))

    def stream(self, device: int) -> int:
        return 0

    def lends(self, stream: int) -> bool:
        return False

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        table = SentTable(host)
        return table, table.address


LIBRARIES[Blank] = _Blanks()


# ------------------------------------------------------------------ what is written down


@dataclass(frozen=True)
class Clear:
    """A buffer that is filled with zeros."""

    number: int


@dataclass(frozen=True, eq=False)
class RecordedFunction:
    """An entry point of a CUDA binary."""

    code: Any
    entry: str
    shared: int
    """Bytes of dynamic shared memory that it must be allowed."""


class RecordedMap(NamedTuple):
    """A tensor map that a launch takes."""

    place: Relocation
    dims: Shape
    strides: Shape
    box: Shape
    kind: int
    """The number of CUtensorMapDataType."""


@dataclass(frozen=True)
class CudaStep:
    """A launch on a GPU."""

    function: RecordedFunction
    blocks: int
    threads: int
    shared: int
    block: bytes
    places: tuple[Relocation, ...]
    maps: tuple[RecordedMap, ...]


@dataclass(frozen=True)
class HostStep:
    """A call of a C kernel."""

    entry: Any
    threads: int
    block: bytes
    places: tuple[Relocation, ...]


@dataclass
class Recording:
    """One call, in order."""

    steps: list[Clear | CudaStep | HostStep] = field(default_factory=list)
    made: list[tuple[Output, str]] = field(default_factory=list)
    """Buffers that the call makes, results and workspaces: how each lies in memory, and its
    dtype."""
    tables: list[SentTable] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)
    """Owners of host memory that blocks point to."""

    def bytes_of(self, number: int) -> int:
        """The size of a buffer that the call makes."""
        output, dtype = self.made[number - MADE]
        return prod(output.shape) * _ITEM[dtype]

    def places(self, block: bytes) -> tuple[Relocation, ...]:
        """All addresses on paper in an argument block."""
        places = []
        words = np.frombuffer(block[: len(block) // 8 * 8], "<u8")
        for index in np.flatnonzero(np.isin(words >> np.uint64(_TAG), (_BUFFER, _TABLE))):
            places.append(self.place(8 * int(index), int(words[index])))
        return tuple(places)

    def place(self, at: int, word: int) -> Relocation:
        """Return the buffer that a recorded address stands for."""
        if word >> _TAG == _BUFFER:
            number = word >> _OF_BUFFER & 0xFF
            return Relocation(at, number, word & ((1 << _OF_BUFFER) - 1))
        table = _all[word >> _OF_TABLE & (_TABLES - 1)]
        if table not in self.tables:
            self.tables.append(table)
        return Relocation(at, -1 - self.tables.index(table), word & ((1 << _OF_TABLE) - 1))


_ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}


class _Recorder(threading.local):
    recording: Recording | None = None


_thread = _Recorder()


def _current() -> Recording:
    if _thread.recording is None:
        raise NotRecorded("an array without memory outside of a recording")
    return _thread.recording


@contextmanager
def recording() -> Iterator[Recording]:
    """Record calls of this thread with `Blank` arrays during the `with` block."""
    before, _thread.recording = _thread.recording, Recording()
    try:
        yield _thread.recording
    finally:
        _thread.recording = before


# ------------------------------------------------------------------ what stands for devices


class _StandsFor(Protocol):
    """Properties of a device that a recording needs."""

    def multiprocessors(self) -> int: ...

    def host_words(self, count: int) -> int: ...


_MAP = struct.Struct("<QII5Q4Q5I")


class PaperDriver:
    """Replaces the driver of a GPU; see maskc/runtime/launch/cuda.py for the real ones."""

    def __init__(self, device: _StandsFor) -> None:
        """`device`: the one that it stands for."""
        self._device = device
        self.multiprocessors, self.host_words = device.multiprocessors, device.host_words

    def load(self, code: Any, shared: Mapping[str, int]) -> dict[str, Any]:
        return {entry: RecordedFunction(code, entry, size) for entry, size in shared.items()}

    def usable(self, stream: int) -> int:
        return self.multiprocessors()

    def capturing(self, stream: int) -> bool:
        return False

    def read(self, stream: int, address: int, count: int) -> None:
        """Nothing has run."""

    def encoder(self, target: str) -> Any:
        return _encode

    def launch(self, steps: tuple[Any, ...], stream: int, memory: Any) -> None:
        recording = _current()
        block, *maps = memory.arguments()
        places = recording.places(block)
        read = tuple(_read(recording, chunk) for chunk in _chunks(maps[0] if maps else b""))
        for function, blocks, threads, shared, _ in steps:
            recording.steps.append(CudaStep(function, blocks, threads, shared, block, places, read))


def _encode(at: int, dims: Shape, strides: Shape, box: Shape, dtype: str) -> bytes:
    """Description of a tensor map, in its 128 bytes."""
    fives = (*dims, *[1] * (5 - len(dims)))
    fours = (*strides, *[0] * (4 - len(strides)))
    boxes = (*box, *[1] * (5 - len(box)))
    return _MAP.pack(at, len(dims), KINDS[dtype], *fives, *fours, *boxes).ljust(128, b"\0")


def _chunks(maps: bytes) -> Iterator[bytes]:
    return (maps[start : start + 128] for start in range(0, len(maps), 128))


def _read(recording: Recording, encoded: bytes) -> RecordedMap:
    at, rank, kind, *rest = _MAP.unpack_from(encoded)
    dims, strides, box = rest[:rank], rest[5 : 4 + rank], rest[9 : 9 + rank]
    return RecordedMap(recording.place(0, at), tuple(dims), tuple(strides), tuple(box), kind)


class _Runs(Protocol):
    name: str

    def workspace(self, block: ctypes.Structure) -> int: ...

    def entry(self, direction: Any) -> tuple[Any, int]: ...


class PaperKernel(HostKernel):
    """Replaces a C kernel while a call is recorded."""

    def __init__(self, kernel: _Runs) -> None:
        """`kernel`: the one that runs what was written down."""
        self._kernel, self.name = kernel, kernel.name
        self.workspace = kernel.workspace  # type: ignore[method-assign]

    def run(
        self, plan: PreparedLaunch, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        recording = _current()
        block = bytes(filled(sent, pointers, numbers))
        entry, threads = self._kernel.entry(plan.direction)
        recording.steps.append(HostStep(entry, threads, block, recording.places(block)))
        recording.kept.append((plan, sent, self._kernel))
