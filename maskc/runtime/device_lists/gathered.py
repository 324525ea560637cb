"""Passes over single keys that are chosen on the device just before.

Scores, lists and counts are in the workspace of the call. Calls of several streams, threads and
CUDA graphs therefore share no memory, and nothing waits.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from maskc.core import abi
from maskc.core.abi import ATTENTION, LISTED_POINTERS, Numbers, Pointers
from maskc.core.bundle import DEFAULT, DETERMINISTIC, Grid, Launch, SourceUnit
from maskc.core.dtypes import E4M3
from maskc.core.evaluator import evaluate
from maskc.core.gathering import Gather
from maskc.core.problem import Direction
from maskc.core.selection import FACTORS
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output, singles
from maskc.core.widths import INT32
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.constants import any_int32, arguments_of, reached, too_wide
from maskc.dispatch.launch_plan import launch_plan, launches
from maskc.dispatch.tables import Tables
from maskc.layout.topk import indexer as G
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import DELTA, Asked, DeviceListedPlan
from maskc.runtime.device_lists.indexer_inputs import CODES, Ranking, ranking_on, steps_of
from maskc.runtime.launch.built import BuiltBundle
from maskc.runtime.launch.cuda import Arguments, CudaKernel, Step
from maskc.runtime.launch.prepared import Sent

GATHERED = abi.structure(abi.GATHERED_FIELDS)
_OWN = struct.Struct(f"{GATHERED.index_q_stride.offset // 8}Q")
_INT, _PITCH = 4, 4
"""Bytes; floats to which a row of scores, and every part of the workspace, is rounded up."""
_ROWS_AT_ONCE = 1 << 30
"""Blocks of a launch."""
_NO_TABLES = Tables((("mask_args", np.zeros(1, np.int32)),), (), 0, {})


@dataclass(frozen=True, eq=False)
class Room:
    """The workspace of a call, in entries of four bytes, and what lies in it."""

    rows: int
    """Queries that have a list of their own."""
    room: int
    """Keys of a list, at most."""
    at_once: int
    """Rows whose scores are kept at a time."""
    pitch: int
    """Entries from one row of scores to the next; 0 where scores are given."""

    @property
    def lists(self) -> int:
        """The place where lists start; counts come before them."""
        return _rounded(self.rows)

    @property
    def scores(self) -> int:
        return self.lists + _rounded(self.rows * self.room)

    @property
    def sums(self) -> int:
        """Offset of the keys' accumulated gradients; nothing in a forward pass."""
        return self.scores + self.at_once * self.pitch


def _rounded(entries: int) -> int:
    return -(-entries // _PITCH) * _PITCH


def room_for(
    wanted: int, recipe: Gather, ranking: Ranking, sizes: Sizes, params: Mapping[str, int]
) -> Room:
    """Return the sizes that a call needs.

    Args:
        wanted: number of keys to select for a query.
        recipe: describes the keys that it sees without a selection.
        ranking: of the call.
        params: a value for every parameter.
    """
    extra = _max_alongside(recipe, sizes, params)
    room = max(1, min(wanted + extra, sizes.n_kv))
    rows = ranking.lists * ranking.groups * sizes.n_q
    if "scores" in ranking.arrays:
        return Room(rows, room, min(rows, _ROWS_AT_ONCE), 0)
    pitch = max(_PITCH, _rounded(sizes.n_kv))
    step = max(1, G.SCORE_BYTES // (_INT * pitch))
    step = max(step // G.SCORE_QUERIES * G.SCORE_QUERIES, min(step, G.SCORE_QUERIES))
    return Room(rows, room, min(step, sizes.n_q), pitch)


def _max_alongside(recipe: Gather, sizes: Sizes, params: Mapping[str, int]) -> int:
    """Return the largest number of keys that a query sees in addition to the chosen ones."""
    env = {**params, "n_q": sizes.n_q, "n_kv": sizes.n_kv, "ti": np.arange(sizes.n_q)}
    total = np.zeros(sizes.n_q, np.int64)
    for span in recipe.alongside:
        guard, first, last = (evaluate(x, env) for x in (span.guard, span.first, span.last))
        length = np.minimum(last, sizes.n_kv) - np.maximum(first, 0)
        total += np.where(guard, np.maximum(length, 0), 0)
    return int(total.max(initial=0))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Launches that list the keys of some rows."""

    numbers: bytes
    """`struct Gathered` without its pointers."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class GatherPlan(DeviceListedPlan):
    """One direction of one signature; what `called` gives runs."""

    chunks: tuple[Chunk, ...]
    room: Room

    @property
    def size(self) -> int:
        return self.main.size + sum(len(chunk.numbers) for chunk in self.chunks)

    def enqueue(
        self, given: Ranking, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        """Make the lists from what ranks and run the pass, in order."""
        room, base = self.room, pointers[DELTA]
        counts, lists = base, base + _INT * room.lists
        names = ("index_q", "index_k", "index_w", "scores", FACTORS)
        arrays = given.arrays
        ranks = (arrays[name].pointer if name in arrays else 0 for name in names)
        made = (*ranks, base + _INT * room.scores, lists, counts)
        for chunk in self.chunks:
            self.lists.launch(chunk.steps, stream, Arguments(chunk.numbers, _OWN, made))
        sums = base + _INT * room.sums
        seen = (*pointers, *(0,) * len(LISTED_POINTERS), lists, counts, sums)
        self.main.run(sent, seen, numbers, stream)


# ------------------------------------------------------------------ plans


class Gatherer:
    """Makes such plans for one bundle; safe to use from several threads."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        bundle, target = built.bundle, built.target
        self._bundle, self._target, self._kernels = bundle, target, built.kernels
        self._binder = binder
        unit = bundle.list_source(target.name)
        if unit is None or unit.gather is None:
            raise TypeError(f"{bundle.name} has no source that lists keys")
        self._unit, self._recipe = unit, unit.gather
        modes = dict(self._unit.modes)
        in_e4m3 = any(way.in_e4m3 and way.mode in modes for way in G.INDEXINGS)
        self._dtypes = (bundle.problem.dtype.value, *[E4M3] * in_e4m3)
        """The dtypes of an indexer's queries and keys."""

    def bind(self, asked: Asked) -> Bound:
        """Return the parameters of a call, and its ranking tensors.

        Raises:
            MC3xx, and WrongDevice, NotContiguous, Misaligned for what ranks.
        """
        data, sizes = asked.keywords_of_call, asked.sizes
        params = self._binder.parameters(data)
        (selection,) = self._bundle.selections
        ranking = ranking_on(asked.device, selection, data, sizes, self._dtypes)
        nothing = not launches(sizes, asked.options.direction)
        key = tuple(params.values()), ranking.key
        return Bound(params, {}, key, None if nothing else ranking)

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> GatherPlan:  # fmt: skip
        """Plan a pass over some tokens; arguments as in SourceSelector.plan."""
        bundle, sizes, ranking = self._bundle, place.sizes, bound.given
        unit = self._chosen(unit, wanted, sizes)
        device = wanted.device[1]
        backward = wanted.direction is Direction.backward
        mode = DETERMINISTIC if wanted.deterministic and backward else DEFAULT
        kernel = self._kernels.on_device(unit, mode, wanted.features, device)
        way = ranking.indexing
        lists = self._kernels.on_device(
            self._unit, way.mode if way else "default", frozenset(), device
        )
        (selection,) = bundle.selections
        recipe = self._recipe
        room = room_for(min(selection.k, sizes.n_kv), recipe, ranking, sizes, bound.params)
        tables = replace(_NO_TABLES, copies={})
        plan = launch_plan(bundle, unit, mode, wanted, place, bound.params, tables, outputs)
        prepared = kernel.prepare(plan)
        dim = self._target.padded(bundle.problem, wanted.direction, unit.form).head_dim
        prepared = replace(
            prepared, numbers=_numbers(prepared.numbers, unit, sizes, ranking, room),
            outputs=_with_space(prepared.outputs, wanted, sizes, room, dim),
            steps=kernel.steps(lambda launch, number: _blocks(unit, sizes, launch, number)),
        )  # fmt: skip
        block = _gathered(selection.k, self._unit, recipe, ranking, sizes, bound.params, room)
        return GatherPlan(prepared, lists, tuple(_chunks(block, lists, sizes, room)), room)

    def _chosen(self, unit: SourceUnit, wanted: Pass, sizes: Sizes) -> SourceUnit:
        """The source with the fewest rows of padding."""
        heads = sizes.heads_q // max(1, sizes.heads_kv)
        units = self._bundle.choice(unit.target, wanted.direction)

        def padded(unit: SourceUnit) -> tuple[int, int]:
            return -(-heads // unit.tile.q) * unit.tile.q, -unit.tile.q

        return min(units, key=padded)


def _items(unit: SourceUnit, sizes: Sizes) -> int:
    heads = sizes.heads_q // sizes.heads_kv
    return sizes.batch * sizes.heads_kv * sizes.n_q * -(-heads // unit.tile.q)


def _with_space(
    outputs: tuple[Output, ...], wanted: Pass, sizes: Sizes, room: Room, dim: int
) -> tuple[Output, ...]:
    if wanted.direction is Direction.forward:
        return (*outputs[:2], singles(room.sums))
    rows, heads = sizes.batch * sizes.heads_kv * sizes.n_kv, sizes.heads_q
    space = 2 * rows * dim
    if wanted.deterministic:  # twice as wide, those of heads, marks and the largest numbers
        space = 2 * (space + 2 * heads) + 3 * rows + 2 * heads + _PITCH
    return (*outputs[:3], singles(room.sums + space), *outputs[4:])


def _blocks(unit: SourceUnit, sizes: Sizes, launch: Launch, multiprocessors: int) -> int:
    if launch.grid is Grid.results:
        return multiprocessors * launch.resident
    return min(_items(unit, sizes), multiprocessors * launch.resident)


def _numbers(numbers: bytes, unit: SourceUnit, sizes: Sizes, ranking: Ranking, room: Room) -> bytes:
    """Return `struct Attention` with the distance between the lists of two queries."""
    block = ATTENTION.from_buffer_copy(numbers)
    own_sequence, own_head = ranking.lists > 1, ranking.groups > 1
    for place, size in enumerate((room.room, 1)):
        block.array_batch[place] = own_sequence * ranking.groups * sizes.n_q * size
        block.array_head[place] = own_head * sizes.n_q * size
        block.array_row[place] = size
    block.items = _items(unit, sizes)
    return bytes(block)


def _gathered(
    wanted: int, unit: SourceUnit, recipe: Gather, ranking: Ranking, sizes: Sizes,
    params: Mapping[str, int], room: Room,
) -> ctypes.Structure:  # fmt: skip
    """`struct Gathered` of all rows.

    Raises:
        DataRange: the mask computes something beyond 32 bits.
    """
    block, arrays = GATHERED(), ranking.arrays
    if "scores" in arrays:
        block.given_stride[:] = steps_of(arrays["scores"], 0, 1, 2)
        block.given_code = CODES[arrays["scores"].dtype]
    else:
        block.index_q_stride[:] = steps_of(arrays["index_q"], 0, 1, 2)
        block.index_k_stride[:] = steps_of(arrays["index_k"], 0, 1)
        block.index_w_stride[:] = steps_of(arrays["index_w"], 0, 1, 2)
        block.index_dim = arrays["index_q"].shape[-1]
        block.weight_code = CODES[arrays["index_w"].dtype]
        if FACTORS in arrays:
            block.factor_stride[:] = steps_of(arrays[FACTORS], 0, 1)
            block.factor_code = CODES[arrays[FACTORS].dtype]
    block.pitch, block.groups, block.heads = room.pitch, ranking.groups, ranking.heads
    block.n_q, block.n_kv, block.room = sizes.n_q, sizes.n_kv, room.room
    block.wanted = min(wanted, sizes.n_kv)
    env = {**params, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
    args = arguments_of(recipe.constants, recipe.rests, env, any_int32)
    if (most := reached(unit.reach, {**env, "ti": sizes.n_q}, args)) > INT32:
        raise too_wide(most, env, INT32)
    for number, value in enumerate(args):
        block.constants[number] = value
    return block


def _chunks(
    block: ctypes.Structure, kernel: CudaKernel, sizes: Sizes, room: Room
) -> Iterator[Chunk]:
    """Launch by launch; scores that are kept are of one sequence."""
    chunk = room.rows if room.pitch == 0 else sizes.n_q
    for start in range(0, room.rows, max(1, chunk)):
        for first in range(start, start + chunk, room.at_once):
            block.first, block.rows = first, min(room.at_once, start + chunk - first)
            rows = block.rows

            def blocks(launch: Launch, _: int, rows: int = rows) -> int:
                if launch.grid is not Grid.tiles:
                    return rows
                return -(-sizes.n_kv // launch.per_block) * -(-rows // G.SCORE_QUERIES)

            yield Chunk(bytes(block), kernel.steps(blocks))
