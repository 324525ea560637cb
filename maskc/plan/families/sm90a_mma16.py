"""Schedules of the register-only templates (templates/sm90a/mma16.cu.j2 and mma16_backward.cu.j2):
tiles of 16 x 16 for rows that see very few keys.

In a forward pass a warp has a tile row. In a backward pass it has 64 elements of the gradients of a
tile column. Data go straight from global memory to the fragments of mma.sync and back. There is no
shared memory, no barrier, no tensor map and no work list. This removes the fixed latencies of small
passes (see the cycles in benchmarks/trials.md) and the dead pairs of 64 x 64 tiles.

Loads are 16 bytes wide. For q . k the elements of a row may come in any order that is the same in q
and k, so a lane loads 8 consecutive ones. Across rows, a lane loads 8 elements of four rows, and
pairs their halves. Every four lanes store 64 consecutive bytes of a row of out.

The backward pass needs masks in which every tile row has at most one tile. The cost model assumes
that every tile column has at most one, too, as in block-diagonal masks with blocks that divide 16.
Then each tile is visited once, in one launch. P and ds by keys are P and ds by queries, transposed
in registers.

Times in us on one H200 (bf16, 16 heads, D 64):

    mask                      16 x 16   64 x 64
    blocks of 16 at 4k            9.1      12.8   forward
                                 24.9      30.6   backward
    blocks of 16 at 16k          37.2      41.0   forward; memory traffic takes 32
                                 76        93     backward; memory traffic takes 64
    blocks of 32 at 16k          44        41     forward
    windows of 8, 17 at 16k      43        44     forward
    window of 40 at 16k          55        44     forward

With longer lists these kernels are slower, because every warp loads the keys of its own tiles and
waits for each of them. At D 128 they gain nothing: blocks of 16 at 16k take 72 and 71 us forward,
184 and 166 backward.
"""

from __future__ import annotations

from maskc.core.bundle import EXCLUSIVE_DQ, Grid, Launch, Mode
from maskc.core.problem import Problem, TileShape
from maskc.plan.types import Schedule

TILE = TileShape(16, 16)
"""One fragment of q or of weights."""
HEAD_DIMS = (64,)
"""The head dimensions at which these kernels are faster."""

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
                        modes=(("default", Mode((launch,))),))  # fmt: skip


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
