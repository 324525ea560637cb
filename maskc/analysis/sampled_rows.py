"""Rows of a formula at some lengths: they contradict a claim in a millisecond, which isl would need
up to a second to refute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr

TRIED = 61, 8192
"""Numbers of tokens at which rows are looked at."""

_PAIRS = 12
"""Pairs of neighbouring rows that are looked at."""


def sampled_rows(
    keep: Expr, numbers: Mapping[str, int]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(queries, bool rows [queries, keys] of these, rows of the queries behind them), at lengths
    n_q = n_kv.

    Args:
        keep: reads no data.
        numbers: values of its parameters and arguments.
    """
    for n in TRIED:
        first = np.unique(np.arange(_PAIRS, dtype=np.int64) * 2654435761 % (n - 1))
        first = np.union1d(first, [0, n - 2])
        env = {**numbers, "k": np.arange(n), "n_q": n, "n_kv": n}
        rows, after = (
            np.broadcast_to(evaluate(keep, {**env, "q": q[:, None]}), (len(q), n))
            for q in (first, first + 1)
        )
        yield first, rows, after


def have_gaps(rows: np.ndarray) -> bool:
    """Whether the keys of some row are not consecutive."""
    runs = np.diff(rows, axis=1).sum(axis=1) + rows[:, 0] + rows[:, -1]
    return bool((runs > 2).any())
