"""The definition of the weights that dropout keeps.

Whether a pair is kept is a function of (seed, batch, query head, q, k) and the rate only. Philox
4x32-10 (Salmon, Moraes, Dror and Shaw, 2011) turns a counter and a key of two words, the seed,
into 128 bits. A pair takes 16 of them: its number. It is kept where that number is not below
`dropped`, the rate in parts of 2^16. Kept weights are multiplied by 2^16 / (2^16 - dropped), so
that the mean of a weight over all seeds is what it is without dropout.
"""

from __future__ import annotations

import numpy as np

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = 0x9E3779B9, 0xBB67AE85
_WORD = np.uint64(0xFFFFFFFF)
PARTS = 1 << 16
"""A rate is a whole number of these parts."""


def philox(counter: np.ndarray, seed: int, rounds: int = 10) -> np.ndarray:
    """The output words of Philox 4x32.

    Args:
        counter: uint32 [..., 4].
        seed: the key: its low 32 bits are the first word, the next 32 the second.

    Returns:
        uint32 [..., 4].
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(rounds):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        k0, k1 = map(np.uint64, key)
        c0, c1 = (second >> np.uint64(32)) ^ c1 ^ k0, second & _WORD
        c2, c3 = (first >> np.uint64(32)) ^ c3 ^ k1, first & _WORD
        key = [(word + step) & 0xFFFFFFFF for word, step in zip(key, _STEPS, strict=True)]
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def numbers(seed: int, batch: int, heads: int, n_q: int, n_kv: int) -> np.ndarray:
    """The number of every pair, 0 .. 65535.

    Returns:
        int64 [batch, heads, n_q, n_kv].
    """
    b, h, q, k = np.ogrid[:batch, :heads, :n_q, :n_kv]
    counter = np.empty((batch, heads, n_q, n_kv, 4), np.uint32)
    counter[..., 0] = q // 16 * 8 + q % 8
    counter[..., 1] = k // 16 * 4 + k % 8 // 2
    counter[..., 2] = h
    counter[..., 3] = b
    words = philox(counter, seed).astype(np.int64)
    which = np.broadcast_to(2 * (k % 2) + q // 8 % 2, words.shape[:-1])
    word = np.take_along_axis(words, which[..., None], axis=-1)[..., 0]
    return np.where(k // 8 % 2 == 1, word >> 16, word & 0xFFFF)


def dropped(p: float) -> int:
    """The rate in parts of 2^16, rounded to the nearest, halves to even."""
    return round(p * PARTS)


def factors(p: float, seed: int, batch: int, heads: int, n_q: int, n_kv: int) -> np.ndarray:
    """Return the factor of every weight: 0 if it is dropped.

    Returns:
        float64 [batch, heads, n_q, n_kv].
    """
    rate = dropped(p)
    kept = numbers(seed, batch, heads, n_q, n_kv) >= rate
    return kept * (PARTS / (PARTS - rate) if rate < PARTS else 0.0)
