"""Plans of passes whose tile lists are made on the device from data there: sizes, memory and
launches.

What a mask may keep at most, whatever its data are, is laid out on the host, once per lengths; the
device leaves out the tiles that data rule out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from maskc.core.bundle import DETERMINISTIC, Bundle, Grid, Launch, SourceUnit
from maskc.core.layout import MAX_TILES
from maskc.core.problem import Direction, Feature
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.packing import packed
from maskc.dispatch.programs import Emitted
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import MAX_ITEMS, MOST_PARTS, blocks_at_once
from maskc.layout.tiles.data_tiles import CHUNK, readings_of, split
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked, Unlisted, unknown_work
from maskc.runtime.device_lists.data_given import Reader
from maskc.runtime.device_lists.lists_launch import ARRAYS, DATA, ListsPlan
from maskc.runtime.device_lists.making import ListsMaker, Making
from maskc.runtime.launch.built import BuiltBundle

_MOST_ENTRIES = 1 << 28
"""The most entries of the memory of lists, of four bytes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DataMaking(Making):
    """The lists that a pass reads, from any data."""

    readings: tuple[tuple[int, int, bool], ...]
    """See `readings_of`."""
    wide: bool
    """Whether constants have two words."""

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

    def entries(self) -> dict[str, int]:
        """The arrays as kernels read them, bounds of tiles, and bits of candidates."""
        counts = {"bounds": 4 * self.first_blocks[-1]}
        for name, source in zip(ARRAYS, self.given.sources, strict=False):
            batches, heads, rows, columns = source.shape
            counts[name] = batches * heads * rows * columns
        for side in self.sides:
            counts[f"bits_{'qk'[side]}"] = 2 * self.lists * self.bit_words[side]
        return counts

    def fill(self, block: Any) -> None:
        """Set the rest of `struct DataLists`."""
        for slot, source in enumerate(self.given.sources):
            (block.source_batch[slot], block.source_head[slot], block.source_row[slot],
             block.source_step[slot]) = source.strides  # fmt: skip
            (block.batches[slot], block.heads_of[slot], block.rows[slot],
             block.columns[slot]) = source.shape  # fmt: skip
            block.source_code[slot], block.rule[slot] = source.code, source.rule
            block.ends[slot] = source.ends
        self.fill_pass(block)
        first = self.first_blocks
        block.first_block[: len(first)] = first
        block.bit_words[:], block.room[:] = self.bit_words, (self.kept, self.kept)
        block.heads, block.wide = self.extents[1], self.wide
        block.sharing, block.work_side = self.sharing, self.backward
        block.counters = self.counters
        if self.parts and (rule := self.unit.work) is not None:
            block.parts, block.most_parts = self.parts, MOST_PARTS
            block.part_tiles[:], block.item_tiles = self.part_bounds, rule.uneven_tiles
            block.blocks = blocks_at_once(rule)

    def fill_pass(self, block: Any) -> None:
        """Set elements from one sequence, head and row to the next of arrays as kernels read them;
        0 where all share theirs."""
        for slot, source in enumerate(self.given.sources):
            batches, heads, rows, columns = source.shape
            over = rows * columns
            block.array_batch[slot] = heads * over if batches > 1 else 0
            block.array_head[slot] = over if heads > 1 else 0
            block.array_row[slot] = columns

    def blocks(self, launch: Launch, multiprocessors: int) -> int:
        if launch.grid is Grid.tiles:
            return self.first_blocks[-1]
        return super().blocks(launch, multiprocessors)


def _arrays(parts: list[int]) -> tuple[int, ...]:
    """The parts of the memory of lists that the pass reads as arrays."""
    return tuple(parts[: len(ARRAYS)])


class DataLists(ListsMaker):
    """Makes such plans for masks that read any data."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        super().__init__(built, binder)
        bundle = built.bundle
        self._reader = Reader(bundle.data, bundle.arrays)
        keeps = [variant.keep for variant in bundle.variants]
        self._readings = readings_of(keeps, bundle.arrays)

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
        return Bound(params, {}, key, given)

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> ListsPlan:  # fmt: skip
        """How a pass runs over some tokens; arguments as in SourceSelector.plan.

        Raises:
            Unlisted: sequences are too long or too many, or lists are to be checked.
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        source, bundle, given = self._source_of_lists(), self._built.bundle, bound.given
        program, place = self._program(unit, wanted, bound, place)
        unit, mode = program.unit, program.mode
        by_head = bool(bundle.head_variant) or any(x.shape[1] > 1 for x in given.sources)
        kept = self._kept(unit, place.sizes, bound, wanted.direction, by_head)
        placed = unit.work is None or mode == DETERMINISTIC
        ptr = dict(kept.parts)["row_ptr"]
        making = DataMaking(
            block=DATA, unit=unit, sizes=place.sizes, given=given, readings=self._readings,
            backward=wanted.direction is Direction.backward, placed=placed, by_head=by_head,
            by_rows=placed or Feature.entmax in wanted.features,
            kept=int((ptr[:, -1] - ptr[:, 0]).max()), wide=kept.wide, packed=place.packed,
        )  # fmt: skip
        too_many = making.lists * making.kept > MAX_TILES or making.items > MAX_ITEMS
        if too_many or making.room()[1] > _MOST_ENTRIES:
            raise Unlisted
        return self._plan(source, making, mode, kept, wanted, bound, place, outputs, _arrays)

    def _program(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place
    ) -> tuple[Emitted, Place]:  # fmt: skip
        """The program, and the tokens: heads as rows of one tile where they fit."""
        bundle, selector = self._built.bundle, self._built.selector
        shapes = {
            name: np.broadcast_to(np.int32(0), source.shape)
            for name, source in zip(bundle.arrays, bound.given.sources, strict=True)
        }
        fit = packed(bundle, unit, wanted, replace(bound, arrays=shapes), place)
        if fit is not None and fit[0].unit.work is not None:
            return fit
        return selector.choose(unit, wanted, bound, place), place

    def _kept(
        self, unit: SourceUnit, sizes: Sizes, bound: Bound, direction: Direction, by_head: bool
    ) -> Tables:  # fmt: skip
        """What the masks could keep at these lengths: for each of the heads, or once for all."""
        params = bound.params
        heads = sizes.heads_q if by_head else 0
        key = (unit.key, direction, sizes.n_q, sizes.n_kv, tuple(params.values()), heads)

        def make() -> Tables:
            own = replace(unit, work=None)
            bundle = _without_data(self._built.bundle)
            tables = make_tables(bundle, own, sizes, params, {}, direction, True)
            tables = replace(tables, work=unknown_work(0), adders=None)
            return _of_heads(tables, bundle, own, sizes, params) if by_head else tables

        return self._remembered(unit, sizes, key, make)


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
