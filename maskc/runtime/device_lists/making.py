"""What makers of tile lists from data on the device share: sizes, memory and launches of the lists
that a pass reads, and the plan that follows from them.

What the mask asks besides its data is laid out on the host, once per lengths; the device leaves
out tiles.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from maskc.core.abi import ATTENTION, WORK_FIELDS
from maskc.core.bundle import Grid, Launch, SourceUnit
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.launch_plan import launch_plan
from maskc.dispatch.recent import Recent
from maskc.dispatch.tables import Tables
from maskc.layout import MOST_PARTS, heads_per_group, part_bounds
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Unlisted, pack_parts, unknown_work, words_of_results
from maskc.runtime.device_lists.data_given import Given
from maskc.runtime.device_lists.lists_launch import Block, ListsPlan
from maskc.runtime.device_lists.reports import Reports
from maskc.runtime.launch.built import BuiltBundle

_MOST_TILES = 1 << 26
"""Tiles of a grid; of longer sequences the host lists the few that are live."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Making(ABC):
    """The lists that a pass reads."""

    block: Block
    """The launch that makes them."""
    unit: SourceUnit
    sizes: Sizes
    given: Given
    backward: bool
    placed: bool
    """Whether blocks find their work from their index: then there is no work list."""
    by_rows: bool
    """Whether a backward pass goes through the tiles of rows as well."""
    kept: int
    """Tiles that the mask could have, in one list."""
    by_head: bool = False
    """Whether query heads have lists of their own."""
    packed: int = 0
    """Query heads whose queries are rows of one tile; 0: of one."""

    @property
    def capacity(self) -> int:
        """Tiles for which a list has room."""
        return self.kept

    @property
    def extents(self) -> tuple[int, int]:
        """(sequences, heads) with lists of their own, 1 where all share theirs."""
        batches = max(source.shape[0] for source in self.given.sources)
        return batches, self.sizes.heads_q if self.by_head else 1

    @property
    def lists(self) -> int:
        batches, heads = self.extents
        return batches * heads

    @property
    def doubtful(self) -> bool:
        """Whether something given may turn out to be wrong."""
        return any(source.doubtful for source in self.given.sources)

    @property
    def tiles(self) -> tuple[int, int]:
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

    @abstractmethod
    def entries(self) -> dict[str, int]:
        """int32 entries of the parts of the lists' memory that are read on the way, by name."""

    def room(self) -> tuple[tuple[int, ...], int]:
        """(bytes to each part, -1 for those that are not made; int32 entries in all)."""
        counts = {"counter": self.counters, **self.entries()}
        for side, (token, line) in enumerate((("q", "row"), ("k", "col"))):
            if side in self.sides:
                counts |= {
                    f"counts_{token}": self.lists * self.tiles[side],
                    f"{line}_ptr": self.lists * (self.tiles[side] + 1),
                    f"{line}_tiles": self.lists * self.capacity,
                }
        if self.doubtful:
            counts["verdict"] = 1
        if not self.placed:
            counts["work"] = (self.items + self.shared) * len(WORK_FIELDS)
        return pack_parts(self.block.parts, counts, 0)

    @abstractmethod
    def fill(self, block: Any) -> None:
        """Set the numbers of the argument block that are of one kind of data alone."""

    def numbers(self, outputs: tuple[Output, ...], itemsize: int) -> bytes:
        """The argument block of the launch without its pointers.

        Args:
            outputs: of the pass.
            itemsize: bytes of an element of its tensors.
        """
        block, sizes, tile = self.block.structure(), self.sizes, self.unit.tile
        block.n[:], block.tile[:], block.tile_count[:] = (
            (sizes.n_q, sizes.n_kv), (tile.q, tile.k), self.tiles,
        )  # fmt: skip
        block.lists, block.first_side = self.lists, self.sides[0]
        block.owners, block.owner_heads = self.owners, self.owner_heads
        block.item_heads = self.item_heads
        block.group_owners, block.group_lists = self.groups
        block.result_words[:] = words_of_results(
            outputs, self.backward, itemsize, len(block.result_words)
        )
        self.fill(block)
        return bytes(block)

    @abstractmethod
    def fill_pass(self, block: Any) -> None:
        """Set the distances in `struct Attention` between arrays that the pass reads."""

    def blocks(self, launch: Launch, multiprocessors: int) -> int:
        """How many a launch has."""
        if launch.grid is Grid.results:
            return launch.resident * multiprocessors
        return self.lists * sum(self.tiles[side] for side in self.sides)


class ListsMaker:
    """Makes plans of passes with such lists for one bundle; safe to use from several threads."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        self._built, self._binder = built, binder
        self._unit = built.bundle.list_source(built.target.name)
        self._names = ", ".join(decl.name for decl in built.bundle.data)
        self._tables: Recent[Tables] = Recent()
        self._reports = cache(Reports)  # of a device
        self._lock = threading.Lock()
        self.active = self._unit is not None
        """Whether a source makes the lists of this mask."""

    def _source_of_lists(self) -> SourceUnit:
        """What makes the lists.

        Raises:
            Unlisted: there is nothing, or lists are to be checked.
        """
        if os.environ.get("MASKC_CHECK") == "1" or self._unit is None:
            raise Unlisted
        return self._unit

    def _remembered(
        self, unit: SourceUnit, sizes: Sizes, key: Hashable, make: Callable[[], Tables]
    ) -> Tables:
        """What the masks could keep at these lengths, as tables of their own.

        Raises:
            Unlisted: sequences are too long.
        """
        rows, columns = -(-sizes.n_q // unit.tile.q), -(-sizes.n_kv // unit.tile.k)
        if rows * columns > _MOST_TILES:
            raise Unlisted
        tables = self._tables.get(key)
        if tables is None:
            tables = make()
            with self._lock:
                self._tables.put(key, tables)
        return tables

    def _plan(
        self, source: SourceUnit, making: Making, mode: str, kept: Tables, wanted: Pass,
        bound: Bound, place: Place, outputs: tuple[Output, ...],
        arrays: Callable[[list[int]], tuple[int, ...]],
    ) -> ListsPlan:  # fmt: skip
        """The plan of a pass.

        Args:
            source: makes the lists.
            kept: what the masks could keep.
            arrays: see ListsPlan.

        Raises:
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        built, unit, index = self._built, making.unit, wanted.device[1]
        batches, heads = making.extents
        work = (
            None
            if unit.work is None
            else unknown_work(making.items, making.shared, making.parts or 1)
        )
        tables = replace(kept, work=work, list_batch=heads if batches > 1 else 0)
        kernel = built.kernels.on_device(unit, mode, kept.features(wanted.features), index)
        plan = launch_plan(built.bundle, unit, mode, wanted, place, bound.params, tables, outputs)
        own = kernel.prepare(plan)
        block = ATTENTION.from_buffer_copy(own.numbers)
        making.fill_pass(block)
        lists = built.kernels.on_device(source, "usual", frozenset(), index)
        *before, spoil = lists.steps(making.blocks)
        room, entries = making.room()
        return ListsPlan(
            replace(own, numbers=bytes(block)), lists, entries, making.block, tuple(before),
            (spoil,) if making.doubtful else (),
            making.numbers(outputs, built.bundle.problem.dtype.itemsize), room, arrays,
            self._reports(index), self._names,
        )  # fmt: skip
