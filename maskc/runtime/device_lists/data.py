"""Plans of passes whose tile lists are made on the device from data there: sizes, memory and
launches.

What a mask may keep at most, whatever its data are, is laid out on the host, once per lengths; the
device leaves out the tiles that data rule out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

import numpy as np

from maskc.core.abi import ATTENTION, WORK_FIELDS
from maskc.core.bundle import PACKED, Bundle, Grid, Launch, SourceUnit
from maskc.core.cost import Tally
from maskc.core.layout import MAX_TILES
from maskc.core.problem import Direction, Feature
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.launch_plan import launch_plan, mode_of
from maskc.dispatch.packing import packed
from maskc.dispatch.recent import Recent
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import MAX_ITEMS, MOST_PARTS, heads_per_group, part_bounds, wanted_tiles
from maskc.layout.tiles.data_tiles import CHUNK, readings_of, split
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import (
    Asked,
    Unlisted,
    pack_parts,
    unknown_work,
    words_of_results,
)
from maskc.runtime.device_lists.data_given import Given, Reader
from maskc.runtime.device_lists.lists_launch import ARRAYS, DATA, ListsPlan
from maskc.runtime.device_lists.reports import Reports
from maskc.runtime.launch.built import BuiltBundle
from maskc.runtime.launch.prepared import PreparedLaunch, prepare

_MOST_TILES = 1 << 26
"""Tiles of a grid; of longer sequences the host lists the few that are live."""
_MOST_ENTRIES = 1 << 28
"""The most entries of the memory of lists, of four bytes."""


@dataclass(frozen=True, eq=False)
class Making:
    """The lists that a pass reads."""

    unit: SourceUnit
    """The unit of the pass."""
    sizes: Sizes
    given: Given
    readings: tuple[tuple[int, int, bool], ...]
    """See `readings_of`."""
    backward: bool
    placed: bool
    """Whether blocks find their work from their index: then there is no work list."""
    by_head: bool
    """Whether query heads have lists of their own."""
    by_rows: bool
    """Whether a backward pass goes through the tiles of rows as well."""
    kept: int
    """Tiles that the mask could have, in one list."""
    wide: bool
    """Whether constants have two words."""
    packed: int = 0
    """Query heads whose queries are rows of one tile; 0: of one."""

    @property
    def extents(self) -> tuple[int, int]:
        """(sequences, heads) with lists of their own, 1 where all share theirs."""
        batches = max(source.shape[0] for source in self.given.sources)
        return batches, self.sizes.heads_q if self.by_head else 1

    @property
    def lists(self) -> int:
        """The lists of tiles."""
        batches, heads = self.extents
        return batches * heads

    @property
    def doubtful(self) -> bool:
        """Whether something given may turn out to be wrong."""
        return any(source.doubtful for source in self.given.sources)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tile rows and columns."""
        tile, sizes = self.unit.tile, self.sizes
        return -(-sizes.n_q // tile.q), -(-sizes.n_kv // tile.k)

    @property
    def sides(self) -> tuple[int, ...]:
        """The sides of which lists are made: 0 rows, 1 columns."""
        return (0, 1) if self.by_rows and self.backward else (int(self.backward),)

    @property
    def item_heads(self) -> int:
        """Query heads of an item, one after another."""
        alone = not self.backward or self.by_head
        return 1 if alone else self.sizes.heads_q // self.sizes.heads_kv

    @property
    def sharing(self) -> int:
        """Query heads, each with items of its own, that add to the same tile columns; 0: none."""
        heads = self.sizes.heads_q // self.sizes.heads_kv
        return heads if self.backward and self.by_head and heads > 1 and not self.placed else 0

    @property
    def shared(self) -> int:
        """Tile columns to which several items add, or rows that may be cut."""
        sizes = self.sizes
        if self.parts:
            return self.lists * self.owners
        return sizes.batch * sizes.heads_kv * self.tiles[1] if self.sharing else 0

    @cached_property
    def part_bounds(self) -> tuple[int, int]:
        """See `part_bounds`; zeros where rows are never cut."""
        if not self.packed or self.unit.work is None:
            return 0, 0
        return part_bounds(self.sizes.n_q * self.packed, self.unit.work)

    @cached_property
    def parts(self) -> int:
        """The most parts, and so items, of a row of packed heads; 0: one."""
        least, _ = self.part_bounds
        found = min(MOST_PARTS, -(-self.kept // least)) if least else 0
        return found if found > 1 else 0

    @property
    def owner_heads(self) -> int:
        """Query heads from one owner of a list to the next."""
        return self.sizes.heads_q if self.by_head else self.item_heads

    @property
    def owners(self) -> int:
        """The owners of every row or column of a list."""
        batches, _ = self.extents
        of_sequence = 1 if self.by_head else self.sizes.heads_q // self.item_heads
        return self.sizes.batch // batches * of_sequence

    @property
    def items(self) -> int:
        """The items of the work list: rows are cut where heads are packed alone."""
        return self.lists * self.owners * self.tiles[self.backward] * (self.parts or 1)

    @property
    def counters(self) -> int:
        """The counters of the pass, see maskc/core/abi.py."""
        return 2 + (self.shared if self.parts else 0)

    @property
    def groups(self) -> tuple[int, int]:
        """(owners of a list, lists) whose work runs at the same time; all owners where there are
        several lists."""
        sizes = self.sizes
        tokens = sizes.n_q if self.backward else sizes.n_kv
        heads = 1
        if self.unit.work is not None:
            kv_heads = sizes.batch * sizes.heads_kv
            heads = heads_per_group(self.unit.work, tokens, kv_heads, self.backward)
        owners = heads * (1 if self.backward else sizes.heads_q // sizes.heads_kv)
        return min(owners, self.owners), max(1, owners // self.owners)

    @property
    def first_blocks(self) -> tuple[int, ...]:
        """The first block of each reading in the launch that reads data; then their number."""
        blocks = []
        for slot, side, _ in self.readings:
            batches, heads, rows, columns = self.given.sources[slot].shape
            entries = batches * heads * rows * columns
            blocks.append(batches * self.tiles[side] if side >= 0 else -(-entries // CHUNK))
        return tuple(accumulate(blocks, initial=0))

    @property
    def bit_words(self) -> tuple[int, ...]:
        """The words of bits of a list, by side: 32 candidates each, a line's in their own."""
        return tuple(self.kept // 32 + tiles + 1 for tiles in self.tiles)

    def room(self) -> tuple[tuple[int, ...], int]:
        """(bytes to each part, -1 for those that are not made; int32 entries in all)."""
        tiles, lists = self.tiles, self.lists
        counts: dict[str, int] = {"counter": self.counters, "bounds": 4 * self.first_blocks[-1]}
        for name, source in zip(ARRAYS, self.given.sources, strict=False):
            batches, heads, rows, columns = source.shape
            counts[name] = batches * heads * rows * columns
        for side, (token, line) in enumerate((("q", "row"), ("k", "col"))):
            if side in self.sides:
                counts |= {
                    f"bits_{token}": 2 * lists * self.bit_words[side],
                    f"counts_{token}": lists * tiles[side],
                    f"{line}_ptr": lists * (tiles[side] + 1),
                    f"{line}_tiles": lists * self.kept,
                }
        if self.doubtful:
            counts["verdict"] = 1
        if not self.placed:
            counts["work"] = (self.items + self.shared) * len(WORK_FIELDS)
        return pack_parts(DATA.parts, counts, 0)

    def numbers(self, outputs: tuple[Output, ...], itemsize: int) -> bytes:
        """`struct DataLists` without its pointers.

        Args:
            outputs: of the pass.
            itemsize: bytes of an element of its tensors.
        """
        block, sizes, tile = DATA.structure(), self.sizes, self.unit.tile
        block.n[:], block.tile[:], block.tile_count[:] = (
            (sizes.n_q, sizes.n_kv), (tile.q, tile.k), self.tiles,
        )  # fmt: skip
        for slot, source in enumerate(self.given.sources):
            (block.source_batch[slot], block.source_head[slot], block.source_row[slot],
             block.source_step[slot]) = source.strides  # fmt: skip
            (block.batches[slot], block.heads_of[slot], block.rows[slot],
             block.columns[slot]) = source.shape  # fmt: skip
            (block.array_batch[slot], block.array_head[slot],
             block.array_row[slot]) = strides_of(source.shape)  # fmt: skip
            block.source_code[slot], block.rule[slot] = source.code, source.rule
            block.ends[slot] = source.ends
        first = self.first_blocks
        block.first_block[: len(first)] = first
        block.bit_words[:], block.room[:] = self.bit_words, (self.kept, self.kept)
        block.lists, block.heads, block.wide = self.lists, self.extents[1], self.wide
        block.sharing = self.sharing
        block.first_side, block.work_side = self.sides[0], self.backward
        block.owners, block.owner_heads = self.owners, self.owner_heads
        block.item_heads = self.item_heads
        block.group_owners, block.group_lists = self.groups
        block.counters = self.counters
        if self.parts and (rule := self.unit.work) is not None:
            wanted = wanted_tiles(self.kept * self.shared, rule)
            block.parts, block.most_parts = self.parts, MOST_PARTS
            block.part_tiles[:] = self.part_bounds
            block.item_tiles[:] = wanted, rule.uneven_tiles
        block.result_words[:] = words_of_results(
            outputs, self.backward, itemsize, len(block.result_words)
        )
        return bytes(block)

    def blocks(self, launch: Launch, multiprocessors: int) -> int:
        """How many a launch has."""
        if launch.grid is Grid.results:
            return launch.resident * multiprocessors
        if launch.grid is Grid.tiles:
            return self.first_blocks[-1]
        return self.lists * sum(self.tiles[side] for side in self.sides)


def _arrays(parts: list[int]) -> tuple[int, ...]:
    """The parts of the memory of lists that the pass reads as arrays."""
    return tuple(parts[: len(ARRAYS)])


def strides_of(shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """Elements from one sequence, head and row to the next of an array as kernels read it; 0 where
    all share theirs."""
    batches, heads, rows, columns = shape
    over = rows * columns
    return heads * over if batches > 1 else 0, over if heads > 1 else 0, columns


class DataLists:
    """Makes such plans for one bundle; safe to use from several threads."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        self._built, self._binder = built, binder
        bundle = built.bundle
        self._unit = bundle.list_source(built.target.name)
        self._reader = Reader(bundle.data, bundle.arrays)
        keeps = [variant.keep for variant in bundle.variants]
        self._readings = readings_of(keeps, bundle.arrays)
        self._names = ", ".join(decl.name for decl in bundle.data)
        self._tables: Recent[Tables] = Recent()
        self._reports = cache(Reports)  # of a device
        self._lock = threading.Lock()
        self.active = self._unit is not None
        """Whether a source makes the lists of this mask."""

    def bind(self, asked: Asked) -> Bound | None:
        """Parameters and data of a call; None where the host is to read them.

        Raises:
            DataMissing, DataUnknown, DataType, DataRange, NotAnArray.
        """
        given = self._reader.read(asked) if self.active else None
        if given is None:
            return None
        params = self._binder.parameters(asked.keywords)
        key = tuple(params.values()), tuple(source.key for source in given.sources)
        return Bound(params, None, key, given)

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> ListsPlan:  # fmt: skip
        """How a pass runs over some tokens; arguments as in SourceSelector.plan.

        Raises:
            Unlisted: sequences are too long or too many, or lists are to be checked.
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        if os.environ.get("MASKC_CHECK") == "1" or self._unit is None:
            raise Unlisted
        bundle, kernels, index = self._built.bundle, self._built.kernels, wanted.device[1]
        backward, given = wanted.direction is Direction.backward, bound.given
        unit, place = self._source(unit, wanted, bound, place)
        sizes = place.sizes
        by_head = bool(bundle.head_variant) or any(x.shape[1] > 1 for x in given.sources)
        kept = self._kept(unit, sizes, bound, wanted.direction, by_head)
        mode = PACKED if place.packed else mode_of(unit, wanted, kept)
        placed = unit.work is None or mode == "deterministic"
        ptr = dict(kept.parts)["row_ptr"]
        making = Making(
            unit, sizes, given, self._readings, backward, placed, by_head,
            placed or Feature.entmax in wanted.features,
            int((ptr[:, -1] - ptr[:, 0]).max()), kept.wide,
            place.packed,
        )  # fmt: skip
        room, entries = making.room()
        if (
            making.lists * making.kept > MAX_TILES
            or making.items > MAX_ITEMS
            or entries > _MOST_ENTRIES
        ):
            raise Unlisted
        kernel = kernels.on_device(unit, mode, kept.features(wanted.features), index)
        batches, heads = making.extents
        work = (
            None
            if unit.work is None
            else unknown_work(making.items, making.shared, making.parts or 1)
        )
        tables = replace(kept, work=work, list_batch=heads if batches > 1 else 0)
        plan = launch_plan(bundle, unit, mode, wanted, place, bound.params, tables, outputs)
        own = prepare(plan, kernel, self._built.dtype)
        lists = kernels.on_device(self._unit, "usual", frozenset(), index)
        *before, spoil = lists.steps(making.blocks)
        return ListsPlan(
            _with_arrays(own, given), lists, entries, DATA, tuple(before),
            (spoil,) if making.doubtful else (),
            making.numbers(outputs, bundle.problem.dtype.itemsize), room, _arrays,
            self._reports(index), self._names,
        )  # fmt: skip

    def _source(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place
    ) -> tuple[SourceUnit, Place]:  # fmt: skip
        """The source, and the tokens: heads as rows of one tile where they fit; else what takes
        least for all that the mask could keep."""
        bundle, selector = self._built.bundle, self._built.selector
        shapes = {
            name: np.broadcast_to(np.int32(0), source.shape)
            for name, source in zip(bundle.arrays, bound.given.sources, strict=True)
        }
        fit = packed(bundle, unit, wanted, place, lambda: shapes)
        if fit is not None and fit[0].work is not None:
            return fit

        def tally(each: SourceUnit) -> Tally:
            found = self._kept(each, place.sizes, bound, wanted.direction, False).tally
            return Tally(0, 0, 0) if found is None else replace(found, single=False, alone=False)

        return selector.by_hull(unit, wanted, place.sizes, tally), place

    def _kept(
        self, unit: SourceUnit, sizes: Sizes, bound: Bound, direction: Direction, by_head: bool
    ) -> Tables:  # fmt: skip
        """What the masks could keep at these lengths, as tables of their own: for each of the
        heads, or once for all."""
        rows, columns = -(-sizes.n_q // unit.tile.q), -(-sizes.n_kv // unit.tile.k)
        if rows * columns > _MOST_TILES:
            raise Unlisted
        params = bound.params
        heads = sizes.heads_q if by_head else 0
        key = (unit.key, direction, sizes.n_q, sizes.n_kv, tuple(params.values()), heads)
        tables = self._tables.get(key)
        if tables is None:
            own = replace(unit, work=None)
            bundle = _without_data(self._built.bundle)
            tables = make_tables(bundle, own, sizes, params, {}, direction, True)
            tables = replace(tables, work=unknown_work(0), adders=None)
            if by_head:
                tables = _of_heads(tables, bundle, own, sizes, params)
            with self._lock:
                self._tables.put(key, tables)
        return tables


def _without_data(bundle: Bundle) -> Bundle:
    """All that the mask could keep, as a mask that reads no data; its constants stay those of the
    whole formula."""
    variants = tuple(
        replace(variant, keep=split(variant.keep).hull, recipes=()) for variant in bundle.variants
    )
    return replace(bundle, variants=variants, arrays=(), data=())


def _of_heads(
    tables: Tables, bundle: Bundle, unit: SourceUnit, sizes: Sizes, params: Mapping[str, int]
) -> Tables:
    """The tables with constants for every head, and where its lists begin."""
    of_head = list(bundle.head_variant or (0,) * sizes.heads_q)
    own = replace(
        bundle, variants=tuple(bundle.variants[number] for number in of_head),
        head_variant=tuple(range(len(of_head))),
    )  # fmt: skip
    alone = replace(unit, costs=(), distances=False)
    words = make_tables(own, alone, sizes, params, {}, Direction.forward, False).parts
    lists = [
        (name, values[of_head] if name.endswith("_ptr") else values)
        for name, values in tables.parts
        if name not in dict(words)
    ]
    return replace(tables, parts=(*words, *lists))


def _with_arrays(plan: PreparedLaunch, given: Given) -> PreparedLaunch:
    """The launch with the distances between the arrays of two sequences, heads and rows."""
    block = ATTENTION.from_buffer_copy(plan.numbers)
    for slot, source in enumerate(given.sources):
        (block.array_batch[slot], block.array_head[slot],
         block.array_row[slot]) = strides_of(source.shape)  # fmt: skip
    return replace(plan, numbers=bytes(block))
