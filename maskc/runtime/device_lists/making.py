"""Sizes and memory of the lists that the device builds from data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

from maskc.core.abi import (
    LENGTH_THREADS,
    LIST_THREADS,
    MAX_LENGTHS,
    MAX_LISTS,
    MAX_ROWS,
    MAX_TOKENS,
    READ_TILES,
    STATE_OF_LIST,
    STATE_WORDS,
    WORK_FIELDS,
)
from maskc.core.bundle import Grid, Launch, SourceUnit
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output
from maskc.layout import (
    MAX_PARTS,
    PIECES,
    Cutting,
    cutting_of,
    heads_per_group,
    most_runs,
    room_of,
)
from maskc.layout.tiles.data_tiles import CHUNK, BlockReading
from maskc.runtime.device_lists.call import pack_parts, words_of_results
from maskc.runtime.device_lists.data_given import CUMULATIVE, Given, Source
from maskc.runtime.device_lists.lists_launch import ARRAYS, LISTS, PARTS

_READING_BLOCKS = 512
"""Blocks that read data, about, from which on they read several tiles each."""

_LINES = 128
"""Lines, for each turn of a warp through a line's candidates, from which on it finds the tiles of a
line. A block takes less time, but not all blocks run at once."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Making:
    """The lists that a pass reads, from data of any kind."""

    unit: SourceUnit
    sizes: Sizes
    given: Given
    readings: tuple[BlockReading, ...]
    """See `readings_of`."""
    backward: bool
    placed: bool
    """Whether blocks derive their work from their index, without a work list."""
    by_rows: bool
    """Whether a backward pass goes through the tiles of rows as well."""
    kept: int
    """Tiles that the mask could have, in one list."""
    band: tuple[int, int] | None = None
    """Keys that a query of a document sees, see `band_of`; None if it is no band."""
    longest: int | None = None
    """Most tokens of a document; None: unknown."""
    wide: bool = False
    """Whether constants have two words."""
    by_head: bool = False
    """Whether query heads have lists of their own."""
    packed: int = 0
    """Number of query heads packed into one tile; 0: heads are not packed."""

    @property
    def capacity(self) -> int:
        """Tiles for which a list has room."""
        rows, columns = self.tiles
        if self.by_lengths:
            longest = columns if self.longest is None else -(-self.longest // self.unit.tile.k)
            return rows * min(columns, longest)
        return room_of(self.kept, rows, columns) if self.unit.by_documents else self.kept

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

    @cached_property
    def by_lengths(self) -> bool:
        """Whether cumulative lengths alone decide the lists: queries see a band of their document,
        and a block has room for all lengths and tile rows. Tile rows then begin with documents."""
        if self.band is None:
            return False
        of_q, of_k = (self._source(side) for side in (0, 1))
        if of_q.rule != CUMULATIVE or of_k.rule != CUMULATIVE:
            return False
        lists, (rows, columns) = self.lists, self._document_tiles
        return (
            lists * (of_q.ends + of_k.ends) <= MAX_LENGTHS and lists * rows <= MAX_ROWS
            and lists <= MAX_LISTS and of_k.ends <= most_runs(columns)
            and max(self.sizes.n_q, self.sizes.n_kv) <= MAX_TOKENS
        )  # fmt: skip

    def _source(self, side: int) -> Source:
        """The documents of a side."""
        return next(self.given.sources[slot] for slot, at, _ in self.readings if at == side)

    @property
    def _document_tiles(self) -> tuple[int, int]:
        """Tile rows that begin with documents, at most, in groups of four, which a thread compares
        at once; tile columns."""
        tile, sizes = self.unit.tile, self.sizes
        rows = (sizes.n_q + self._source(0).ends * (tile.q - 1)) // tile.q
        return -(-rows // 4) * 4, -(-sizes.n_kv // tile.k)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tile rows and tile columns of a list."""
        if self.by_lengths:
            return self._document_tiles
        tile, sizes = self.unit.tile, self.sizes
        return -(-sizes.n_q // tile.q), -(-sizes.n_kv // tile.k)

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides with lists: 0 rows, 1 columns."""
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
        if self.cutting.least:
            return self.lists * self.owners
        return sizes.batch * sizes.heads_kv * self.tiles[1] if self.sharing else 0

    @cached_property
    def cutting(self) -> Cutting:
        """The rule that cuts rows of packed heads; other rows stay whole."""
        if not self.packed or self.unit.work is None:
            return Cutting(0)
        cutting = cutting_of(self.sizes.n_q * self.packed, self.unit.work)
        return cutting if max(cutting.least, cutting.fixed) < self.kept else Cutting(0)

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
        """The items for which the work list has room."""
        lines = self.lists * self.owners * self.tiles[self.backward]
        return self.cutting.room(lines, self.kept)

    @property
    def counters(self) -> int:
        """The counters of the pass, see maskc/core/abi.py."""
        return 2 + (self.shared if self.cutting.least else 0)

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

    @cached_property
    def first_tiles(self) -> tuple[int, ...]:
        """The first tile of each reading among all whose bounds are found; then their number."""
        tiles = (
            self.given.sources[slot].shape[0] * self.tiles[side] if side >= 0 else 0
            for slot, side, _ in self.readings
        )
        return tuple(accumulate(tiles, initial=0))

    @property
    def reading_tiles(self) -> tuple[int, int]:
        """Tiles for which one block reads the data, by side: one token for each thread, or more if
        there are very many tiles. Blocks find the documents of one tile of keys."""
        tile, many = self.unit.tile, self.first_tiles[-1] // _READING_BLOCKS
        if self.unit.by_documents:
            return max(1, LIST_THREADS // tile.q), 1
        of_q, of_k = (
            min(READ_TILES, max(many, LIST_THREADS // size, 1)) for size in (tile.q, tile.k)
        )
        return of_q, of_k

    @property
    def first_blocks(self) -> tuple[int, ...]:
        """The first block of each reading among those that read data; then their number."""
        blocks = []
        for slot, side, _ in self.readings:
            batches, *_ = shape = self.given.sources[slot].shape
            shares = batches * -(-self.tiles[side] // self.reading_tiles[side])
            if self.by_lengths:
                shares = batches * -(-shape[3] // LENGTH_THREADS)
            blocks.append(shares if side >= 0 else -(-prod(shape) // CHUNK))
        return tuple(accumulate(blocks, initial=0))

    @property
    def bit_words(self) -> tuple[int, ...]:
        """The words of bits of a list, by side: 32 candidates each, a line's in their own."""
        return tuple(self.kept // 32 + tiles + 1 for tiles in self.tiles)

    @property
    def lines(self) -> int:
        """Tile rows, tile columns or both of all lists."""
        return self.lists * sum(self.tiles[side] for side in self.sides)

    @property
    def line_threads(self) -> int:
        """The threads that find the tiles of a line: a warp if there are many short lines in groups
        of a block's, otherwise a block."""
        per_block = LIST_THREADS // 32
        turns = max(1, *(self.kept // self.tiles[side] // 32 for side in self.sides))
        many = self.lines > _LINES * turns and not self.cutting.least
        grouped = not any(self.tiles[side] % per_block for side in self.sides)
        return 32 if many and grouped else LIST_THREADS

    @property
    def line_blocks(self) -> int:
        if self.by_lengths:
            return -(-self.lines * 32 // LENGTH_THREADS)
        return self.lines * self.line_threads // LIST_THREADS

    @property
    def state(self) -> int:
        """int32 words in which blocks record their progress for other blocks."""
        return STATE_WORDS + STATE_OF_LIST * self.lists

    def room(self) -> tuple[tuple[int, ...], int]:
        """(bytes to each part of the lists' memory, -1 for those that are not made; int32 entries
        in all)."""
        return pack_parts(PARTS, self.counts(), 0)

    def counts(self) -> dict[str, int]:
        """int32 entries of the parts of the lists' memory that are made."""
        lists, (_, columns) = self.lists, self.tiles
        counts = {"counter": self.counters, "bounds": 4 * self.first_tiles[-1]}
        for name, source in zip(ARRAYS, self.given.sources, strict=False):
            counts[name] = prod(source.shape)
        if self.unit.by_documents:
            counts[ARRAYS[len(self.given.sources)]] = lists * self.sizes.n_kv  # where they end
            counts["starts"] = 4 * lists * columns
        for side, (token, line) in enumerate((("q", "row"), ("k", "col"))):
            if side in self.sides:
                counts |= {
                    f"bits_{token}": 2 * lists * self.bit_words[side],
                    f"counts_{token}": lists * self.tiles[side],
                    f"{line}_ptr": lists * (self.tiles[side] + 1),
                    f"{line}_tiles": lists * self.capacity,
                }
        if self.doubtful:
            counts["verdict"] = 1
        if not self.placed:
            counts["work"] = (self.items + self.shared) * len(WORK_FIELDS)
        return counts

    def numbers(self, outputs: tuple[Output, ...], itemsize: int) -> bytes:
        """The argument block of the launch without its pointers.

        Args:
            outputs: of the pass.
            itemsize: bytes of an element of its tensors.
        """
        block, sizes, tile = LISTS(), self.sizes, self.unit.tile
        block.n[:], block.tile[:], block.tile_count[:] = (
            (sizes.n_q, sizes.n_kv), (tile.q, tile.k), self.tiles,
        )  # fmt: skip
        chunked = {slot for slot, side, _ in self.readings if side < 0}
        for slot, source in enumerate(self.given.sources):
            shape, strides = source.shape, source.strides
            if slot in chunked and source.dense:  # as one row: its places need no division
                shape, strides = (1, 1, 1, prod(shape)), (0, 0, 0, 1)
            (block.source_batch[slot], block.source_head[slot], block.source_row[slot],
             block.source_step[slot]) = strides  # fmt: skip
            counts = block.batches, block.heads_of, block.rows, block.columns
            for of_slots, count in zip(counts, shape, strict=True):
                of_slots[slot] = count
            block.source_code[slot], block.rule[slot] = source.code, source.rule
            block.ends[slot] = source.ends
        self.fill_pass(block)
        first = self.first_blocks
        block.first_block[: len(first)] = first
        block.first_tile[: len(first) - 1] = self.first_tiles[:-1]
        block.reading_blocks, block.reading_tiles[:] = first[-1], self.reading_tiles
        block.lines, block.line_threads = self.lines, self.line_threads
        block.line_blocks = self.line_blocks
        block.bit_words[:], block.room[:] = self.bit_words, (self.capacity, self.capacity)
        block.lists, block.heads = self.lists, self.extents[1]
        block.first_side, block.work_side = self.sides[0], self.backward
        block.owners, block.owner_heads = self.owners, self.owner_heads
        block.item_heads, block.sharing = self.item_heads, self.sharing
        block.group_owners, block.group_lists = self.groups
        block.wide, block.most_runs = self.wide, most_runs(self.tiles[1])
        if self.band is not None:
            block.band[:] = self.band
        block.counters = self.counters
        if (cutting := self.cutting).least:
            block.part_tiles, block.fixed_tiles = cutting.least, cutting.fixed
            block.most_parts, block.pieces[:] = MAX_PARTS, PIECES
            block.item_cost, block.part_cost = cutting.item_cost, cutting.part_cost
            block.blocks, block.items = cutting.blocks, self.items
        block.result_words[:] = words_of_results(
            outputs, self.backward, itemsize, len(block.result_words)
        )
        return bytes(block)

    def fill_pass(self, block: Any) -> None:
        """Set elements from one sequence, head and row to the next of arrays as kernels read them;
        0 where all share theirs."""
        sources = self.given.sources
        for slot, source in enumerate(sources):
            batches, heads, rows, columns = source.shape
            over = rows * columns
            block.array_batch[slot] = heads * over if batches > 1 else 0
            block.array_head[slot] = over if heads > 1 else 0
            block.array_row[slot] = columns
        if self.unit.by_documents:
            block.array_batch[len(sources)] = self.sizes.n_kv if self.lists > 1 else 0

    def blocks(self, launch: Launch, multiprocessors: int) -> int:
        """Return the number of blocks of a launch."""
        if launch.grid is Grid.results:
            return launch.resident * multiprocessors
        return self.first_blocks[-1] + (1 if self.by_lengths else 2) * self.line_blocks
