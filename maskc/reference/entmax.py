"""alpha-entmax of one row of scores, in float64, by Newton's steps.

Peters, Niculae and Martins, 2019. With a = alpha - 1 in (0, 1], the weights are

    p_k = max(0, a * s_k - tau) ** (1 / a) = max(0, 1 + a * (s_k - lse)) ** (1 / a)

for the one tau = a * lse - 1 that makes them sum to 1. A row without keys, or with none but -inf,
has no weight and lse -inf.
"""

from __future__ import annotations

import numpy as np


def entmax(scores: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights float64 [n], their derivatives u = p ** (2 - alpha) [n], and lse.

    u is 0 where p is; with lse as a function of the scores, dp = u * (ds - sum(u * ds) / sum(u)).

    Args:
        scores: float64 [n]; a NaN makes all NaN.
        alpha: above 1, at most 2.
    """
    a = alpha - 1
    top = float(np.max(scores, initial=-np.inf))
    if top == -np.inf:
        return np.zeros(scores.shape), np.zeros(scores.shape), top
    if not np.isfinite(top):
        return np.full(scores.shape, np.nan), np.full(scores.shape, np.nan), np.nan
    # The sum of the weights is convex in lse and falls: from the left no step passes the lse that
    # makes it 1. At the start the largest weight alone is 1; in the end rounding stops the steps.
    lse, last = top, -np.inf
    while lse > last:
        weights, slopes = _powers(scores, lse, a)
        lse, last = lse + (weights.sum() - 1) / slopes.sum(), lse
    return weights, slopes, last


def _powers(scores: np.ndarray, lse: float, a: float) -> tuple[np.ndarray, np.ndarray]:
    """max(0, 1 + a * (scores - lse)) to the powers 1 / a and 1 / a - 1; 0 where that is 0 ** 0."""
    past = a * (scores - lse)
    kept = past > -1
    log = np.log1p(np.where(kept, past, 0))
    return np.where(kept, np.exp(log / a), 0), np.where(kept, np.exp((1 / a - 1) * log), 0)
