"""The selection of topk, by sorting.

A candidate is a block of `block` keys. The queries of a block of `q_block`, on all the heads that
share, select together: a candidate's score is the mean of the scores of those of its pairs that
the mask allows, and a candidate with no such pair is none. NaN ranks below every number, -inf
included; equal scores (and NaN among NaN) go to the lower index.
"""

from __future__ import annotations

import math

import numpy as np


def select(allowed: np.ndarray, scores: np.ndarray, k: int, block: int, q_block: int) -> np.ndarray:
    """The pairs in the `k` best candidates of each block of queries.

    Args:
        allowed: bool [heads, n_q, n_kv], the heads that select together.
        scores: float64, one per pair [heads, n_q, n_kv] or, where blocks were scored already,
            [heads, query blocks, key blocks].

    Returns:
        bool [n_q, n_kv]; the caller intersects it with what each head allows.
    """
    heads, n_q, n_kv = allowed.shape
    chosen = np.zeros((n_q, n_kv), dtype=bool)
    if heads == block == q_block == 1:  # candidates are pairs: there is nothing to average
        for row in range(n_q):
            (keys,) = np.nonzero(allowed[0, row])
            values = scores[0, row, keys]
            none = np.isnan(values)
            chosen[row, keys[np.lexsort((keys, np.where(none, 0.0, -values), none))[:k]]] = True
        return chosen
    for top in range(0, n_q, q_block):
        rows = slice(top, top + q_block)
        ranked = []
        for left in range(0, n_kv, block):
            columns = slice(left, left + block)
            live = allowed[:, rows, columns]
            if not live.any():
                continue
            if scores.shape == allowed.shape:
                score = _mean(scores[:, rows, columns][live])
            else:
                cells = scores[:, top // q_block, left // block]
                score = _mean(cells[live.any(axis=(1, 2))])
            ranked.append((math.isnan(score), 0.0 if math.isnan(score) else -score, left))
        for _, _, left in sorted(ranked)[:k]:
            chosen[rows, left : left + block] = True
    return chosen


def _mean(values: np.ndarray) -> float:
    if not np.isfinite(values).all():
        return float(sum(values.tolist()))
    return math.fsum(values.tolist()) / len(values)
