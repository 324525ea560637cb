"""Host memory behind pointers, as NumPy arrays, in the dtypes tensors are stored in."""

from __future__ import annotations

import numpy as np

from maskc.core.dtypes import DType


def at(
    pointer: int | None, shape: tuple[int, ...], strides: tuple[int, ...], code: str
) -> np.ndarray:
    """The memory behind a pointer as an array; strides in elements."""
    size = np.dtype(code).itemsize
    if not pointer or 0 in shape:
        return np.zeros(shape, code)
    holder = type("Memory", (), {})()
    holder.__array_interface__ = {
        "data": (pointer, False), "shape": shape, "typestr": np.dtype(code).str,
        "strides": tuple(size * stride for stride in strides), "version": 3,
    }  # fmt: skip
    return np.asarray(holder)


CODES = {DType.float32: "f4", DType.float16: "f2", DType.bfloat16: "u2"}


def load(stored: np.ndarray, dtype: DType) -> np.ndarray:
    """fp32 values of stored elements."""
    if dtype is DType.bfloat16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def store(values: np.ndarray, into: np.ndarray, dtype: DType) -> None:
    """Round to nearest even and write."""
    if dtype is not DType.bfloat16:
        into[...] = values
        return
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    into[...] = np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
