"""The last word on a few boxes: the formula, evaluated on their pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr, FloorDiv, Load, Member, Mod, Sum, Sym
from maskc.core.layout import FULL, PARTIAL
from maskc.layout.tiles.bounds import Analyst, PairBoxes

_PAIRS = 1 << 19
"""Pairs evaluated at once."""

FINE = 16
"""Side of the boxes whose pairs are all looked at."""


class Elements:
    """Evaluates one mask, whose lengths and parameters are numbers already."""

    def __init__(self, keep: Expr, arrays: Mapping[str, np.ndarray], n_q: int, n_kv: int) -> None:
        self.keep = keep
        self.arrays = arrays
        self.analyst = Analyst(arrays)
        wide = magnitude(keep, {"q": n_q, "k": n_kv}, arrays) >= 1 << 31
        self.dtype = np.int64 if wide else np.int32

    def kinds(self, boxes: PairBoxes) -> np.ndarray:
        """uint8 [boxes]: 0 no pair of the box is live, 1 some are, 2 all are. Exact.

        Most boxes show a live and a dead pair among a few samples. What samples leave undecided
        is cut up, and only small boxes without a certain answer are evaluated.
        """
        live, dead = np.zeros((2, len(boxes)), dtype=bool)
        for side in (4, FINE):
            undecided = np.flatnonzero(~(live & dead))
            for part in _chunks(undecided, _PAIRS // side**2):
                pairs = self._at(_samples(boxes[part], side), side, side)
                live[part] |= pairs.any(axis=(1, 2))
                dead[part] |= ~pairs.all(axis=(1, 2))
        undecided = np.flatnonzero(~(live & dead))
        self._settle(undecided, boxes[undecided], live, dead)
        return np.where(live, np.where(dead, PARTIAL, FULL), 0).astype(np.uint8)

    def _settle(
        self, owner: np.ndarray, boxes: PairBoxes, live: np.ndarray, dead: np.ndarray
    ) -> None:
        """Note for the owners of these boxes whether they have live pairs, and dead ones."""
        may, must = self.analyst.verdict(self.keep, boxes)
        live[owner[must]] = True
        dead[owner[~may]] = True
        for part in _chunks(np.flatnonzero(may & ~must), _PAIRS // FINE**2):
            part = part[~(live & dead)[owner[part]]]
            if not len(part):
                continue
            chosen = boxes[part]
            height, width = _largest(chosen)
            if max(height, width) > FINE:
                piece, pieces = _cut(chosen, height, width)
                self._settle(owner[part[piece]], pieces, live, dead)
                continue
            pairs = self._at(_pairs(chosen), FINE, FINE)
            live[owner[part[pairs.any(axis=(1, 2))]]] = True
            dead[owner[part[~pairs.all(axis=(1, 2))]]] = True

    def count(self, boxes: PairBoxes) -> int:
        """Live pairs of fine boxes, which are at most 16 x 16."""
        total = 0
        for part in _chunks(np.arange(len(boxes)), _PAIRS // FINE**2):
            chosen = boxes[part]
            rows = np.arange(FINE) <= (chosen.q_high - chosen.q_low)[:, None]
            columns = np.arange(FINE) <= (chosen.k_high - chosen.k_low)[:, None]
            pairs = self._at(_pairs(chosen), FINE, FINE)
            total += int(np.count_nonzero(pairs & rows[:, :, None] & columns[:, None, :]))
        return total

    def _at(self, points: tuple[np.ndarray, np.ndarray], height: int, width: int) -> np.ndarray:
        """bool [boxes, height, width] at queries [boxes, height] and keys [boxes, width]."""
        q, k = (axis.astype(self.dtype) for axis in points)
        live = evaluate(self.keep, {**self.arrays, "q": q[:, :, None], "k": k[:, None, :]})
        return np.broadcast_to(live, (len(q), height, width))


def fine(boxes: PairBoxes) -> PairBoxes:
    """Boxes cut into such as `Elements.count` takes."""
    while len(boxes) and max(_largest(boxes)) > FINE:
        boxes = _cut(boxes, *_largest(boxes))[1]
    return boxes


def _chunks(chosen: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(chosen), size):
        yield chosen[start : start + size]


def _samples(boxes: PairBoxes, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys [boxes, side], evenly spread and with both ends."""
    steps = np.arange(side)
    height, width = boxes.q_high - boxes.q_low, boxes.k_high - boxes.k_low
    q = boxes.q_low[:, None] + height[:, None] * steps // (side - 1)
    k = boxes.k_low[:, None] + width[:, None] * steps // (side - 1)
    return q, k


def _pairs(boxes: PairBoxes) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys [boxes, 16]; a smaller box repeats its last ones."""
    steps = np.arange(FINE)
    q = np.minimum(boxes.q_low[:, None] + steps, boxes.q_high[:, None])
    k = np.minimum(boxes.k_low[:, None] + steps, boxes.k_high[:, None])
    return q, k


def _largest(boxes: PairBoxes) -> tuple[int, int]:
    """The most queries and the most keys any of the boxes has."""
    height, width = boxes.q_high - boxes.q_low, boxes.k_high - boxes.k_low
    return int(height.max()) + 1, int(width.max()) + 1


def _cut(boxes: PairBoxes, height: int, width: int) -> tuple[np.ndarray, PairBoxes]:
    """Quarter the sides, down to fine boxes: (the box each piece comes from, the pieces)."""
    q_side, k_side = (max(FINE, -(-side // 4)) for side in (height, width))
    q_step, k_step = np.arange(0, height, q_side), np.arange(0, width, k_side)
    shape = (len(boxes), len(q_step), len(k_step))
    q_low = np.broadcast_to((boxes.q_low[:, None] + q_step)[:, :, None], shape).ravel()
    k_low = np.broadcast_to((boxes.k_low[:, None] + k_step)[:, None, :], shape).ravel()
    piece = np.repeat(np.arange(len(boxes)), len(q_step) * len(k_step))
    q_last, k_last = boxes.q_high[piece], boxes.k_high[piece]
    real = (q_low <= q_last) & (k_low <= k_last)
    q_high, k_high = np.minimum(q_low + q_side - 1, q_last), np.minimum(k_low + k_side - 1, k_last)
    return piece[real], PairBoxes(q_low, q_high, k_low, k_high)[real]


def magnitude(expr: Expr, symbols: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> int:
    """Bound |value| of everything that is computed on the way to the formula's value.

    Args:
        symbols: the largest |value| of lengths, q, k and parameters, by name.
        arrays: int32 arrays of any shape, by name.
    """
    inner = [magnitude(part, symbols, arrays) for part in expr.parts]
    match expr:
        case Sum(constant, terms):
            return abs(constant) + sum(
                abs(factor) * size for (factor, _), size in zip(terms, inner, strict=True)
            )
        case Sym(name):
            return symbols[name]
        case FloorDiv(_, den) | Mod(_, den):
            return max(den, *inner)
        case Load(array, _):
            values = arrays[array]
            return max(-int(values.min()), int(values.max()), *inner)
        case Member(_, ranges):
            return max(-ranges[0][0], ranges[-1][1], *inner)
    return max(inner, default=0)
