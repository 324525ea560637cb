"""Sizes of selections on the device for the calls of one signature, and the argument block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from maskc.core.abi import READ_TILES, STATE_OF_LIST, STATE_WORDS, WORK_FIELDS
from maskc.core.bundle import Grid, Launch, SourceUnit
from maskc.core.dtypes import E4M3
from maskc.core.selection import Score, Selection
from maskc.core.sizes import Sizes
from maskc.layout import sharing
from maskc.layout.topk.sizes import (
    COLUMNS,
    FEW_ROWS,
    ITEMS,
    MANY_BLOCKS,
    ROWS,
    THREADS,
    shared_bytes,
    turn_of,
)
from maskc.runtime.device_lists.call import pack_parts
from maskc.runtime.device_lists.lists_launch import ARRAYS, LISTS, SEEN
from maskc.runtime.device_lists.topk_launch import SELECTED, WORKSPACE, Given, block_of
from maskc.runtime.launch.cuda import Step

_WARPS = THREADS // 32
TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, E4M3: 3}
"""The types of tensors that rank, as the kernel numbers them."""


@dataclass(frozen=True, eq=False)
class Vote:
    """One selection in calls of given sizes."""

    selection: Selection
    sizes: Sizes
    given: Given
    head_dim: int
    most_shared: int
    """Bytes of shared memory of a block of threads."""

    @property
    def joins(self) -> bool:
        """Whether blocks of tokens are joined to one row each before they are multiplied."""
        return self.selection.score in (Score.qk, Score.block_mean)

    @property
    def rows(self) -> int:
        """Blocks of queries."""
        return -(-self.sizes.n_q // self.selection.q_block)

    @property
    def columns(self) -> int:
        """Blocks of keys."""
        return -(-self.sizes.n_kv // self.selection.block)

    @property
    def words(self) -> int:
        """The words of a row's bits."""
        return -(-self.columns // COLUMNS)

    @cached_property
    def turn(self) -> int:
        """Blocks of queries that a thread block ranks; 0 if there are too many keys for one."""
        fit = turn_of(self.head_dim, self.columns, self.most_shared)
        blocks = self.batches * self.owners[0] * -(-self.rows // ROWS)
        return min(fit, FEW_ROWS) if blocks < MANY_BLOCKS else fit

    @cached_property
    def batches(self) -> int:
        """Sequences with their own choice; 1 if all have the same scores."""
        shared = not self.joins and not any(x.strides[0] for x in self.given if x)
        return 1 if shared else self.sizes.batch

    @cached_property
    def owners(self) -> tuple[int, int, int]:
        """(who choose for themselves in a sequence, query heads whose scores each of them joins,
        query heads to which a choice is written)."""
        scores = self.given[0]
        by_head = self.joins or (
            self.selection.score is Score.given and scores is not None and bool(scores.strides[1])
        )
        groups = sharing(self.selection.share, self.sizes)
        if len(groups) > 1 and by_head:
            return len(groups), len(groups[0]), len(groups[0])
        return 1, len(groups[0]) if by_head else 1, 1

    @property
    def blocks(self) -> int:
        """Blocks of threads that rank."""
        return self.batches * self.owners[0] * -(-self.rows // self.turn)

    @property
    def heads(self) -> int:
        """Heads that have bits of their own."""
        return self.owners[0] * self.owners[2]

    @property
    def joined(self) -> tuple[int, int]:
        """Rows that stand for blocks of queries and of keys."""
        if not self.joins:
            return 0, 0
        sizes, several = self.sizes, self.selection.q_block > 1
        return (
            sizes.batch * sizes.heads_q * self.rows if several else 0,
            sizes.batch * sizes.heads_kv * self.columns,
        )


@dataclass(frozen=True, eq=False)
class Choosing:
    """All selections of a pass, and the lists that it reads."""

    unit: SourceUnit
    votes: tuple[Vote, ...]
    sizes: Sizes
    given: Given
    backward: bool
    ordered: bool
    """Whether blocks of the pass find their work from their index: there is no work list."""
    strides: tuple[tuple[int, ...], tuple[int, ...]]
    head_dim: int
    cases: int
    """The cases: heads with the same mask and choice."""
    room: int
    """Tiles for which a list has room."""
    items: int
    merges: int
    """Rows of the work list."""

    @property
    def tiles(self) -> tuple[int, int]:
        return self.unit.tiles(self.sizes.n_q, self.sizes.n_kv)

    @property
    def lists(self) -> int:
        """The lists of every sequence, or of all, one per case."""
        return self.cases * max(vote.batches for vote in self.votes)

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides with lists: 0 rows, 1 columns."""
        return (0, 1) if self.ordered and self.backward else (int(self.backward),)

    @property
    def state(self) -> int:
        """int32 words in which blocks that build lists record their progress for others."""
        return STATE_WORDS + STATE_OF_LIST * self.lists

    def _parts(self) -> Iterator[tuple[str, int]]:
        """Yield the parts of the memory and their int32 entries."""
        yield "state", self.state
        yield "counter", 2
        for i, vote in enumerate(self.votes):
            for token, rows in zip("qk", vote.joined, strict=True):
                if rows:
                    yield f"joined_{token}{i}", rows * self.head_dim
            yield ARRAYS[i], vote.batches * vote.heads * vote.rows * vote.words
            yield SEEN[i], 2 * self.lists * self.tiles[0] * vote.words
        for side, (token, line) in enumerate((("q", "row"), ("k", "col"))):
            if side in self.sides:
                tiles, words = self.tiles[side], -(-self.tiles[1 - side] // COLUMNS)
                yield f"bits_{token}", 2 * self.lists * tiles * words
                yield f"counts_{token}", self.lists * tiles
                yield f"{line}_ptr", self.lists * (tiles + 1)
                yield f"{line}_tiles", self.lists * self.room
        if not self.ordered:
            yield "work", (self.items + self.merges) * len(WORK_FIELDS)

    def places(self, start: int) -> tuple[tuple[int, ...], int]:
        """(bytes to each part of WORKSPACE, -1 for those that are not made; int32 entries in all)
        of a workspace whose first `start` entries are taken."""
        return pack_parts(WORKSPACE, dict(self._parts()), start)

    @property
    def item_blocks(self) -> int:
        """Blocks that write the items, if there are any."""
        return 0 if self.ordered else -(-(self.items + self.merges) // ITEMS)

    @property
    def reading_tiles(self) -> int:
        """Tile rows that a block reads the choice of: a thread has a word of one."""
        return max(1, min(READ_TILES, THREADS // max(vote.words for vote in self.votes)))

    @property
    def reading_blocks(self) -> int:
        return self.lists * -(-self.tiles[0] // self.reading_tiles)

    @property
    def lines(self) -> int:
        """Tile rows, tile columns or both of all lists."""
        return self.lists * sum(self.tiles[side] for side in self.sides)

    def numbers(self) -> tuple[bytes, bytes]:
        """`struct Selected`, and `struct Lists`, without their pointers."""
        votes, sizes = self.votes, self.sizes
        owners = [vote.owners for vote in votes]
        index_q, scores = self.given[1], self.given[0]
        batch, head, row = zip(*map(self.array_strides, range(len(votes))), strict=True)
        chosen = block_of(SELECTED, {
            "q_stride": self.strides[0], "k_stride": self.strides[1],
            "ranked_stride": [n for x in self.given for n in (x.strides if x else (0,) * 4)],
            "ranked_type": [TYPES[x.array.dtype] if x else 0 for x in self.given],
            "cells": int(scores is not None
                         and scores.array.shape[-2:] != (sizes.n_q, sizes.n_kv)),
            "index_heads": index_q.array.shape[1] if index_q else 0,
            "index_dim": index_q.array.shape[3] if index_q else 0,
            "bits_batch": batch, "bits_head": head, "n": (sizes.n_q, sizes.n_kv),
            "batch": sizes.batch, "heads_q": sizes.heads_q, "heads_kv": sizes.heads_kv,
            "rows": [v.rows for v in votes], "columns": [v.columns for v in votes], "words": row,
            "turn": [v.turn for v in votes], "owners": [owner[0] for owner in owners],
            "voters": [owner[1] for owner in owners], "copies": [owner[2] for owner in owners],
            "first_block": _starts([v.blocks for v in votes]),
            "first_join": _starts([sum(v.joined) for v in votes]), "state_words": self.state,
        })  # fmt: skip
        return chosen, block_of(LISTS, {
            "array_batch": batch, "array_head": head, "array_row": row,
            "n": (sizes.n_q, sizes.n_kv), "tile": (self.unit.tile.q, self.unit.tile.k),
            "tile_count": self.tiles, "lists": self.lists, "heads": self.cases,
            "room": (self.room, self.room), "reading_blocks": self.reading_blocks,
            "reading_tiles": (self.reading_tiles,) * 2, "lines": self.lines,
            "line_blocks": self.lines, "line_threads": THREADS,
            "item_blocks": self.item_blocks, "items": self.items,
            "merges": self.merges, "first_side": self.sides[0], "work_side": self.backward,
            "counters": 2,
        })  # fmt: skip

    def array_strides(self, number: int) -> tuple[int, int, int]:
        """Strides of a selection's bits as an array of the pass: of sequences, heads and rows."""
        vote = self.votes[number]
        alone = vote.rows * vote.words
        return (
            vote.heads * alone if vote.batches > 1 else 0, alone if vote.heads > 1 else 0,
            vote.words,
        )  # fmt: skip

    def blocks(self, launch: Launch, _: int) -> int:
        match launch.grid:
            case Grid.keys:
                return -(-sum(sum(vote.joined) for vote in self.votes) // _WARPS)
            case Grid.queries:
                return sum(vote.blocks for vote in self.votes)
        return self.reading_blocks + 2 * self.lines + self.item_blocks

    def steps(self, made: tuple[Step, ...]) -> tuple[Step, ...]:
        """The launches with no more shared memory than these lengths need."""
        shared = max(shared_bytes(self.head_dim, vote.turn, vote.columns) for vote in self.votes)
        return tuple(step._replace(shared=shared) if step.shared else step for step in made)


def _starts(counts: list[int]) -> list[int]:
    return [0, *accumulate(counts[:-1])]


def cases_of(
    head_variant: tuple[int, ...], reads: list[list[int]], votes: tuple[Vote, ...], heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """The heads that have the same mask and choose together.

    Args:
        head_variant: which mask each head has; empty if all have the first.
        reads: for every mask the selections that it reads.
        heads: query heads.

    Returns:
        int32 [cases, 2]: the mask, and the first head; int32 [heads]: the case of each.
    """
    known: dict[tuple[int, ...], int] = {}
    cases: list[tuple[int, int]] = []
    of_head = np.zeros(heads, np.int32)
    for head in range(heads):
        variant = head_variant[head] if head_variant else 0
        owns = (head // votes[i].owners[2] if votes[i].owners[0] > 1 else 0 for i in reads[variant])
        case = known.setdefault((variant, *owns), len(known))
        if case == len(cases):
            cases.append((variant, head))
        of_head[head] = case
    return np.array(cases, np.int32), of_head
