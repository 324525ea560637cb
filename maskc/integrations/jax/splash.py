"""Masks of Splash attention, JAX's kernel for TPUs, as masks of maskc."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash

import maskc as mc
from maskc.core.errors import NotASplashMask
from maskc.dsl.mask import Mask


def from_splash(mask: Any) -> Mask:
    """Convert a Splash attention mask to a mask that keeps the same pairs.

    A CausalMask, LocalMask or ChunkedCausalMask becomes a mask for all lengths. As in Splash,
    queries and keys are counted from the first one.

    Args:
        mask: CausalMask, LocalMask, ChunkedCausalMask, FullMask, NumpyMask or MultiHeadMask; any of
            these combined with & and |; or a boolean array [Nq, Nkv] or [heads, Nq, Nkv].
            Subclasses may compute the mask by a function of query and key ids.

    Raises:
        NotASplashMask: it is something else, or a slice of a longer mask (MC484).
        NotTraceable: a function of ids cannot be traced (MC107).
    """
    match mask:
        case splash.MultiHeadMask():
            return mc.per_head([from_splash(part) for part in mask.masks])
        case splash.LogicalAnd():
            return from_splash(mask.left) & from_splash(mask.right)
        case splash.LogicalOr():
            return from_splash(mask.left) | from_splash(mask.right)
        case splash.FullMask():
            return mc.full()
        case splash.NumpyMask():
            return _of_array(mask.array)
        case np.ndarray():
            return _of_array(mask)
    rows = getattr(mask, "q_sequence", None)
    if rows is None or not hasattr(mask, "mask_function"):
        raise NotASplashMask(f"a {type(mask).__name__}", at="mask")
    if not np.array_equal(rows, np.arange(mask.shape[0])):
        raise NotASplashMask("a mask of some of the queries", at="mask")
    match mask:
        case splash.CausalMask():
            return _within(None, 0, mask.offset)
        case splash.LocalMask():
            left, right = mask.window_size
            return _within(left, right, mask.offset)
        case splash.ChunkedCausalMask():
            return mc.chunked(mask.chunk_size, align="start")
    function = mask.mask_function
    return mc.where(lambda q, k: function(q, k))


def _within(left: int | None, right: int | None, offset: int) -> Mask:
    """Keys from `left` before to `right` behind a query, which stands `offset` further on."""
    if not offset:
        return mc.window(left, right, align="start")
    sides = []
    if left is not None:
        first = offset - left
        sides.append(mc.where(lambda q, k: k >= q + first))
    if right is not None:
        last = offset + right
        sides.append(mc.where(lambda q, k: k <= q + last))
    return reduce(lambda a, b: a & b, sides, mc.full())


def _of_array(keep: np.ndarray) -> Mask:
    if keep.dtype != np.bool_ or keep.ndim not in (2, 3):
        raise NotASplashMask(f"an array of {keep.dtype} {list(keep.shape)}", at="mask")
    if keep.ndim == 3:
        return mc.per_head([_of_array(part) for part in keep])
    return mc.block_table(keep, 1)
