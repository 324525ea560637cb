"""alpha-entmax of one row of scores, in float64, by bisection.

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
    # The weight of the largest score is at most 1, and of all n scores, were they equal, 1 / n.
    low, high = top, top - np.expm1(-a * np.log(len(scores))) / a
    while low < (middle := (low + high) / 2) < high:
        if _power(scores, middle, a, 1 / a).sum() >= 1:
            low = middle
        else:
            high = middle
    weights = _power(scores, low, a, 1 / a)
    return weights, _power(scores, low, a, 1 / a - 1), low


def _power(scores: np.ndarray, lse: float, a: float, exponent: float) -> np.ndarray:
    """max(0, 1 + a * (scores - lse)) ** exponent, 0 where that is 0 ** 0."""
    past = a * (scores - lse)
    kept = past > -1
    return np.where(kept, np.exp(exponent * np.log1p(np.where(kept, past, 0))), 0)
