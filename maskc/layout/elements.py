"""The last word on a few boxes: the formula, evaluated on their pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from maskc.core.evaluate import evaluate
from maskc.core.expr import Expr, FloorDiv, Load, Member, Mod, Sum, Sym
from maskc.core.layout import FULL, PARTIAL
from maskc.layout.bounds import Analyst, Boxes

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

    def kinds(self, boxes: Boxes) -> np.ndarray:
        """uint8 [boxes]: 0 no pair of the box is live, 1 some are, 2 all are. Exact.

        Most boxes show a live and a dead pair among a few samples. What samples leave undecided
        is cut into fine boxes, and only fine boxes without a certain answer are evaluated.
        """
        live, dead = np.zeros((2, len(boxes)), dtype=bool)
        for side in (4, FINE):
            undecided = np.flatnonzero(~(live & dead))
            for part in _chunks(undecided, _PAIRS // side**2):
                pairs = self._at(_samples(boxes[part], side), side, side)
                live[part] |= pairs.any(axis=(1, 2))
                dead[part] |= ~pairs.all(axis=(1, 2))
        undecided = np.flatnonzero(~(live & dead))
        for owner, fine in fine_boxes(boxes[undecided]):
            self._look_closely(undecided[owner], fine, live, dead)
        return np.where(live, np.where(dead, PARTIAL, FULL), 0).astype(np.uint8)

    def _look_closely(
        self, owner: np.ndarray, fine: Boxes, live: np.ndarray, dead: np.ndarray
    ) -> None:
        """Note for their owners whether fine boxes have live and dead pairs."""
        may, must = self.analyst.verdict(self.keep, fine)
        live[owner[must]] = True
        dead[owner[~may]] = True
        for part in _chunks(np.flatnonzero(may & ~must), _PAIRS // FINE**2):
            part = part[~(live & dead)[owner[part]]]
            pairs = self._at(_pairs(fine[part]), FINE, FINE)
            live[owner[part[pairs.any(axis=(1, 2))]]] = True
            dead[owner[part[~pairs.all(axis=(1, 2))]]] = True

    def count(self, boxes: Boxes) -> int:
        """Live pairs of fine boxes, which are at most 16 x 16."""
        total = 0
        for part in _chunks(np.arange(len(boxes)), _PAIRS // FINE**2):
            chosen = boxes[part]
            rows = np.arange(FINE) <= (chosen.q_high - chosen.q_low)[:, None]
            columns = np.arange(FINE) <= (chosen.k_high - chosen.k_low)[:, None]
            pairs = self._at(_pairs(chosen), FINE, FINE)
            total += np.count_nonzero(pairs & rows[:, :, None] & columns[:, None, :])
        return total

    def _at(self, points: tuple[np.ndarray, np.ndarray], height: int, width: int) -> np.ndarray:
        """bool [boxes, height, width] at queries [boxes, height] and keys [boxes, width]."""
        q, k = (axis.astype(self.dtype) for axis in points)
        live = evaluate(self.keep, {**self.arrays, "q": q[:, :, None], "k": k[:, None, :]})
        return np.broadcast_to(live, (len(q), height, width))


def _chunks(chosen: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(chosen), size):
        yield chosen[start : start + size]


def _samples(boxes: Boxes, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys [boxes, side], evenly spread and with both ends."""
    steps = np.arange(side)
    height, width = boxes.q_high - boxes.q_low, boxes.k_high - boxes.k_low
    q = boxes.q_low[:, None] + height[:, None] * steps // (side - 1)
    k = boxes.k_low[:, None] + width[:, None] * steps // (side - 1)
    return q, k


def _pairs(boxes: Boxes) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys [boxes, 16]; a smaller box repeats its last ones."""
    steps = np.arange(FINE)
    q = np.minimum(boxes.q_low[:, None] + steps, boxes.q_high[:, None])
    k = np.minimum(boxes.k_low[:, None] + steps, boxes.k_high[:, None])
    return q, k


def fine_boxes(boxes: Boxes, at_once: int = 1 << 18) -> Iterator[tuple[np.ndarray, Boxes]]:
    """Cut boxes into fine ones: (index of the box each comes from, fine boxes), in chunks."""
    if not len(boxes):
        return
    height = int((boxes.q_high - boxes.q_low).max()) + 1
    width = int((boxes.k_high - boxes.k_low).max()) + 1
    q_step, k_step = np.meshgrid(
        np.arange(0, height, FINE), np.arange(0, width, FINE), indexing="ij"
    )
    for part in _chunks(np.arange(len(boxes)), max(1, at_once // q_step.size)):
        owner = np.repeat(part, q_step.size)
        q_low = boxes.q_low[owner] + np.tile(q_step.ravel(), len(part))
        k_low = boxes.k_low[owner] + np.tile(k_step.ravel(), len(part))
        real = (q_low <= boxes.q_high[owner]) & (k_low <= boxes.k_high[owner])
        owner, q_low, k_low = owner[real], q_low[real], k_low[real]
        yield owner, Boxes(
            q_low, np.minimum(q_low + FINE - 1, boxes.q_high[owner]),
            k_low, np.minimum(k_low + FINE - 1, boxes.k_high[owner]),
        )  # fmt: skip


def magnitude(expr: Expr, symbols: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> int:
    """A bound on |value| of everything computed on the way to the formula's value."""
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
