"""The launches that find gradients of a formula's tables on tensor cores.

They follow the others of a backward pass: the main launch has no registers for what pairs add to
tables, and pairs of one entry are better added up where a warp has them side by side. Every pair is
looked at once more, two of a pass's five products; launches leave at once where a call wants no
such gradient.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.core import score as S
from maskc.core.bundle import Grid, Launch, Mode
from maskc.core.problem import Problem


def reads_tables(problem: Problem) -> bool:
    """Whether the formula of the score reads numbers that may have a gradient."""
    return problem.score is not None and bool(S.reads(problem.score.logit))


def with_tables(mode: Mode, problem: Problem, queries: int, threads: int) -> Mode:
    """The mode with these launches, where the formula reads tables.

    Args:
        queries: of a tile row.
        threads: of a block.
    """
    if not reads_tables(problem):
        return mode
    pairs, tables = (
        Launch(f"attention_backward_{name}", Grid.queries, threads, per_block=queries)
        for name in ("pairs", "tables")
    )
    return replace(mode, launches=(*mode.launches, pairs, tables))
