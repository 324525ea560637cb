"""Coefficients of the cost model from measured times.

The model says that a pass with `rows` tile rows, `tiles` tiles, `masked` tiles with dead pairs,
`lone` rows with one tile, `queries` tile rows of dq and `tests` operations on pairs takes

    launches * launch + (stretch * (row * rows + tile * tiles + more * masked + alone * lone
        + test * tests) + query * queries) / (multiprocessors * clock).

Least squares of relative errors give the coefficients; none is negative. The time of a launch is a
property of the card, so all fits share the value that makes the sum of their squares least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from maskc.core.cost import EXCLUSIVE_DQ, Cost
from maskc.core.errors import UsageMistake

GHZ = 1.7
"""The clock in which cycles are counted, whatever the card's clock is: only products with times
have a meaning."""
_LAUNCHES = tuple(i / 10 for i in range(500))
"""Candidates for the time of a launch, in microseconds."""
_STRIDE = 16
"""Every so manieth candidate is tried first."""
_FEWEST = 5
"""The least number of measured times for fitting the coefficients of a mode."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time."""

    source: str
    """`large`, `small`, `backward` or `small_backward`."""
    head_dim: int
    mode: str
    rows: int
    tiles: int
    masked: int
    launches: int
    ms: float
    lone: int = 0
    queries: int = 0
    tests: int = 0
    """Operations of the condition that partial tiles test for every pair, times these tiles."""
    stretch: float = 1.0
    """The time of the launches through the tiles, relative to evenly divided work."""

    @property
    def counts(self) -> list[float]:
        """The factors of row, tile, masked, lone, query and test."""
        of_tiles = (self.rows, self.tiles, self.masked, self.lone)
        stored = self.stretch if self.mode == EXCLUSIVE_DQ else 1.0  # by the launch of the tiles
        return [
            *(self.stretch * count for count in of_tiles),
            stored * self.queries,
            self.stretch * self.tests,
        ]


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients of one mode of a source."""

    source: str
    head_dim: int
    cost: Cost
    launch_us: float
    worst: float
    """The greatest relative error of a time."""
    squares: float = 0.0
    """The sum of the squared relative errors."""
    test: int | None = None
    """More cycles of a partial tile for each operation that tests pairs; None where no sample has
    such tiles."""

    def __str__(self) -> str:
        return (
            f"{self.source} {self.head_dim} {self.cost.mode}: row {self.cost.row}, "
            f"tile {self.cost.tile}, masked {self.cost.masked} cycles, "
            f"launch {self.launch_us:.1f} us; right to {self.worst:.0%}"
        )


def fits(samples: Sequence[Sample], multiprocessors: int) -> list[Fit]:
    """Return the fit of every mode with enough samples, in the order of the samples.

    Args:
        samples: measured times.
        multiprocessors: of the card.

    Raises:
        UsageMistake: no mode has enough samples.
    """
    groups: dict[tuple[str, int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.source, sample.head_dim, sample.mode), []).append(sample)
    enough = [group for group in groups.values() if len(group) >= _FEWEST]
    if not enough:
        hint = "measure more masks: leave out options that select some of them"
        raise UsageMistake(f"fewer than {_FEWEST} times of each source and mode", hint)

    def squares(launch_us: float) -> float:
        return sum(_fit(group, multiprocessors, launch_us).squares for group in enough)

    best = min(range(0, len(_LAUNCHES), _STRIDE), key=lambda i: squares(_LAUNCHES[i]))
    # The sum of squares is convex in the time of a launch, so the least one is not far from it.
    near = _LAUNCHES[max(best - _STRIDE, 0) : best + _STRIDE + 1]
    launch = min(near, key=squares)
    return [_fit(group, multiprocessors, launch) for group in enough]


def _fit(samples: Sequence[Sample], multiprocessors: int, launch_us: float) -> Fit:
    """Return the coefficients of one mode, given the time of a launch."""
    per_cycle = 1 / (multiprocessors * GHZ * 1e6)
    ms = np.array([x.ms for x in samples])
    counts = [x.counts for x in samples]
    launches = np.array([x.launches / 1e3 for x in samples])
    shares = np.column_stack([launches, per_cycle * np.array(counts, float)]) / ms[:, None]
    numbers = [round(x) for x in non_negative(shares[:, 1:], 1 - launch_us * shares[:, 0])]
    errors = shares @ np.array([launch_us, *numbers]) - 1
    first = samples[0]
    worst, squares = float(np.abs(errors).max()), float(errors @ errors)
    *of_tiles, test = numbers
    tested = test if any(x.tests for x in samples) else None
    cost = Cost(first.mode, *of_tiles)
    return Fit(first.source, first.head_dim, cost, launch_us, worst, squares, tested)


def non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Find float64 [columns], x >= 0, that brings matrix @ x nearest to target.

    Args:
        matrix: float64 [rows, columns]; columns are few, so every subset of them is tried.
        target: float64 [rows].
    """
    size, columns = matrix.shape[1], np.flatnonzero(matrix.any(axis=0))
    best, least = np.zeros(size), float(np.inf)
    for chosen in chain.from_iterable(combinations(columns, n) for n in range(1, len(columns) + 1)):
        trial = np.zeros(size)
        trial[list(chosen)] = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
        error = float(((matrix @ trial - target) ** 2).sum())
        if (trial >= 0).all() and error < least:
            best, least = trial, error
    return best
