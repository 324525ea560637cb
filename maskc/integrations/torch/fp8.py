"""Tensors of torch in E4M3."""

from __future__ import annotations

from typing import Any

import torch

from maskc.core.errors import BadShape

_MAX = 448.0
"""The largest number of E4M3."""


def to_e4m3(x: Any, heads: int | None = None) -> tuple[Any, Any]:
    """Convert a torch tensor to E4M3 with one scale per head, such that its largest magnitude
    becomes 448.

    Args:
        x: [B, H, N, D] of any floating dtype.
        heads: number of key heads, if x is q: query heads of one key/value head share a scale.

    Returns:
        (float8_e4m3fn [B, H, N, D], fp32 [B, heads]).

    Raises:
        BadShape: H is not a multiple of heads (MC401).
    """
    if x.ndim != 4 or (heads is not None and (heads < 1 or x.shape[1] % heads)):
        raise BadShape("x", tuple(x.shape), f"[B, a multiple of {heads or 1}, N, D]", at="x")
    grouped = x.detach().float().unflatten(1, (heads or x.shape[1], -1))
    most = grouped.abs().amax((2, 3, 4)) if x.numel() else x.new_ones(x.shape[0], heads or 1)
    factors = torch.where(most > 0, most / _MAX, 1.0).float()
    small = (grouped / factors[:, :, None, None, None]).flatten(1, 2)
    return small.clamp(-_MAX, _MAX).to(torch.float8_e4m3fn), factors
