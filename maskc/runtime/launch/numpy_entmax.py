"""alpha-entmax in NumPy, as the C kernels compute it: see templates/cpu/lib/entmax.h."""

from __future__ import annotations

import numpy as np

_CLOSE = 2e-7
"""Newton's method stops after a step below this, relative to lse."""


def weigh(scores: np.ndarray, lse: np.ndarray, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights p and their derivatives u where lse stays.

    Args:
        scores: [rows, keys], -inf where not seen.
        lse: [rows], any finite number where nothing is.
        a: alpha - 1.
    """
    past = a * (scores - lse[:, None])
    none = past <= -1
    u = np.where(none, 0, np.exp((1 / a - 1) * np.log1p(np.where(none, 0, past))))
    return np.where(none, 0, u * (1 + past)), u


def log_sum(scores: np.ndarray, a: float) -> np.ndarray:
    """lse of every row, by Newton's method from its largest score upwards; 0 without keys."""
    lse: np.ndarray = scores.max(axis=1, initial=-np.inf)
    moves = lse != -np.inf
    lse[~moves] = 0
    while moves.any():
        p, u = (x.sum(axis=1) for x in weigh(scores, lse, a))
        step = np.where(moves, p * -np.expm1(-a * np.log(p)) / (a * u), 0)
        lse = lse + step
        moves &= step > _CLOSE * np.maximum(1, np.abs(lse))
    return lse
