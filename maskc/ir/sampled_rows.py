"""Rows of a formula at some lengths: they contradict a claim in a millisecond, which isl would need
up to a second to refute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr

TRIED = (61, 61), (8192, 8192)
"""Queries and keys at which rows are looked at."""
UNEQUAL = (8192, 61), (61, 8192)
"""Likewise, where a claim about all lengths may fail that holds at equal ones."""

_PAIRS = 12
"""Pairs of neighbouring rows that are looked at."""


def sampled_rows(
    keep: Expr, numbers: Mapping[str, int], lengths: Iterable[tuple[int, int]] = TRIED
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(positions of queries, bool rows [queries, keys] of these, rows of the queries behind them).

    Args:
        keep: reads no data.
        numbers: values of its parameters and arguments.
        lengths: (n_q, n_kv).
    """
    for n_q, n_kv in lengths:
        first = np.unique(np.arange(_PAIRS, dtype=np.int64) * 2654435761 % (n_q - 1))
        first = np.union1d(first, [0, n_q - 2])
        env = {**numbers, "k": np.arange(n_kv), "n_q": n_q, "n_kv": n_kv}
        rows, after = (
            np.broadcast_to(evaluate(keep, {**env, "q": q[:, None]}), (len(q), n_kv))
            for q in (first, first + 1)
        )
        yield first + n_kv - n_q, rows, after


def have_gaps(rows: np.ndarray) -> bool:
    """Whether the keys of some row are not consecutive."""
    runs = np.diff(rows, axis=1).sum(axis=1) + rows[:, 0] + rows[:, -1]
    return bool((runs > 2).any())


def move_along(rows: np.ndarray, after: np.ndarray) -> bool:
    """Whether each row is the one of the query behind it, moved by one key."""
    return bool((rows[:, :-1] == after[:, 1:]).all())


def cross_blocks(rows: np.ndarray, keys: int) -> bool:
    """Whether some row keeps a part of a block of so many keys only."""
    starts = np.arange(0, rows.shape[1], keys)
    kept = np.add.reduceat(rows, starts, axis=1, dtype=np.int64)
    return bool(((kept > 0) & (kept < np.diff([*starts, rows.shape[1]]))).any())
