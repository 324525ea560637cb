"""Masks that depend on k - q only, as a table of bits that kernels read instead of testing
pairs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.layout.tiles.toeplitz import live_differences, of_difference

PAD = 256
"""Dead bits before the first difference, and at least as many after the last one: tiles extend past
the lengths, and threads read more bits than they need."""

_MAX = 16
"""Alternatives of a formula that are looked at one by one."""


def distance_count(n_q: int, n_kv: int) -> int:
    """32-bit words of one mask; kernels reckon with the same formula."""
    return (n_q + n_kv + 2 * PAD + 31) // 32


def parts_by_distance(keep: Expr) -> tuple[list[Expr], list[Expr]]:
    """Split a mask into alternatives: those over d = k - q only, and all others."""
    near: list[Expr] = []
    rest: list[Expr] = []
    whole = _alone(keep) is not None
    for term in [keep] if whole else E.alternatives(keep, _MAX) or [keep]:
        formula = _alone(term)
        if formula is None:
            rest.append(term)
        else:
            near.append(formula)
    return near, rest


@lru_cache(maxsize=1 << 8)
def _alone(term: Expr) -> Expr | None:
    """The formula over d = k - q; None if it depends on more, data included."""
    return None if E.arrays(term) else of_difference(term)


def distance_words(keep: Expr, n_q: int, n_kv: int, params: Mapping[str, object]) -> np.ndarray:
    """int32 [distance_count]: bit PAD + n_q - 1 + k - q tells whether query q sees key k by the
    part of the mask that depends on k - q alone.

    Bit i is bit i % 32 of word i // 32, the least significant one first.
    """
    bits = np.zeros(32 * distance_count(n_q, n_kv), dtype=np.uint8)
    if n_q and n_kv:
        env = {**E.params(keep), **params, "n_q": n_q, "n_kv": n_kv}
        inside = bits[PAD : PAD + n_q + n_kv - 1]
        for formula in parts_by_distance(keep)[0]:
            inside |= live_differences(formula, env, n_q, n_kv).astype(np.uint8)
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
