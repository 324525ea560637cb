"""Least and greatest values inside boxes of an array, many boxes at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, reduce

import numpy as np

Bounds = tuple[np.ndarray, np.ndarray]
"""Least and greatest, int64, broadcasting over boxes."""

Extremes = Callable[[list[Bounds]], Bounds]
"""A function of inclusive index bounds, one pair per axis, to bounds of the values there."""

_LONGEST = 1 << 17
"""A vector's pyramid starts from blocks so that it has no more entries than this."""


def extremes_of(array: np.ndarray) -> Extremes:
    """Prepare bounds of an int32 array's values, of any shape; indices beyond it count as its edge.

    Exact for vectors of up to 2^17 elements, and longer ones at multiples of a small power of two;
    for tables of 0 and 1; and for single elements. Otherwise never too narrow.
    """
    if array.ndim == 1:
        return _Vector(array)
    if array.ndim == 2 and array.min() >= 0 and array.max() <= 1:
        return _Flags(array)
    return _Whole(array)


class _Vector:
    """Minima and maxima of all stretches of 1, 2, 4, ... entries; two of them cover any range."""

    def __init__(self, array: np.ndarray) -> None:
        self.last = len(array) - 1
        self.shift = max(0, (len(array) - 1).bit_length() - _LONGEST.bit_length() + 1)
        starts = np.arange(0, len(array), 1 << self.shift)
        self.low = _pyramid(np.minimum.reduceat(array, starts), np.minimum)
        self.high = _pyramid(np.maximum.reduceat(array, starts), np.maximum)

    def __call__(self, index: list[Bounds]) -> Bounds:
        low, high = (np.clip(bound, 0, self.last) >> self.shift for bound in index[0])
        level = np.frexp(high - low + 1)[1] - 1
        other = high - (1 << level.astype(np.int64)) + 1
        least = np.minimum(self.low[level, low], self.low[level, other])
        greatest = np.maximum(self.high[level, low], self.high[level, other])
        return least.astype(np.int64), greatest.astype(np.int64)


def _pyramid(base: np.ndarray, pick: np.ufunc) -> np.ndarray:
    """[levels, entries]: entry i of level j covers base[i : i + 2^j], where that fits."""
    levels = len(base).bit_length()
    table = np.zeros((levels, len(base)), dtype=base.dtype)
    table[0] = base
    for level in range(1, levels):
        half = 1 << (level - 1)
        count = len(base) - 2 * half + 1
        below = table[level - 1]
        pick(below[:count], below[half : half + count], out=table[level, :count])
    return table


class _Flags:
    """A table of 0 and 1: sums over boxes."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    @cached_property
    def _sums(self) -> np.ndarray:
        sums = np.zeros((self.shape[0] + 1, self.shape[1] + 1), dtype=np.int32)
        inner = sums[1:, 1:]
        np.cumsum(self.array, axis=0, dtype=np.int32, out=inner)
        np.cumsum(inner, axis=1, dtype=np.int32, out=inner)
        return sums

    def __call__(self, index: list[Bounds]) -> Bounds:
        top, bottom = (np.clip(bound, 0, self.shape[0] - 1) for bound in index[0])
        left, right = (np.clip(bound, 0, self.shape[1] - 1) for bound in index[1])
        if np.array_equal(top, bottom) and np.array_equal(left, right):
            value = self.array[top, left].astype(np.int64)
            return value, value
        sums = self._sums
        ones = sums[bottom + 1, right + 1] - sums[top, right + 1]
        ones += sums[top, left] - sums[bottom + 1, left]  # 32 bits may wrap, the result does not
        area = (bottom - top + 1) * (right - left + 1)
        return (ones == area).astype(np.int64), (ones > 0).astype(np.int64)


class _Whole:
    """Any array: exact for single elements, else the bounds of all of it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.low, self.high = int(array.min()), int(array.max())

    def __call__(self, index: list[Bounds]) -> Bounds:
        point = reduce(np.logical_and, [low == high for low, high in index])
        clipped = (
            np.clip(low, 0, size - 1)
            for (low, _), size in zip(index, self.array.shape, strict=True)
        )
        value = self.array[tuple(clipped)].astype(np.int64)
        return np.where(point, value, self.low), np.where(point, value, self.high)
