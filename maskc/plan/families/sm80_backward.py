"""The mma.sync backward pass: tile, warps, registers and shared memory per head dimension.

A block holds a tile of keys and values, 16 or 32 keys per warp, and loops over tiles of queries.
The sums of dk and dv need FRAGMENTS * HEAD_DIM registers per thread. Together with scores and a
share of dq they fit up to HEAD_DIM 128. Above that, two blocks share the keys: one computes dk, the
other dv. Shared memory stays within the 99 KiB of compute capability 8.6 and 8.9.
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core.bundle import Grid, Launch, Mode
from maskc.core.problem import Feature, Problem, TileShape
from maskc.core.target import NARROW, TARGETS
from maskc.plan.families.family import L2_BYTES
from maskc.plan.families.score_tables import with_tables
from maskc.plan.types import Schedule

PLAIN_THREADS = 256
"""The threads of the launches before and after, which have a block per tile row."""

_SUMS = 1
"""Floats per query for sums of a tile row that belong to its head."""


@dataclass(frozen=True, slots=True)
class Sm80BackwardSchedule(Schedule):
    """Numbers of the mma.sync backward template."""

    score_queries: int = 32
    """Queries of the tile whose scores are in registers at a time."""
    divided: bool = False
    """Whether separate blocks compute dk and dv of a tile column."""
    one_place: bool = False
    """Whether gradients of scores reuse the memory of dout's tile."""
    group_queries: int = 1
    """Tokens whose queries and gradients of outputs take L2_BYTES: heads run in such groups."""

    @property
    def score_rows(self) -> int:
        return self.score_queries


_TILES = {
    32: (64, 128, 4, 3, 32),
    64: (64, 128, 4, 2, 32),
    96: (64, 64, 4, 2, 64),
    128: (64, 64, 4, 2, 64),
    192: (32, 64, 4, 1, 32),
    256: (32, 64, 4, 1, 32),
    512: (64, 64, 8, 1, 16),
}
"""For each head dimension: queries and keys of a tile, warps, blocks per multiprocessor, queries
whose scores are in registers at a time."""


def backward_schedule(problem: Problem) -> Sm80BackwardSchedule:
    """The schedule of a backward pass."""
    dim, target = problem.head_dim, TARGETS["sm_80"]
    queries, keys, warps, blocks, at_once = _TILES[dim]
    tile, divided, wide = TileShape(queries, keys), dim > 128, dim > NARROW
    room, one_place = shared_bytes(tile, dim, False), False
    if wide:
        room = wide_shared_bytes(tile, dim, at_once)
    elif room > target.shared_memory:
        room, one_place = shared_bytes(tile, dim, True), True
    key_fragments = keys // warps * (1 + wide)
    return Sm80BackwardSchedule(
        tile,
        f"tiles of {queries} x {keys}, {warps} warps of {key_fragments} keys"
        + (", of which two share theirs and have half of the columns each" if wide else "")
        + (", dk and dv by blocks of their own" if divided else "")
        + (", dq by tile rows" if wide else "")
        + f", {room / 1024:g} KiB of shared memory",
        warps=warps,
        min_blocks=blocks,
        shared_bytes=room,
        modes=tuple(
            (name, with_tables(mode, problem, tile, PLAIN_THREADS))
            for name, mode in _modes(tile, room, 32 * warps, 1 + divided, wide)
        ),
        row_floats=(0 if wide else dim) + 2 + _SUMS,
        data_rows=dim <= 128,  # at 256 full tiles take 4 % longer with them, on an H100
        score_queries=at_once,
        divided=divided,
        one_place=one_place,
        group_queries=L2_BYTES // (4 * dim),
    )


def shared_bytes(tile: TileShape, head_dim: int, one_place: bool) -> int:
    """Bytes of struct Shared: a tile each of k, v, q and dout, gradients of scores, lse and delta.

    `one_place`: these gradients lie where dout was.
    """
    gradients = 16 if one_place else 2 * tile.q * tile.k
    return 4 * head_dim * (tile.q + tile.k) + gradients + 8 * tile.q


def wide_shared_bytes(tile: TileShape, head_dim: int, step: int) -> int:
    """Bytes of shared memory where two warps share rows: a tile of one tensor, a step of two, lse
    and delta."""
    return 2 * head_dim * (tile.k + 2 * step) + 16 * step


def _modes(
    tile: TileShape, room: int, threads: int, blocks: int, by_rows: bool
) -> tuple[tuple[str, Mode], ...]:
    """Return the default mode, in which columns add to dq, and a bitwise deterministic mode.

    Args:
        blocks: of a tile column.
        by_rows: whether dq always has a separate launch: then there is one mode.
    """
    prepare = Launch("attention_backward_prepare", Grid.queries, PLAIN_THREADS, per_block=tile.q)
    mean = Launch(
        "attention_backward_mean", Grid.queries, threads, room, tile.q, feature=Feature.entmax
    )
    few = Launch("attention_backward_few", Grid.few, PLAIN_THREADS)
    rows = Launch("attention_backward_rows", Grid.queries, threads, room, tile.q)
    main = Launch("attention_backward", Grid.tile_columns, threads, room, tile.k // blocks)
    finish = Launch("attention_backward_finish", Grid.queries, PLAIN_THREADS, per_block=tile.q)
    in_order = (prepare, mean, few, rows, main, finish)
    if by_rows:
        return (("default", Mode(in_order)),)
    return (
        ("default", Mode((prepare, mean, few, main, finish))),
        ("deterministic", Mode(in_order, "DETERMINISTIC")),
    )
