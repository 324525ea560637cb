"""Certain properties of a formula on a box of queries and keys: interval arithmetic, vectorized.

The walk is `maskc.core.tile_bounds`; here it is done with NumPy, on many boxes at a time. "Certain"
answers are proofs, "unknown" is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core import tile_bounds
from maskc.core.expr import Expr, Load
from maskc.core.tile_bounds import Span, TileBounds
from maskc.layout.tiles.chosen_blocks import Chosen
from maskc.layout.tiles.ranges import Bounds, Extremes, extremes_of


@dataclass(frozen=True, eq=False)
class PairBoxes:
    """Boxes of pairs, inclusive bounds, int64 [boxes] each (or broadcasting to all boxes)."""

    q_low: np.ndarray
    q_high: np.ndarray
    k_low: np.ndarray
    k_high: np.ndarray

    def __getitem__(self, chosen: np.ndarray | slice) -> PairBoxes:
        return PairBoxes(
            self.q_low[chosen], self.q_high[chosen], self.k_low[chosen], self.k_high[chosen]
        )

    def __len__(self) -> int:
        return len(self.q_low)


def whole_box(n_q: int, n_kv: int) -> PairBoxes:
    """The box of all pairs."""
    q_low, q_high, k_low, k_high = (np.asarray(end, np.int64) for end in (0, n_q - 1, 0, n_kv - 1))
    return PairBoxes(q_low, q_high, k_low, k_high)


Verdict = tuple[np.ndarray, np.ndarray]
"""(some pair may be live, every pair certainly is), booleans that broadcast over boxes."""


class NumPyOperations:
    """Arithmetic of 64 bits on whole arrays."""

    def constant(self, value: int) -> np.ndarray:
        return np.asarray(value, np.int64)

    def truth(self, value: bool) -> np.ndarray:
        return np.asarray(value)

    add, least, greatest = staticmethod(np.add), staticmethod(np.minimum), staticmethod(np.maximum)
    at_most, equal = staticmethod(np.less_equal), staticmethod(np.equal)
    both, either = staticmethod(np.logical_and), staticmethod(np.logical_or)
    negation, choose = staticmethod(np.logical_not), staticmethod(np.where)
    times, floordiv = staticmethod(np.multiply), staticmethod(np.floor_divide)


NUMPY = NumPyOperations()


class _Leaves:
    """Bounds of q, k and arrays on boxes."""

    def __init__(self, analyst: Analyst, boxes: PairBoxes) -> None:
        self._analyst, self._boxes = analyst, boxes

    def symbol(self, name: str) -> Span:
        return self._analyst.symbol(name, self._boxes)

    def load(self, node: Load, index: tuple[Span, ...]) -> Span:
        return Span(*self._analyst.values(node.array)(list(index)))

    def member(self, value: Span, ranges: tuple[tuple[int, int], ...]) -> tile_bounds.Verdict:
        return tile_bounds.Verdict(*_within(value, ranges))


class Analyst:
    """Bounds of formulas without lengths and parameters (those are numbers by now)."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self._extremes: dict[int, Extremes] = {}

    def verdict(self, keep: Expr, boxes: PairBoxes) -> Verdict:
        """Bool [boxes] twice: some pair may be live; every pair certainly is.

        Boxes with rows [rows, 1] and columns [1, columns] give answers [rows, columns].
        """
        may, must = TileBounds(NUMPY, _Leaves(self, boxes)).condition(keep)
        shape = np.broadcast_shapes(boxes.q_low.shape, boxes.k_low.shape)
        return np.broadcast_to(may, shape), np.broadcast_to(must, shape)

    def bounds(self, expr: Expr, boxes: PairBoxes) -> Bounds:
        """Least and greatest value an integer formula may take."""
        return TileBounds(NUMPY, _Leaves(self, boxes)).integer(expr)

    def symbol(self, name: str, boxes: PairBoxes) -> Span:
        """The values of a symbol."""
        if name == "q":
            return Span(boxes.q_low, boxes.q_high)
        if name == "k":
            return Span(boxes.k_low, boxes.k_high)
        raise TypeError(f"{name} is not a number and neither q nor k")

    def values(self, name: str) -> Extremes:
        """One table per array, even where several names share it."""
        array = self.arrays[name]
        if isinstance(array, Chosen):
            return array.bounds
        if id(array) not in self._extremes:
            self._extremes[id(array)] = extremes_of(array)
        return self._extremes[id(array)]


def _within(bounds: Bounds, ranges: tuple[tuple[int, int], ...]) -> Verdict:
    """Whether values between the bounds lie in one of the ranges."""
    low, high = bounds
    firsts, lasts = np.array(ranges, dtype=np.int64).T
    next_range = np.searchsorted(lasts, low)  # the first range that does not end before low
    known = np.minimum(next_range, len(lasts) - 1)
    reached = (next_range < len(lasts)) & (firsts[known] <= high)
    return reached, reached & (firsts[known] <= low) & (lasts[known] >= high)
