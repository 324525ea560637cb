"""Masks that depend on k - q alone, as bits: what kernels read instead of testing pairs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.layout.diagonals import live_differences, of_difference

PAD = 256
"""Dead bits before the first difference, and at least as many behind the last one: tiles reach
beyond the lengths, and threads read some bits more than they need."""


def distance_count(n_q: int, n_kv: int) -> int:
    """32-bit words of one mask; kernels reckon with the same formula."""
    return (n_q + n_kv + 2 * PAD + 31) // 32


def distance_words(
    keep: Expr, n_q: int, n_kv: int, params: Mapping[str, object]
) -> np.ndarray | None:
    """int32 [distance_count]: bit PAD + n_q - 1 + k - q tells whether query q sees key k.

    Bit i is bit i % 32 of word i // 32, the least significant one first. None where the mask
    depends on more than k - q.
    """
    formula = of_difference(keep)
    if formula is None:
        return None
    bits = np.zeros(32 * distance_count(n_q, n_kv), dtype=np.uint8)
    if n_q and n_kv:
        env = {**E.params(keep), **params, "n_q": n_q, "n_kv": n_kv}
        bits[PAD : PAD + n_q + n_kv - 1] = live_differences(formula, env, n_q, n_kv)
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
