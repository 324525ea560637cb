"""Tensors as models have them: the strides of heads between tokens, or of padded rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.verify.tensors import has_torch, numpy_dtype

STRIDES = ("contiguous", "BSHD", "padded")
"""How q, k, v lie in memory: [B, H, N, D]; [B, N, H, D]; rows 16 elements apart."""


def laid(x: np.ndarray, strides: str, dtype: DType, device: str) -> Any:
    """fp32 values [B, H, N, D] as a tensor of this dtype, on this device, with these strides."""
    kept = x
    if strides == "BSHD":
        kept = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    elif strides == "padded":
        kept = np.zeros((*x.shape[:3], x.shape[3] + 16), np.float32)[..., : x.shape[3]]
        kept[...] = x
    if not has_torch():
        return _typed(kept, numpy_dtype(dtype.value))
    import torch

    given = torch.from_numpy(np.ascontiguousarray(x))
    whole = torch.empty_strided(
        x.shape, [stride // 4 for stride in kept.strides], dtype=getattr(torch, dtype.value),
        device=device,
    )  # fmt: skip
    return whole.copy_(given)


def _typed(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Another dtype, the same strides in elements."""
    if dtype == x.dtype:
        return x
    base = np.zeros(
        sum((n - 1) * s // 4 for n, s in zip(x.shape, x.strides, strict=True)) + 1, dtype
    )
    size = dtype.itemsize
    made = np.lib.stride_tricks.as_strided(base, x.shape, [s // 4 * size for s in x.strides])
    made[...] = x
    return made


def moved(value: Any, device: str) -> Any:
    """An array of the host where kernels of this device read it."""
    if device == "cpu" or not isinstance(value, np.ndarray):
        return value
    import torch

    return torch.from_numpy(value).cuda()
