"""Exercise 2: keep 85 % of the attention with at most 10 % of the causal pairs.

    python docs/teaching/exercise_mask.py

It prints a heatmap of the attention of one head, and how much of it MASK keeps. Change MASK.
"""

from __future__ import annotations

import sys

import numpy as np

import maskc as mc

MASK = mc.causal() & mc.window(40)

N, D, BLOCK = 512, 64, 16
PAIRS, RETAINED = 0.10, 0.85


def attention() -> np.ndarray:
    """Return the attention weights [N, N] of a synthetic head, in fp64."""
    rng = np.random.default_rng(0)
    q, k = 0.35 * rng.standard_normal((2, N, D))
    at = np.arange(N)
    distance = at[:, None] - at
    scores = q @ k.T + 5 * (at < 3) + 4 * (distance < 12) + 3.5 * (at % 32 == 31)
    scores[distance < 0] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def heatmap(weights: np.ndarray) -> str:
    """Return weights as text, darker where a block of 16 x 16 pairs has more of them."""
    blocks = weights.reshape(N // BLOCK, BLOCK, -1, BLOCK).sum(axis=(1, 3)) / BLOCK
    shades = " .:-=+*#%@"
    levels = np.minimum((np.sqrt(blocks) * 16).astype(int), len(shades) - 1)
    return "\n".join("".join(shades[level] for level in row) for row in levels)


def score(mask: mc.Mask) -> tuple[float, float]:
    """Return the share of causal pairs that a mask keeps, and the share of attention."""
    kept = mask.dense(N)
    if kept[~np.tri(N, dtype=bool)].any():
        raise SystemExit("MASK keeps a pair that is not causal: start with mc.causal() & ...")
    return float(kept.sum() / np.tri(N).sum()), float((attention() * kept).sum() / N)


def solved(mask: mc.Mask) -> bool:
    """Return whether a mask reaches the goal."""
    pairs, retained = score(mask)
    return bool(pairs <= PAIRS and retained >= RETAINED)


if __name__ == "__main__":
    print(heatmap(attention()))
    pairs, retained = score(MASK)
    print(f"{MASK}: {pairs:.1%} of the pairs, {retained:.1%} of the attention")
    print("solved" if solved(MASK) else "not yet: at most 10 % of the pairs, at least 85 %")
    sys.exit(not solved(MASK))
