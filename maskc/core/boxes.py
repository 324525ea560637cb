"""Tiles as boxes of a grid of tokens, instead of consecutive tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr

MAX_ALONG = 2048
"""Largest extent of a grid: what kernels read of an axis grows with its square."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Layout of tiles in a grid of tokens that are numbered row by row.

    Axes come outermost first, as the numbering has them. The first axis has as many steps as
    tokens allow, the others are constant.
    """

    extents: tuple[int, ...]
    """The extents of all axes except the first."""
    q: tuple[int, ...]
    """Extents of a tile of queries, the first axis included."""
    k: tuple[int, ...]
    """Extents of a tile of keys, the first axis included."""
    seen: int
    """Columns of a tile that a warpgroup looks at at once: keys, or queries in a backward pass."""

    @property
    def period(self) -> int:
        """The tokens of one step along the first axis."""
        return prod(self.extents)

    @property
    def folds(self) -> bool:
        """Whether copies have no dimension left for sequences, which are then as heads."""
        return len(self.extents) > 1

    def hold(self, n_q: int, n_kv: int) -> bool:
        """Whether these numbers of queries and keys form one grid over which kernels can run."""
        along = n_q // self.period
        whole = n_q == n_kv and n_q == along * self.period
        return whole and along > 0 and max(along, *self.extents) <= MAX_ALONG

    def grid(self, tokens: int) -> tuple[int, ...]:
        """The extents of all axes."""
        return (tokens // self.period, *self.extents)

    def counts(self, tokens: int) -> tuple[int, int]:
        """The numbers of tiles of queries and of keys."""
        grid = self.grid(tokens)
        return prod(boxes_along(grid, self.q)), prod(boxes_along(grid, self.k))


def boxes_along(grid: tuple[int, ...], box: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of boxes that cover each axis; the last ones may reach beyond."""
    return tuple(-(-extent // side) for extent, side in zip(grid, box, strict=True))


def steps_of(box: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distance of neighbors on each axis if a box is numbered row by row."""
    return tuple(prod(box[axis + 1 :]) for axis in range(len(box)))


def tokens_of(grid: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """The tokens of every box, int64 [boxes, tokens of a box]; -1 beyond the grid."""
    counts = boxes_along(grid, box)
    at = np.indices((*counts, *box)).reshape(2, len(grid), prod(counts), prod(box))
    sides = np.reshape(box, (-1, 1, 1))
    points, extents = at[0] * sides + at[1], np.reshape(grid, (-1, 1, 1))
    tokens = np.ravel_multi_index(tuple(np.minimum(points, extents - 1)), grid)
    return np.where((points < extents).all(axis=0), tokens, -1)


def sub_box(box: tuple[int, ...], tokens: int) -> tuple[int, ...] | None:
    """Return the box of the first `tokens` tokens of a box; None if they do not form a box."""
    sides: list[int] = []
    left = tokens
    for side in reversed(box):
        part = side if left % side == 0 else left
        if side % part:
            return None
        sides.insert(0, part)
        left //= part
    return tuple(sides) if left == 1 else None


def axis_relations(
    axes: Sequence[Expr], grid: tuple[int, ...], params: Mapping[str, object]
) -> list[np.ndarray]:
    """Find, for every axis, which coordinates of queries see which coordinates of keys.

    Args:
        axes: conditions over q, k, n_q, n_kv (the extent of the first axis) and parameters.
        grid: extents of all axes.
        params: values of parameters; others keep their defaults.

    Returns:
        bool [extent, extent] for every axis.
    """
    relations = []
    for formula, extent in zip(axes, grid, strict=True):
        tokens = np.arange(extent)
        env = {**E.params(formula), **params, "n_q": grid[0], "n_kv": grid[0]}
        live = evaluate(formula, {**env, "q": tokens[:, None], "k": tokens[None, :]})
        relations.append(np.broadcast_to(np.asarray(live, bool), (extent, extent)))
    return relations
