"""Passes whose mask runs in parts over the rows of listed tokens.

The rows lie packed in the workspace of the call: those of listed keys are read, and their gradients
added to, in place of k, v, dk and dv; those of listed queries in place of q, out, lse and dq. What
the other parts say of a listed query is replaced: in a backward pass they read an lse in which it
has no key.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from maskc.core import abi
from maskc.core.abi import ATTENTION, MOST_MOVED, POINTERS, Pointers
from maskc.core.bundle import Launch
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.tensors import Device, Output, Shape, contiguous, singles
from maskc.dispatch.tables import Slot, Tables
from maskc.runtime.arrays.known import Library
from maskc.runtime.arrays.memory import at
from maskc.runtime.launch.arguments import Arguments
from maskc.runtime.launch.cuda import CudaKernel
from maskc.runtime.launch.prepared import HostKernel, PreparedLaunch, Sent
from maskc.runtime.launch.sequence import Sents

MOVED = abi.structure(abi.MOVED_FIELDS)
_POINTERS = struct.Struct(f"{MOVED.source_stride.offset // 8}Q")
PACK, UNPACK, HIDE = range(3)
"""Ways to move rows, as `struct Moved` has them."""
DELTA = POINTERS.index("delta")
_ARRAY = ATTENTION.array.offset
EMPTY_LSE = 0xFF800000
"""lse of a query without a key, minus infinity, as a word."""
ALIGNED = 128
"""Bytes to which packed rows are aligned."""


class Address(NamedTuple):
    """Where a tensor starts in every call."""

    pointer: int | None
    """Index among the call's pointers; None: nowhere, a null pointer."""
    shift: int = 0
    """Bytes behind it."""

    def of(self, pointers: Pointers) -> int:
        """The address in one call."""
        return 0 if self.pointer is None else pointers[self.pointer] + self.shift


NOWHERE = Address(None)


class Tensor(NamedTuple):
    """Rows of a call's tensor, or packed ones."""

    at: Address
    strides: Shape
    """In elements, of batch, heads and rows."""


class Moved(NamedTuple):
    """Rows of one tensor that a launch moves."""

    way: int
    source: Tensor
    to: Tensor
    list: int
    """0 for listed queries, 1 for listed keys."""
    heads: int
    rows: int
    """Of a head: entries of the list, or all where they are hidden."""
    listed: int
    """Entries of the list."""
    bytes: int
    """Of a row."""
    element: int
    """Bytes of an element, in which strides are."""
    filling: int = 0
    """The word in rows that have no source."""


@dataclass(frozen=True, eq=False)
class Moves:
    """A launch that moves rows."""

    moved: tuple[Moved, ...]
    sizes: Sizes
    unit: int
    """Most bytes that are moved at once: 16 on a GPU, there rows are so aligned; an element's."""
    shared: tuple[bool, ...]
    """Of both lists: whether all sequences share them."""
    kernel: CudaKernel | None
    """None on the host."""
    steps: tuple[Any, ...] = ()

    def numbers(self) -> bytes:
        """`struct Moved` without pointers."""
        block = MOVED()
        for number, each in enumerate(self.moved):
            unit = self._unit(each)
            for name, tensor in (("source", each.source), ("to", each.to)):
                steps = getattr(block, f"{name}_stride")
                for axis, stride in enumerate(tensor.strides):
                    steps[3 * number + axis] = stride * each.element // unit
            block.tokens_batch[number] = 0 if self.shared[each.list] else each.listed
            block.way[number], block.heads[number] = each.way, each.heads
            block.rows[number], block.listed[number] = each.rows, each.listed
            block.width[number], block.unit[number] = each.bytes // unit, unit
            block.filling[number] = np.int32(np.uint32(each.filling))
        block.batch, block.count = self.sizes.batch, len(self.moved)
        return bytes(block)

    def _unit(self, each: Moved) -> int:
        return min(self.unit, each.bytes)

    def run(self, numbers: bytes, tokens: tuple[int, int], pointers: Pointers, stream: int) -> None:
        """Move all, or enqueue that.

        Args:
            tokens: addresses of the lists.
        """
        if self.kernel is None:
            for each in self.moved:
                self._on_host(each, tokens[each.list], pointers)
            return
        rest = (0,) * (MOST_MOVED - len(self.moved))
        lists = [
            *(each.source.at.of(pointers) for each in self.moved), *rest,
            *(each.to.at.of(pointers) for each in self.moved), *rest,
            *(tokens[each.list] for each in self.moved), *rest,
        ]  # fmt: skip
        self.kernel.launch(self.steps, stream, Arguments(numbers, _POINTERS, tuple(lists)))

    def _on_host(self, each: Moved, tokens: int, pointers: Pointers) -> None:
        batch, width = self.sizes.batch, each.bytes // each.element
        code = f"u{each.element}"
        step = 0 if self.shared[each.list] else each.listed
        lists = at(tokens, (batch, each.listed), (step, 1), "i4")
        own = {
            name: _view(tensor, pointers, (batch, each.heads), width, code, lists, each)
            for name, tensor in (("source", each.source), ("to", each.to))
        }
        filling = np.array(each.filling, "u4").astype(code)
        for sequence, tokens_of in enumerate(lists):
            there = np.flatnonzero(tokens_of >= 0)
            named, to = tokens_of[there], own["to"][sequence]
            if each.way == UNPACK:
                to[:, named] = own["source"][sequence][:, there]
                continue
            if each.way == HIDE:
                to[...] = own["source"][sequence]
                to[:, named] = filling
                continue
            to[...] = filling
            if each.source.at.pointer is not None:
                to[:, there] = own["source"][sequence][:, named]


def _view(
    tensor: Tensor, pointers: Pointers, outer: tuple[int, int], width: int, code: str,
    lists: np.ndarray, each: Moved,
) -> np.ndarray:  # fmt: skip
    """[batch, heads, rows, width] behind an address: as many rows as a move may touch."""
    packed = tensor is (each.to if each.way == PACK else each.source) and each.way != HIDE
    rows = each.rows if packed or each.way == HIDE else int(lists.max(initial=-1)) + 1
    return at(tensor.at.of(pointers), (*outer, rows, width), (*tensor.strides, 1), code)


class HostMoves(HostKernel):
    """What stands for the kernel of moves on the host."""

    name = "move rows"

    def run(self, *_: object) -> None:
        """Moves run by themselves."""


class Part(NamedTuple):
    """A launch over all rows or packed ones."""

    plan: PreparedLaunch
    instead: tuple[tuple[int, Address], ...]
    """(index among POINTERS, what stands there)."""


@dataclass(frozen=True, eq=False)
class ListedRowsPlan:
    """One direction of one signature; stands in for `PreparedLaunch`."""

    lists: PreparedLaunch
    """Brings the lists to the device; it launches nothing."""
    steps: tuple[Part | tuple[Moves, bytes], ...]
    outputs: tuple[Output, ...]
    """As `PreparedLaunch` has them, with a workspace for packed rows and for all launches."""

    @property
    def kernel(self) -> object:
        """Never None: every result is written."""
        return self.lists.kernel

    @property
    def size(self) -> int:
        """Bytes this plan keeps alive."""
        return self.lists.size + sum(part.plan.size for part in self._parts)

    @property
    def _parts(self) -> list[Part]:
        return [step for step in self.steps if isinstance(step, Part)]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the kernels it runs, in order."""
        return tuple(name for part in self._parts for name in part.plan.sources)

    def place(self, library: Library, q: Any) -> tuple[Sents, int]:
        """What each launch finds on the device, and the stream to launch on; see
        PreparedLaunch.place."""
        plans = [self.lists, *(part.plan for part in self._parts)]
        placed = [plan.place(library, q) for plan in plans]
        return Sents(tuple([sent for sent, _ in placed])), placed[0][1]

    def run(
        self, _: object, sents: Sents, pointers: Pointers, scale: float | None,
        softcap: float | None, stream: int,
    ) -> None:  # fmt: skip
        """Launch all, in order."""
        pointers += (0,) * (len(POINTERS) - len(pointers))
        lists, *others = sents.steps
        tokens = tokens_in(lists)
        rest = iter(others)
        for step in self.steps:
            if isinstance(step, Part):
                own = list(pointers)
                for place, address in step.instead:
                    own[place] = address.of(pointers)
                step.plan.run(step.plan, next(rest), tuple(own), scale, softcap, stream)
            else:
                moves, numbers = step
                moves.run(numbers, tokens, pointers, stream)


def tokens_in(sent: Sent) -> tuple[int, int]:
    """Addresses of the lists of queries and of keys."""
    first, second = struct.unpack_from("2Q", sent.template, _ARRAY)
    return first, second


def lists_plan(
    direction: Direction, kernel: CudaKernel | HostMoves, device: Device,
    lists: Sequence[np.ndarray],
) -> PreparedLaunch:  # fmt: skip
    """What brings two lists to a device, int32 [sequences or 1, most]."""
    slots = tuple(Slot(each.reshape(len(each), 1, -1)) for each in lists)
    tables = Tables((), slots, 0, {})
    nothing = (singles(0), singles(0))
    return PreparedLaunch(direction, kernel, device, {}, tables, bytes(ATTENTION()), nothing)


def moves(
    moved: Sequence[Moved], sizes: Sizes, shared: tuple[bool, ...],
    kernel: CudaKernel | HostMoves,
) -> tuple[Moves, bytes]:  # fmt: skip
    """A launch, and its numbers."""
    on_device = isinstance(kernel, CudaKernel)
    unit = 16 if on_device else max(each.element for each in moved)
    steps = kernel.steps(_blocks) if isinstance(kernel, CudaKernel) else ()
    made = Moves(tuple(moved), sizes, unit, shared, kernel if on_device else None, steps)
    return made, made.numbers() if on_device else b""


def _blocks(launch: Launch, multiprocessors: int) -> int:
    return launch.resident * multiprocessors


def packed_strides(heads: int, rows: int, width: int) -> Shape:
    """Of packed rows, in elements."""
    return contiguous((1, heads, rows, width))[:3]
