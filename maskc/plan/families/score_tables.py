"""Launches that compute gradients of a formula's tables on tensor cores.

They run after the other launches of a backward pass. The main launch has no registers left for the
contributions of pairs, and a warp can sum pairs of one entry if it holds them together. Every pair
is recomputed, with two of the five products of a pass. The launches exit at once if a call needs no
such gradient.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.core import score as S
from maskc.core.bundle import Grid, Launch, Mode
from maskc.core.problem import Problem, TileShape

SHARING = 2
"""Blocks that divide a tile column."""


def reads_tables(problem: Problem) -> bool:
    """Whether the score formula reads numbers that may have a gradient."""
    return problem.score is not None and bool(S.reads(problem.score.logit))


def with_tables(mode: Mode, problem: Problem, tile: TileShape, threads: int) -> Mode:
    """The mode with these launches, where the formula reads tables.

    Args:
        threads: of a block.
    """
    if not reads_tables(problem):
        return mode
    pairs = Launch(
        "attention_backward_pairs", Grid.tile_columns, threads, per_block=tile.k // SHARING
    )
    tables = Launch("attention_backward_tables", Grid.queries, threads, per_block=tile.q)
    return replace(mode, launches=(*mode.launches, pairs, tables))
