"""Passes of masks that run in parts over the rows of listed tokens.

Rows are packed into the workspace of the call. Packed rows of listed keys replace k, v, dk and dv,
and packed rows of listed queries replace q, out, lse and dq. The part of the listed queries
overwrites the results of other parts for them. In a backward pass, the other parts read an lse in
which these queries have no key.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from maskc.core import abi
from maskc.core.abi import ATTENTION, MAX_MOVED, MAX_RESULTS, POINTERS, Numbers, Pointers
from maskc.core.bundle import Grid, Launch
from maskc.core.errors import DataRange
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.tensors import Array, Device, Output, Shape, contiguous, singles
from maskc.dispatch.tables import Slot, Tables
from maskc.runtime.arrays.known import Library
from maskc.runtime.arrays.memory import at
from maskc.runtime.device_lists.call import DELTA as DELTA
from maskc.runtime.device_lists.call import KEPT, KEPT_AT, DataCall
from maskc.runtime.device_lists.watched import Watched
from maskc.runtime.launch.cuda import Arguments, CudaKernel, Step
from maskc.runtime.launch.prepared import HostKernel, PreparedLaunch, Sent
from maskc.runtime.launch.sequence import Sents

MOVED = abi.structure(abi.MOVED_FIELDS)
_POINTERS = struct.Struct(f"{MOVED.source_stride.offset // 8}Q")
PACK, UNPACK, HIDE = range(3)
"""Ways to move rows, as `struct Moved` has them."""
_ARRAY = ATTENTION.array.offset
EMPTY_LSE = 0xFF800000
"""lse of a query without a key, minus infinity, as a word."""
_KEPT = 64
"""Sets of addresses whose arguments stay filled in."""
ALIGNED = 128
"""Bytes to which packed rows are aligned."""


class Address(NamedTuple):
    """The place where a tensor starts in every call."""

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
    """Strides in elements, of batch, heads and rows."""


class Moved(NamedTuple):
    """Rows of one tensor that a launch moves."""

    way: int
    source: Tensor
    to: Tensor
    list: int
    """0 for listed queries, 1 for listed keys."""
    heads: int
    rows: int
    """The rows of a head: entries of the list, or all where they are hidden."""
    listed: int
    """Entries of the list."""
    bytes: int
    """The bytes of a row."""
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
    """Bytes to whose multiples rows are aligned: most that are moved at once."""
    shared: tuple[bool, ...]
    """Whether all sequences share the lists, of both."""
    kernel: CudaKernel | None
    """None on the host."""
    steps: tuple[Any, ...] = ()
    kept: dict[object, Arguments] = field(default_factory=dict)
    """Arguments of the latest calls, by the addresses in them: launches only read these."""

    @cached_property
    def numbers(self) -> bytes:
        """`struct Moved` without pointers."""
        block = MOVED()
        for number, move in enumerate(self.moved):
            unit = self._unit(move)
            for name, tensor in (("source", move.source), ("to", move.to)):
                steps = getattr(block, f"{name}_stride")
                for axis, stride in enumerate(tensor.strides):
                    steps[3 * number + axis] = stride * move.element // unit
            block.tokens_batch[number] = 0 if self.shared[move.list] else move.listed
            block.way[number], block.heads[number] = move.way, move.heads
            block.rows[number], block.listed[number] = move.rows, move.listed
            block.width[number], block.unit[number] = move.bytes // unit, unit
            block.filling[number] = np.int32(np.uint32(move.filling))
        block.batch, block.count = self.sizes.batch, len(self.moved)
        return bytes(block)

    def _unit(self, move: Moved) -> int:
        return max(move.element, gcd(self.unit, move.bytes))

    def run(self, tokens: tuple[int, int], pointers: Pointers, stream: int) -> None:
        """Move all, or enqueue that.

        Args:
            tokens: addresses of the lists.
        """
        if self.kernel is None:
            for move in self.moved:
                self._on_host(move, tokens[move.list], pointers)
            return
        known = self.kept.get((pointers, tokens))
        if known is None:
            if len(self.kept) >= _KEPT:
                self.kept.clear()
            known = self.kept[pointers, tokens] = self._arguments(tokens, pointers)
        self.kernel.launch(self.steps, stream, known)

    def _arguments(self, tokens: tuple[int, int], pointers: Pointers) -> Arguments:
        rest = (0,) * (MAX_MOVED - len(self.moved))
        lists = [
            *(move.source.at.of(pointers) for move in self.moved), *rest,
            *(move.to.at.of(pointers) for move in self.moved), *rest,
            *(tokens[move.list] for move in self.moved), *rest,
        ]  # fmt: skip
        nothing = (0,) * (_POINTERS.size // 8 - len(lists))
        return Arguments(self.numbers, _POINTERS, (*lists, *nothing))

    def _on_host(self, move: Moved, tokens: int, pointers: Pointers) -> None:
        batch, width = self.sizes.batch, move.bytes // move.element
        code = f"u{move.element}"
        step = 0 if self.shared[move.list] else move.listed
        lists = at(tokens, (batch, move.listed), (step, 1), "i4")
        addresses = {
            name: _view(tensor, pointers, (batch, move.heads), width, code, lists, move)
            for name, tensor in (("source", move.source), ("to", move.to))
        }
        filling = np.array(move.filling, "u4").astype(code)
        for sequence, tokens_of in enumerate(lists):
            there = np.flatnonzero(tokens_of >= 0)
            named, to = tokens_of[there], addresses["to"][sequence]
            if move.way == UNPACK:
                to[:, named] = addresses["source"][sequence][:, there]
                continue
            if move.way == HIDE:
                to[...] = addresses["source"][sequence]
                to[:, named] = filling
                continue
            to[...] = filling
            if move.source.at.pointer is not None:
                to[:, there] = addresses["source"][sequence][:, named]


def _view(
    tensor: Tensor, pointers: Pointers, outer: tuple[int, int], width: int, code: str,
    lists: np.ndarray, move: Moved,
) -> np.ndarray:  # fmt: skip
    """[batch, heads, rows, width] behind an address: as many rows as a move may touch."""
    packed = tensor is (move.to if move.way == PACK else move.source) and move.way != HIDE
    rows = move.rows if packed or move.way == HIDE else int(lists.max(initial=-1)) + 1
    return at(tensor.at.of(pointers), (*outer, rows, width), (*tensor.strides, 1), code)


class HostMoves(HostKernel):
    """Host implementation of the kernel that moves rows."""

    name = "move rows"

    def run(self, *_: object) -> None:
        """Moves run by themselves."""


class Part(NamedTuple):
    """A launch over all rows or packed ones."""

    plan: PreparedLaunch
    instead: tuple[tuple[int, Address], ...]
    """(index among POINTERS, the address to use instead)."""
    reads: int | None = None
    """The list that the kernel's first data array is, 0 for queries and 1 for keys; None: it reads
    none."""


class Flags(NamedTuple):
    """Flags of a call that lie on its device."""

    sources: tuple[Array | None, Array | None]
    """The sources of queries and of keys, None for a side without."""
    watched: Watched | None
    """None if nobody can tell whether the arrays change."""

    @property
    def key(self) -> Hashable:
        return tuple(None if source is None else source[1:] for source in self.sources)

    @property
    def places(self) -> tuple[int, int]:
        """The places of the sources; 0 for a side without."""
        of_q, of_k = self.sources
        return 0 if of_q is None else of_q.pointer, 0 if of_k is None else of_k.pointer


@dataclass(frozen=True, eq=False)
class Making:
    """Recipe that builds lists on the device."""

    name: str
    kernel: CudaKernel
    before: tuple[Step, ...]
    """The launch that makes the lists."""
    after: tuple[Step, ...]
    """The launch that spoils results where a list has no room."""
    numbers: bytes
    """`struct Moved` without pointers."""
    places: tuple[Address, Address]
    """The places of the lists, of queries and of keys."""
    verdict: Address
    report: ctypes.c_int32
    """The place where the device tells the host that a list had no room."""
    results: tuple[int, ...]
    """Results of a pass, among POINTERS."""

    def tokens(self, pointers: Pointers) -> tuple[int, int]:
        """Addresses of the lists."""
        of_q, of_k = self.places
        return of_q.of(pointers), of_k.of(pointers)

    def arguments(self, given: Flags, tokens: tuple[int, int], pointers: Pointers) -> Arguments:
        """The arguments of both launches."""
        results = [pointers[place] for place in self.results]
        return Arguments(self.numbers, _POINTERS, (
            *(0,) * (3 * MAX_MOVED), *given.places, *tokens,
            *results, *(0,) * (MAX_RESULTS - len(results)), self.verdict.of(pointers),
            ctypes.addressof(self.report),
        ))  # fmt: skip


FLAG_BYTES = {"bool": 1, "uint8": 1, "int8": 1, "int32": 4, "int64": 8}


def flags_numbers(
    given: Flags, lists: tuple[int, int], room: tuple[int, int], result_words: Sequence[int]
) -> bytes:
    """`struct Moved` of the launches that list flagged tokens, without pointers.

    Args:
        lists: of queries and of keys: how many; 0 where there are no flags.
        room: of each list.
    """
    block = MOVED()
    for side, array in enumerate(given.sources):
        if array is None:
            continue
        block.flags_list[side] = array.strides[0] if lists[side] > 1 else 0
        block.flags_step[side] = array.strides[-1]
        block.flag_bytes[side], block.n[side] = FLAG_BYTES[array.dtype], array.shape[-1]
        block.room[side], block.lists[side] = room[side], lists[side]
    for number, words in enumerate(result_words):
        block.result_words[number] = words
    return bytes(block)


class _Filled(NamedTuple):
    """The launches of a call, without the numbers that vary between calls of one signature."""

    sents: tuple[Sent, ...]
    """Their arguments on the device."""
    tokens: tuple[int, int]
    """Addresses of the lists."""
    steps: tuple[tuple[Any, Pointers], ...]
    """The steps of each part; (None, ()) where rows are moved."""
    listing: Arguments | None
    """The launch that makes lists on the device, where there is one."""


@dataclass(frozen=True, eq=False)
class ListedRowsPlan:
    """One direction of one signature."""

    lists: PreparedLaunch
    """Brings the lists to the device; it launches nothing."""
    steps: tuple[Part | Moves, ...]
    outputs: tuple[Output, ...]
    """The outputs of a `PreparedLaunch`, with a workspace for packed rows and for all launches."""

    making: Making | None = None
    """Recipe of the lists on the device, from flags there; None if the host knows them."""
    filled: dict[object, _Filled] = field(default_factory=dict, init=False)
    """The launches of the latest calls, by the addresses in them."""
    parts: tuple[Part, ...] = field(init=False)
    """The steps that are no moves."""

    def __post_init__(self) -> None:
        parts = tuple(step for step in self.steps if isinstance(step, Part))
        object.__setattr__(self, "parts", parts)

    @property
    def kernel(self) -> object:
        """Never None: every result is written."""
        return self.lists.kernel

    def called(self, given: Flags) -> DataCall:
        """A call with these flags; lists are made in every one."""
        return DataCall(self, given, given.watched)

    def moved(self, given: Any) -> Any:
        return None

    @property
    def size(self) -> int:
        return self.lists.size + sum(part.plan.size for part in self.parts)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.plan.sources)

    @property
    def layouts(self) -> tuple[str, ...]:
        return tuple(layout for part in self.parts for layout in part.plan.layouts)

    def place(self, library: Library, q: Any, watched: Watched | None = None) -> tuple[Sents, int]:
        """Return the arguments of each launch on the device, and the stream to launch on; see
        PreparedLaunch.place.

        Raises:
            DataRange: more tokens were flagged in an earlier call than promised.
        """
        making = self.making
        if making is not None and making.report.value:
            making.report.value = 0
            place = (
                "in an earlier call, whose results are NaN, more tokens were flagged than promised"
            )
            raise DataRange(making.name, place, "raise at_most, or leave it out", at=making.name)
        plans = [self.lists, *(part.plan for part in self.parts)]
        placed = [plan.place(library, q) for plan in plans]
        return Sents(tuple([sent for sent, _ in placed])), placed[0][1]

    def run(self, sents: Sents, pointers: Pointers, numbers: Numbers, stream: int) -> None:
        self.enqueue(None, sents, pointers, numbers, stream)

    def enqueue(
        self, given: Flags | None, sents: Sents, pointers: Pointers, numbers: Numbers, stream: int
    ) -> None:
        """Launch all, in order; first what makes the lists from flags that are given."""
        pointers += (0,) * (len(POINTERS) - len(pointers))
        key = pointers, None if given is None else given.places
        known = self.filled.get(key)
        if known is None or known.sents != sents.steps:
            if len(self.filled) >= _KEPT:
                self.filled.clear()
            known = self._filled(sents.steps, pointers, given)
            if all(sent.lasting for sent in sents.steps):
                self.filled[key] = known
        _, tokens, steps, listing = known
        making = self.making
        if making is not None and listing is not None:
            making.kernel.launch(making.before, stream, listing)
        for step, (sent, launched) in zip(self.steps, steps, strict=True):
            if isinstance(step, Part):
                step.plan.run(sent, launched, numbers, stream)
            else:
                step.run(tokens, pointers, stream)
        if making is not None and listing is not None:
            making.kernel.launch(making.after, stream, listing)

    def _filled(self, sents: tuple[Sent, ...], pointers: Pointers, given: Flags | None) -> _Filled:
        """The launches of a call; `pointers` has all of POINTERS."""
        lists, *others = sents
        making, listing = self.making, None
        if making is None or given is None:
            tokens = tokens_in(lists)
        else:
            tokens = making.tokens(pointers)
            listing = making.arguments(given, tokens, pointers)
        rest = iter(others)
        steps: list[tuple[Any, Pointers]] = []
        for step in self.steps:
            if not isinstance(step, Part):
                steps.append((None, ()))
                continue
            places, sent = list(pointers), next(rest)
            for place, address in step.instead:
                places[place] = address.of(pointers)
            if listing is not None and step.reads is not None:
                places += (*KEPT.unpack_from(sent.template, KEPT_AT), tokens[step.reads], 0, 0)
            steps.append((sent, tuple(places)))
        return _Filled(sents, tokens, tuple(steps), listing)


def tokens_in(sent: Sent) -> tuple[int, int]:
    """Addresses of the lists of queries and of keys."""
    first, second = struct.unpack_from("2Q", sent.template, _ARRAY)
    return first, second


def lists_plan(
    direction: Direction, kernel: CudaKernel | HostMoves, device: Device,
    lists: Sequence[np.ndarray],
) -> PreparedLaunch:  # fmt: skip
    """Plan the copy of two lists to a device, int32 [sequences or 1, most]."""
    slots = tuple(Slot(tokens.reshape(len(tokens), 1, -1)) for tokens in lists)
    tables = Tables((), slots, 0, {})
    nothing = (singles(0), singles(0))
    return PreparedLaunch(direction, kernel, device, {}, tables, bytes(ATTENTION()), nothing)


def moves(
    moved: Sequence[Moved], sizes: Sizes, shared: tuple[bool, ...],
    kernel: CudaKernel | HostMoves, unit: int,
) -> Moves:  # fmt: skip
    """A launch; rows are aligned to multiples of `unit` bytes."""
    if not isinstance(kernel, CudaKernel):
        return Moves(tuple(moved), sizes, unit, shared, None)
    return Moves(tuple(moved), sizes, unit, shared, kernel, steps_of(kernel, "move_rows"))


def steps_of(kernel: CudaKernel, entry: str, lists: int = 0) -> tuple[Step, ...]:
    """One of the launches; `lists` are made in all."""

    def blocks(launch: Launch, multiprocessors: int) -> int:
        if launch.entry != entry:
            return 0
        return lists if launch.grid is Grid.lists else launch.resident * multiprocessors

    return kernel.steps(blocks)


def packed_strides(heads: int, rows: int, width: int) -> Shape:
    """The strides of packed rows, in elements."""
    return contiguous((1, heads, rows, width))[:3]
