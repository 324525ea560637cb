"""alpha-entmax of rows of scores by bisection, in NumPy or torch: the definition for tests of
results.

`maskc.reference.entmax` is the same for one row; tests compare them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.verify.case_tensors import library

_STEPS = 64
"""Halvings of an interval of at most 1."""


def weights(s: Any, alpha: float) -> tuple[Any, Any]:
    """(weights [rows, keys], lse [rows]); of a row without scores 0 and -inf.

    With a = alpha - 1 and tau = a * lse - 1, weights are max(0, a * s - tau) ** (1 / a).

    Args:
        s: [rows, keys], -inf where a key is not seen; fp64 or fp32.
        alpha: above 1, at most 2.
    """
    xp, a = library(s), alpha - 1
    some = (s > -np.inf).any(0)  # keys that nobody sees cost nothing
    scores = s[:, some]
    p = xp.zeros_like(s)
    if not scores.shape[1]:
        return p, scores.sum(1) - np.inf
    top = xp.amax(scores, 1)
    empty = xp.isneginf(top)
    top = xp.where(empty, xp.zeros_like(top), top)
    z = a * (scores - top[:, None])
    seen = (scores > -np.inf).sum(1).clip(1)
    # At the lower end the best key alone has weight 1; at the upper all n would have 1 / n.
    low, high = top * 0 - 1, -((seen + top * 0) ** -a)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = ((z - middle[:, None]).clip(0) ** (1 / a)).sum(1) >= 1
        low, high = xp.where(enough, middle, low), xp.where(enough, high, middle)
    p[:, some] = (z - low[:, None]).clip(0) ** (1 / a)
    lse = top + (low + 1) / a
    return p, xp.where(empty, xp.zeros_like(lse) - np.inf, lse)


def slopes(p: Any, alpha: float) -> Any:
    """p ** (2 - alpha), the derivatives of weights by their scores where lse stays; 0 where p is
    0."""
    xp = library(p)
    used = p > 0
    return xp.where(used, xp.where(used, p, xp.ones_like(p)) ** (2 - alpha), xp.zeros_like(p))
