"""Joining attention over disjoint sets of keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maskc.reference.attention import log_sum_exp


def merge(outs: Sequence[np.ndarray], lses: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Attention over the union of disjoint pieces, from the pieces' own results.

    Args:
        outs: float [..., N, Dv] each; lses: float [..., N] each.

    Returns:
        out float64 [..., N, Dv] and lse float64 [..., N]; where every piece is empty 0 and -inf.
    """
    out = np.zeros(outs[0].shape)
    lse = np.full(lses[0].shape, -np.inf)
    for row in np.ndindex(lse.shape):
        parts = np.array([float(piece[row]) for piece in lses])
        lse[row] = total = log_sum_exp(parts)
        for piece, part in zip(outs, parts, strict=True):
            if part > -np.inf or np.isnan(part):
                out[row] += np.exp(part - total) * piece[row].astype(np.float64)
    return out, lse
