"""The CPU kernels' schedule."""

from __future__ import annotations

from maskc.core.problem import Direction, Problem, TileShape
from maskc.plan.families.family import Family
from maskc.plan.families.limits import Limits
from maskc.plan.types import Schedule

TILE = TileShape(64, 64)


def schedule(problem: Problem) -> Schedule:
    """Tile for one problem: 64 queries x 64 keys, whatever the head dimension and dtype.

    Measured with one thread on a core with AVX-512, 48 KiB of L1 and 1 MiB of L2; fp32, D 64,
    H 8, N 4096, milliseconds forward / backward:

        tile       window(512)   sinks + window(256)   block-diagonal(128)   causal
        32 x 32       28 / 63               18 / 62               9.3 / 20   101 / 354
        64 x 64       27 / 60               19 / 65               8.2 / 17    92 / 262
        128 x 128     27 / 62               23 / 76               7.9 / 16    89 / 220

    Smaller tiles load and store sums more often per product. Larger ones visit more dead pairs at
    the edges of the mask, so thin masks, the purpose of this project, lose what dense ones gain.
    With D 32 to 512 the 64 x 64 tile stayed within a tenth of the best. Its sides are multiples of
    every vector width (4, 8, 16), and a thread's scratch, all fp32 tiles, is 0.2 MiB of stack at D
    64, 1.1 MiB at D 512.

    Storage in bfloat16 or float16 changes nothing: tiles are widened when they are loaded.
    """
    tile, widest = problem.tile or TILE, max(problem.head_dim, problem.head_dim_v)
    scratch = 16 * ((tile.q + tile.k) * widest + tile.q * tile.k)
    return Schedule(
        tile,
        f"tiles of {tile.q} x {tile.k}: products run from registers, and a thread's fp32 tiles "
        f"({scratch // 1024} KiB in the backward pass) from its L2 cache",
    )


def limits(problem: Problem) -> Limits:
    """Whole vectors; a thread's fp32 tiles are on its stack."""
    sides = (16, 32, 64, 128)
    return Limits("cpu", sides, sides)


CPU = Family("cpu", {(Direction.forward, ""): schedule}, limits=limits, one_source=True)
