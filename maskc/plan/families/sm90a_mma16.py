"""Schedules of the register-only templates (templates/sm90a/mma16.cu.j2 and mma16_backward.cu.j2):
tiles of 16 x 16 for rows that see very few keys.

A warp has a tile row (forward), or 64 elements of the gradients of a tile column (backward),
straight from global memory to the fragments of mma.sync and back: no shared memory, no barriers, no
tensor maps, no work list. This removes the fixed latencies of small passes (see the cycles in
maskc/plan/families/sm90a.py) and the dead pairs of 64 x 64 tiles.

Loads take 16 bytes. Along a row any order of its elements will do for q . k, if it is the same in
both, so a lane has 8 consecutive ones; across rows a lane has 8 elements of four rows, whose halves
are put together in pairs; out leaves as 64 consecutive bytes of a row for every four lanes.

The backward pass runs where no tile row has several tiles, and counts as its cost only where no
tile column has (block-diagonal masks of blocks that divide 16): everything once, in one launch. P
and ds by keys are those by queries, transposed in registers.

On one H200 (bf16, 16 heads, D 64), compared with tiles of 64 x 64: blocks of 16 at 4k 9.1 us and
12.8 forward, 24.9 and 30.6 backward; at 16k 37.2 and 41.0, 76 and 93 (memory takes 32 and 64). For
longer lists it loses, as every warp loads the keys of its tiles itself and waits for each: blocks
of 32 at 16k 44 and 41 us, windows of 8 and 17 keys 43 and 44, of 40 55 and 44. At D 128 it gains
nothing: blocks of 16 at 16k 72 and 71 us, 184 and 166.
"""

from __future__ import annotations

from maskc.core.bundle import EXCLUSIVE_DQ, Grid, Launch, Mode
from maskc.core.problem import Problem, TileShape
from maskc.plan.types import Schedule

TILE = TileShape(16, 16)
"""One fragment of q or of weights."""
HEAD_DIMS = (64,)
"""The head dimensions at which it gains anything."""

_FORWARD = {64: (4, 4)}
"""For each head dimension: warps of a block, blocks per multiprocessor. With one block more, 96 and
168 registers, both spill."""
_BACKWARD = {64: (4, 2)}
SPAN = 64
"""Elements of dq, dk and dv that a warp of the backward pass has: with all 128 it spills."""


def forward_schedule(problem: Problem) -> Schedule:
    """The schedule of a forward pass, for one of HEAD_DIMS."""
    warps, blocks = _FORWARD[problem.head_dim]
    launch = Launch(
        "attention_forward", Grid.queries, 32 * warps, per_block=warps * TILE.q, resident=blocks
    )
    reason = f"tiles of {TILE.q} x {TILE.k}, a warp for a row of them, in registers"
    return Schedule(TILE, reason, warps=warps, min_blocks=blocks,
                        modes=(("usual", Mode((launch,))),))  # fmt: skip


def backward_schedule(problem: Problem) -> Schedule:
    """The schedule of a backward pass, for one of HEAD_DIMS."""
    warps, blocks = _BACKWARD[problem.head_dim]
    spans = problem.head_dim // SPAN
    launch = Launch(
        "attention_backward", Grid.sides, 32 * warps, per_block=warps * TILE.k // spans,
        resident=blocks,
    )  # fmt: skip
    several = f"{spans} warps" if spans > 1 else "a warp"
    reason = f"tiles of {TILE.q} x {TILE.k}, {several} for each, in registers"
    modes = ((EXCLUSIVE_DQ, Mode((launch,))),)
    return Schedule(TILE, reason, warps=warps, min_blocks=blocks, modes=modes)
