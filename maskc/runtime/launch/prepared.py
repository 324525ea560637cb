"""The part of a call that repeats: everything except the pointers, prepared once per signature."""

from __future__ import annotations

import ctypes
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import local
from typing import Any, NamedTuple, Protocol

from maskc.core.abi import ATTENTION, LISTED_POINTERS, POINTERS, Numbers, Pointers, longer
from maskc.core.attention_call import AttentionCall
from maskc.core.errors import TooFewMultiprocessors
from maskc.core.problem import Direction
from maskc.core.tensors import Device, Output, singles
from maskc.dispatch.launch_plan import LaunchPlan, with_workspace
from maskc.dispatch.options import Pages
from maskc.dispatch.tables import Tables
from maskc.runtime.arrays.known import Library, zeros

_WRITE = {
    count: struct.Struct(f"{count}Q").pack_into
    for count in (5, len(POINTERS), len(POINTERS) + len(LISTED_POINTERS) + 3)
}
_POINTER, _NUMBER = struct.Struct("Q"), struct.Struct("f")
_SCALE = ATTENTION.scale.offset
_NUMBERS = _SCALE, ATTENTION.softcap.offset
_OF_SCALE = slice(_SCALE, _SCALE + _NUMBER.size)
_COUNTER = ATTENTION.counter.offset
_MAX_BLOCKS = 256
"""Blocks behind `struct Attention` that are remembered: one for each layer with scales of its own,
or for each table of scores."""
CLOSED_FORM, HOST_LISTS, DEVICE_LISTS = "closed form", "host lists", "device lists"
"""Origins of the tiles of a pass."""
PER_THREAD = 2
"""The handle of CUDA's per-thread default stream: the last of the special handles."""

_captured: dict[int, object] = {}
"""Device memory that a CUDA graph reads at every replay: never freed."""


class _Thread(local):
    """Something that no other thread has, nor a later one."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


def fill_pointers(block: Any, pointers: Pointers) -> None:
    """Write the addresses of a call into an argument block, a writable buffer."""
    _WRITE[len(pointers)](block, 0, *pointers)


def fill_numbers(block: Any, numbers: Numbers) -> None:
    """Write the numbers of the block that belong to one call."""
    for place, x in zip(_NUMBERS, numbers or (), strict=False):
        if x is not None:
            _NUMBER.pack_into(block, place, x)


def fill_scale(block: Any, template: bytes) -> None:
    """Restore the default scale."""
    block[_OF_SCALE] = template[_OF_SCALE]


def filled(sent: Sent, pointers: Pointers, numbers: Numbers) -> ctypes.Structure:
    """A new argument block."""
    size = len(sent.template)
    kind = ATTENTION if size == ctypes.sizeof(ATTENTION) else longer(size)
    block = kind.from_buffer_copy(sent.template)
    fill_pointers(block, pointers)
    fill_numbers(block, numbers)
    return block


class HostKernel(ABC):
    """Common base of kernels on the host: no streams, and a workspace of known size."""

    name: str

    def workspace(self, block: ctypes.Structure) -> int:
        return 0

    def prepare(self, plan: LaunchPlan) -> PreparedLaunch:
        outputs = plan.outputs
        if plan.direction is Direction.backward:
            floats = self.workspace(ATTENTION.from_buffer_copy(plan.numbers))
            outputs = with_workspace(outputs, floats)
        return prepared(plan, self, outputs)

    @abstractmethod
    def run(
        self, plan: PreparedLaunch, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        """See Kernel."""

    def usable(self, stream: int) -> int:
        """No multiprocessor."""
        return 0

    def capturing(self, stream: int) -> bool:
        """Never."""
        return False


class Kernel(Protocol):
    """Built entry points, in whatever form they run."""

    name: str
    """The name of the source, and its mode where there are several."""

    def prepare(self, plan: LaunchPlan) -> PreparedLaunch:
        """A plan with everything that its launches need.

        Raises:
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """

    def usable(self, stream: int) -> int:
        """Multiprocessors that work of a stream may run on."""

    def capturing(self, stream: int) -> bool:
        """Whether launches on a stream become nodes of a CUDA graph."""

    def run(
        self, plan: PreparedLaunch, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        """Run one pass, or enqueue it."""


class Runnable(Protocol):
    """Something that a call can run: one launch, several, or lists and a launch."""

    @property
    def kernel(self) -> object:
        """The kernel; None if results must be cleared first."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs of `LaunchPlan`."""

    def place(self, library: Library, q: Any) -> tuple[Any, int]:
        """(what lies on the device for a stream, the stream to launch on)."""

    def run(self, sent: Any, pointers: Pointers, numbers: Numbers, stream: int) -> None:
        """Run, or enqueue; `sent` and `stream` are what `place` gave."""


class OpenedCall(NamedTuple):
    """A call from which something was read that kernels find behind `struct Attention`."""

    call: AttentionCall
    """The call without data that were read."""
    block: bytes
    """The bytes that kernels find."""
    held: object = None
    """Memory that the block points to."""
    gradients: tuple[Any, ...] = ()
    """Arrays that a backward pass fills too."""
    pages: Pages | None = None
    """Layout of keys and values in pages of pools."""


class CallBlock(Protocol):
    """Something that some kernels read behind `struct Attention`, and how a call passes it."""

    def opened(self, call: AttentionCall) -> OpenedCall:
        """Read it from a call, before anything is launched.

        Raises:
            MaskcError: the call does not give it, or gives it in another form.
        """


class BlockLaunch:
    """A plan with a block of the call after `struct Attention`. Several can be nested; their blocks
    follow each other."""

    __slots__ = ("_block", "kernel", "outputs", "plan", "run")

    def __init__(self, plan: Runnable, block: bytes) -> None:
        """Nothing is placed yet."""
        self.plan, self._block = plan, block
        self.kernel, self.outputs, self.run = plan.kernel, plan.outputs, plan.run

    def place(self, library: Library, q: Any) -> tuple[Any, int]:
        """Return the arguments of the plan's launches, with the block."""
        sent, stream = self.plan.place(library, q)
        return sent.with_block(self._block), stream


@dataclass(frozen=True, eq=False)
class Sent:
    """Data on a device for the launches of one stream."""

    template: bytes
    """The argument block with pointers into that stream's tables."""
    lse: int
    """Memory for an lse that nobody reads (CUDA, forward), else 0.

    Launches of one stream run in order and only write there, so they may share it.
    """
    owner: object
    """Keeps the memory alive."""
    counters: Callable[[], int | None]
    """The address of a counter that no other launch has; None when there are no more."""
    free: dict[Pointers, Any] = field(default_factory=dict)
    """Memory with these arguments (CUDA) by the addresses in it, taken for a launch and put back;
    safe in threads."""
    block: bytes = b""
    """The block behind `struct Attention`; the end of `template`."""
    lasting: bool = True
    """Whether later launches on this stream run after this one, in order. Not so for replays of a
    CUDA graph and for per-thread streams."""

    with_blocks: dict[bytes, Sent] = field(default_factory=dict, init=False)
    """The data with one more block, for the latest blocks."""

    def with_block(self, block: bytes) -> Sent:
        """Return the data with one more block behind `struct Attention`."""
        known = self.with_blocks.get(block)
        if known is None:
            if len(self.with_blocks) >= _MAX_BLOCKS:
                self.with_blocks.clear()
            known = self.with_blocks[block] = Sent(
                self.template + block, self.lse, self.owner, self.counters, self.free,
                self.block + block, self.lasting,
            )  # fmt: skip
        return known


@dataclass(frozen=True, eq=False)
class PreparedLaunch:
    """One direction of one signature, ready to be enqueued."""

    direction: Direction
    kernel: Kernel | None
    """None if every result is empty or zero."""
    device: Device
    params: Mapping[str, int]
    tables: Tables
    numbers: bytes
    """The argument block with everything but pointers."""
    outputs: tuple[Output, ...]
    """The outputs of `LaunchPlan`."""
    steps: tuple[Any, ...] = ()
    """CUDA: what the kernel launches, in order."""
    maps: Any = None
    """CUDA: the tensor maps of the kernel, by pointers; None if it takes none."""
    sent: dict[object, Sent] = field(default_factory=dict)
    """Data that were sent, by stream."""

    @property
    def size(self) -> int:
        """Bytes this plan keeps alive."""
        return self.tables.size

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the kernels it runs, in order."""
        return () if self.kernel is None else (self.kernel.name,)

    @property
    def layouts(self) -> tuple[str, ...]:
        """Origins of the tiles of each kernel, in order."""
        if self.kernel is None:
            return ()
        has_lists = any(name in ("row_ptr", "col_ptr") for name, _ in self.tables.parts)
        return (HOST_LISTS if has_lists else CLOSED_FORM,)

    def place(self, library: Library, q: Any) -> tuple[Sent, int]:
        """Return (all arguments of a launch except the tensors, the stream to launch on).

        Every stream gets its own copy of the tables, allocated and filled in stream order, so that
        no launch ever waits for another stream. While a CUDA graph is being captured, the copy of
        another stream is used, which is why calls must be warmed up first. Only the counter of work
        items is separate for each captured launch, because graphs may run at the same time.

        Raises:
            TooFewMultiprocessors: launches on this stream might never end.
        """
        kernel = self.kernel
        if kernel is None:
            return Sent(self.numbers, 0, None, lambda: None), 0
        kind, index = self.device
        stream = 0 if kind == "cpu" else library.stream(index)
        key = _thread.token if stream == PER_THREAD else stream
        sent = self.sent.get(key)
        if sent is None or (stream and kernel.capturing(stream)):  # the default stream, 0, cannot
            sent = self._first(library, q, stream, key, kernel)
        return sent, stream

    def run(self, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int) -> None:
        kernel = self.kernel
        if kernel is not None:
            kernel.run(self, sent, pointers, numbers, stream)

    def _first(self, library: Library, q: Any, stream: int, key: object, kernel: Kernel) -> Sent:
        """Return the arguments of a launch that is the first of its stream, or one of a CUDA
        graph."""
        sent = self.sent.get(key)
        if sent is None and self.tables.multiprocessors:
            usable = kernel.usable(stream)
            if usable < self.tables.multiprocessors:
                raise TooFewMultiprocessors(self.tables.multiprocessors, usable, at="deterministic")
        if stream and kernel.capturing(stream):
            return self._captured(library, q, key, sent)
        if stream and library.lends(stream):
            return replace(self._send(library, q, key, False), lasting=False)
        sent = self.sent[key] = self._send(library, q, key, True)
        return sent

    def _captured(self, library: Library, q: Any, key: object, sent: Sent | None) -> Sent:
        """Return the arguments of a launch that becomes part of a CUDA graph.

        Memory from before the capture is kept for good. So is memory that is made now, unless the
        library makes it in the graph's own pool. torch.compile refuses to record a graph if
        anybody keeps such memory, and replays write it again.
        """
        before = next(iter(self.sent.values()), None) if sent is None else sent
        sent = before or self._send(library, q, key, False)  # a copy that is part of the graph
        _, counters = self.tables.counters
        if counters:
            counter, made = sent.counters(), None
            if counter is None:
                made, counter = zeros(library, q, singles(counters))
            template = bytearray(sent.template)
            _POINTER.pack_into(template, _COUNTER, counter)
            sent = replace(sent, template=bytes(template), owner=(sent.owner, made), free={})
        lasting = before if library.graphs_own else sent
        if lasting is not None:
            _captured[id(lasting)] = lasting
        return replace(sent, lasting=False)

    def _send(self, library: Library, q: Any, key: object, keep: bool) -> Sent:
        """Copy the tables unless another plan did; `keep` the copy for other plans."""
        tables, place = self.tables, (self.device, key)
        packed, offsets = tables.packed
        copy = tables.copies.get(place)
        if copy is None:
            on_host = self.device[0] == "cpu"
            owner, base = (packed, packed.ctypes.data) if on_host else library.send(q, packed)
            spare, words = tables.counters
            start = base + offsets.get("counter", 0)
            free = iter([start + 4 * words * number for number in range(1, spare + 1)])
            copy = (owner, base, lambda: next(free, None))
            if keep:
                tables.copies[place] = copy
        owner, base, counters = copy
        block = ATTENTION.from_buffer_copy(self.numbers)
        for name, offset in offsets.items():
            if name.startswith("array"):
                block.array[int(name[5:])] = base + offset
            else:
                setattr(block, name, base + offset)
        lse = 0
        if self.device[0] == "cuda" and self.direction is Direction.forward:
            made, lse = library.empty(q, self.outputs[1])
            owner = (owner, made)
        return Sent(bytes(block), lse, owner, counters, lasting=key is not _thread.token)


def prepared(
    plan: LaunchPlan, kernel: Kernel | None, outputs: tuple[Output, ...],
    steps: tuple[Any, ...] = (), maps: Any = None,
) -> PreparedLaunch:  # fmt: skip
    """A plan with the kernel that runs it; None if it is idle."""
    return PreparedLaunch(
        plan.direction, kernel, plan.device, plan.params, plan.tables, plan.numbers, outputs,
        steps, maps,
    )  # fmt: skip
