"""Tile sizes of the CPU kernels."""

from __future__ import annotations

from maskc.core.problem import Problem, TileShape
from maskc.plan.types import Schedule


def schedule(problem: Problem) -> Schedule:
    """The tile for one problem.

    A thread's working set is a handful of fp32 tiles (q, k, v, the scores, the sums), and must
    lie in its L2 cache.
    """
    widest = max(problem.head_dim, problem.head_dim_v)
    side = 64 if widest <= 256 else 32
    reason = f"tiles of {side} x {side}: one thread's fp32 tiles stay in its L2 cache"
    return Schedule(TileShape(side, side), reason)
