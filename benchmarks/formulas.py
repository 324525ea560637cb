"""The anchors' masks as a FlexAttention user writes them: mask_mod(b, h, q, k) on index tensors.

They share no code with the compiler: FlexAttention is timed with them, and results are judged by
them, so a mask that maskc misunderstands is not the mask that its results are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskc.verify.case import Formula, MaskMod


def full(data: Mapping[str, Any]) -> MaskMod:
    """Every key."""
    return lambda b, h, q, k: (q >= 0) & (k >= 0)


def causal(data: Mapping[str, Any]) -> MaskMod:
    """No later key."""
    return lambda b, h, q, k: q >= k


def window(size: int) -> Formula:
    """The last `size` keys, the query's own included."""
    return lambda data: lambda b, h, q, k: (q >= k) & (q - k < size)


def streaming(sinks: int, size: int) -> Formula:
    """The window, and the first `sinks` keys."""
    return lambda data: lambda b, h, q, k: (q >= k) & ((q - k < size) | (k < sinks))


def block_diagonal(size: int) -> Formula:
    """Keys of the query's own block."""
    return lambda data: lambda b, h, q, k: q // size == k // size


def longformer(side: int, n_global: int) -> Formula:
    """`side` keys on each side; the first `n_global` tokens see all and are seen by all."""
    return lambda data: (
        lambda b, h, q, k: ((q - k <= side) & (k - q <= side)) | (q < n_global) | (k < n_global)
    )


def dilated(size: int, stride: int) -> Formula:
    """`size` keys, every stride-th back from the query."""
    return lambda data: (
        lambda b, h, q, k: (q >= k) & (q - k < size * stride) & ((q - k) % stride == 0)
    )


def strided(stride: int) -> Formula:
    """The last `stride` keys and every stride-th one behind them."""
    return lambda data: lambda b, h, q, k: (q >= k) & ((q - k < stride) | ((q - k) % stride == 0))


def exponential(size: int, levels: int) -> Formula:
    """`size` keys at each of the strides 1, 2, 4, ..."""

    def formula(data: Mapping[str, Any]) -> MaskMod:
        def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
            back = q - k
            found = back < size
            for level in range(1, levels):
                step = 2**level
                found = found | ((back < size * step) & (back % step == 0))
            return found & (back >= 0)

        return keep

    return formula


def prefix(size: int) -> Formula:
    """Causal, and the first `size` keys for everyone."""
    return lambda data: lambda b, h, q, k: (q >= k) | (k < size)


def blocks(size: int) -> Formula:
    """The array `table`, bool [query blocks, key blocks]."""

    def formula(data: Mapping[str, Any]) -> MaskMod:
        table = data["table"]
        return lambda b, h, q, k: table[q // size, k // size]

    return formula


def near_or_global(side: int) -> Formula:
    """Pairs at most `side` tokens apart, or with a flagged one; see anchors.longformer."""

    def formula(data: Mapping[str, Any]) -> MaskMod:
        flags = data["globals"]
        return lambda b, h, q, k: ((q - k <= side) & (k - q <= side)) | flags[q] | flags[k]

    return formula


def documents(data: Mapping[str, Any]) -> MaskMod:
    """No later key, and none of another document; `doc` holds an id per token."""
    doc = data["doc"]
    return lambda b, h, q, k: (doc[q] == doc[k]) & (q >= k)
