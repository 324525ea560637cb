"""What a formula certainly is on a box of queries and keys: interval arithmetic, vectorised.

Each variable is bounded on its own, so bounds are never too narrow but may be too wide: "certain"
answers are proofs, "unknown" is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from maskc.core.expr import (
    All,
    Any,
    Cmp,
    Expr,
    FloorDiv,
    Load,
    Max,
    Member,
    Min,
    Mod,
    Sum,
    Sym,
    Truth,
)
from maskc.layout.tiles.chosen_blocks import Chosen
from maskc.layout.tiles.ranges import Bounds, Extremes, extremes_of


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of pairs, inclusive bounds, int64 [boxes] each (or broadcasting to all boxes)."""

    q_low: np.ndarray
    q_high: np.ndarray
    k_low: np.ndarray
    k_high: np.ndarray

    def __getitem__(self, chosen: np.ndarray | slice) -> Boxes:
        return Boxes(
            self.q_low[chosen], self.q_high[chosen], self.k_low[chosen], self.k_high[chosen]
        )

    def __len__(self) -> int:
        return len(self.q_low)


def whole_box(n_q: int, n_kv: int) -> Boxes:
    """The box of all pairs."""
    q_low, q_high, k_low, k_high = (np.asarray(end, np.int64) for end in (0, n_q - 1, 0, n_kv - 1))
    return Boxes(q_low, q_high, k_low, k_high)


Verdict = tuple[np.ndarray, np.ndarray]
"""(some pair may be live, every pair certainly is), booleans that broadcast over boxes."""


class Analyst:
    """Bounds of formulas without lengths and parameters (those are numbers by now)."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self._extremes: dict[int, Extremes] = {}

    def verdict(self, keep: Expr, boxes: Boxes) -> Verdict:
        """Bool [boxes] twice: some pair may be live; every pair certainly is.

        Boxes whose rows are [rows, 1] and whose columns are [1, columns] have answers [rows,
        columns].
        """
        may, must = self._truth(keep, boxes)
        shape = np.broadcast_shapes(boxes.q_low.shape, boxes.k_low.shape)
        return np.broadcast_to(may, shape), np.broadcast_to(must, shape)

    def bounds(self, expr: Expr, boxes: Boxes) -> Bounds:
        """Least and greatest value an integer formula may take."""
        match expr:
            case Sum(constant, terms):
                low = high = np.asarray(constant, np.int64)
                for factor, term in terms:
                    least, greatest = self.bounds(term, boxes)
                    ends = factor * least, factor * greatest
                    low, high = low + ends[factor < 0], high + ends[factor > 0]
                return low, high
            case Sym("q"):
                return boxes.q_low, boxes.q_high
            case Sym("k"):
                return boxes.k_low, boxes.k_high
            case FloorDiv(num, den):
                least, greatest = self.bounds(num, boxes)
                return least // den, greatest // den
            case Mod(num, den):
                least, greatest = self.bounds(num, boxes)
                whole = least // den
                wraps = whole != greatest // den
                whole = whole * den
                return np.where(wraps, 0, least - whole), np.where(wraps, den - 1, greatest - whole)
            case Min(args):
                return _each(np.minimum, [self.bounds(arg, boxes) for arg in args])
            case Max(args):
                return _each(np.maximum, [self.bounds(arg, boxes) for arg in args])
            case Load(array, index):
                return self._values(array)([self.bounds(i, boxes) for i in index])
        raise TypeError(f"not an integer formula over q and k: {expr!r}")

    def _values(self, name: str) -> Extremes:
        """One table per array, even where several names share it."""
        array = self.arrays[name]
        if isinstance(array, Chosen):
            return array.bounds
        if id(array) not in self._extremes:
            self._extremes[id(array)] = extremes_of(array)
        return self._extremes[id(array)]

    def _truth(self, expr: Expr, boxes: Boxes) -> Verdict:
        match expr:
            case Truth(value):
                told = np.asarray(value)
                return told, told
            case Cmp(">=", lhs):
                low, high = self.bounds(lhs, boxes)
                return high >= 0, low >= 0
            case Cmp(op, lhs):
                low, high = self.bounds(lhs, boxes)
                equal = (low <= 0) & (high >= 0), (low == 0) & (high == 0)
                return equal if op == "==" else _opposite(equal)
            case Member(value, ranges, inside):
                within = _within(self.bounds(value, boxes), ranges)
                return within if inside else _opposite(within)
            case All(terms):
                return _each(np.logical_and, [self._truth(term, boxes) for term in terms])
            case Any(terms):
                return _each(np.logical_or, [self._truth(term, boxes) for term in terms])
        raise TypeError(f"not a boolean formula: {expr!r}")


def _each(pick: np.ufunc, pairs: list[Bounds]) -> Bounds:
    first, second = zip(*pairs, strict=True)
    return reduce(pick, first), reduce(pick, second)


def _opposite(verdict: Verdict) -> Verdict:
    may, must = verdict
    return ~must, ~may


def _within(bounds: Bounds, ranges: tuple[tuple[int, int], ...]) -> Verdict:
    """Whether values between the bounds lie in one of the ranges."""
    low, high = bounds
    firsts, lasts = np.array(ranges, dtype=np.int64).T
    next_range = np.searchsorted(lasts, low)  # the first range that does not end before low
    known = np.minimum(next_range, len(lasts) - 1)
    reached = (next_range < len(lasts)) & (firsts[known] <= high)
    return reached, reached & (firsts[known] <= low) & (lasts[known] >= high)
