"""Rows of keys and values on their way out of pages and into them, by array operations of NumPy or
torch; GPUs have a kernel for new rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from maskc.core.dtypes import E4M3, dtype_name
from maskc.core.tensors import torch_of
from maskc.runtime.arrays.known import cast_like, to_fp32

LARGEST_E4M3 = 448.0
"""The greatest number of E4M3."""


class Rotary(NamedTuple):
    """A rotary embedding: cosines and sines [positions, half], and which elements are pairs."""

    cosine: Any
    sine: Any
    interleaved: bool

    def turned(self, rows: Any, positions: Any) -> Any:
        """Turn the first elements of fp32 rows [tokens, heads, D] by their positions."""
        half = self.cosine.shape[1]
        line = positions.clip(0, self.cosine.shape[0] - 1)
        c, s = (to_fp32(x)[line][:, None] for x in (self.cosine, self.sine))
        first, second = slice(half), slice(half, 2 * half)
        if self.interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        x, y = rows[..., first], rows[..., second]
        turned = rows.clone() if hasattr(rows, "clone") else rows.copy()
        turned[..., first], turned[..., second] = x * c - y * s, y * c + x * s
        return turned


def is_e4m3(x: Any) -> bool:
    """Whether numbers are E4M3."""
    return dtype_name(x) == E4M3


def by_head(scale: Any, rows: Any) -> Any:
    """A scale as a factor of rows [.., heads, D]: a number, an array of one or of heads, or one
    that has the rows' dimensions."""
    if not hasattr(scale, "shape") or len(scale.shape) == len(rows.shape):
        return scale
    shaped = scale.reshape(-1, 1)
    return shaped if torch_of(rows) is None else shaped.to(rows.device)


def converted(rows: Any, like: Any, scale: Any) -> Any:
    """Rows of a pool [.., heads, D] in the dtype of `like`, times their scales."""
    if dtype_name(rows) == dtype_name(like):
        return rows
    return cast_like(to_fp32(rows) * by_head(scale, rows), like)


def stored(rows: Any, pool: Any, scale: Any) -> Any:
    """Rows [.., heads, D] in the dtype of a pool, divided by their scales if that is E4M3."""
    if is_e4m3(pool):
        rows = (to_fp32(rows) / by_head(scale, rows)).clip(-LARGEST_E4M3, LARGEST_E4M3)
    return cast_like(rows, pool)


def as_bytes(x: Any) -> Any:
    """An array of E4M3 as integers, whose operations every library has; others as they are."""
    if not is_e4m3(x):
        return x
    torch = torch_of(x)
    return x.view(np.uint8 if torch is None else torch.uint8)


def append(pool: Any, rows: Any, slots: Any, scale: Any) -> None:
    """Write rows [tokens, heads, D] into a pool [pages, page_size, heads, D].

    Args:
        slots: [tokens]: page * page_size + token of the page; rows without a slot of the pool are
            left out.
    """
    size = pool.shape[1]
    real = (slots >= 0) & (slots < pool.shape[0] * size)
    slots = slots[real]
    as_bytes(pool)[slots // size, slots % size] = as_bytes(stored(rows[real], pool, scale))
