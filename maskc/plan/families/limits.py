"""Tiles and stages that a user may ask for instead of the planner's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from maskc.core.errors import TileUnsupported
from maskc.core.problem import Problem, TileShape


@dataclass(frozen=True, slots=True)
class Limits:
    """Tiles and stages of a family's forward kernels, for one problem."""

    target: str
    queries: tuple[int, ...]
    """Rows of a tile."""
    keys: tuple[int, ...]
    """Columns of a tile."""
    stages: tuple[int, ...] = ()
    """Tiles of keys in flight; none: the kernels have no such number."""

    def check(self, problem: Problem) -> None:
        """Raise an error for a tile or stages outside the limits.

        Raises:
            TileUnsupported.
        """
        tile, stages = problem.tile, problem.stages
        if tile is not None and tile.q not in self.queries:
            raise self.refused(problem, f"it has no tiles of {tile.q} queries")
        if tile is not None and tile.k not in self.keys:
            raise self.refused(problem, f"it has no tiles of {tile.k} keys")
        if stages is not None and not self.stages:
            raise self.refused(problem, "its kernels have no pipeline stages")
        if stages is not None and stages not in self.stages:
            raise self.refused(problem, f"it has no kernels with {stages} stages")

    def refused(self, problem: Problem, why: str) -> TileUnsupported:
        """Return the error with the request, the reason and the limits."""
        place = "stages" if problem.tile is None else "tile"
        return TileUnsupported(self.target, asked_text(problem), why, str(self), at=place)

    def problems(self, problem: Problem) -> Iterator[Problem]:
        """The problem with every tile and number of stages inside; some may not fit the card."""
        for q in self.queries:
            for k in self.keys:
                for stages in self.stages or (None,):
                    yield replace(problem, tile=TileShape(q, k), stages=stages)

    def __str__(self) -> str:
        sizes = f"tile=(q, k) with q {_any_of(self.queries)} and k {_any_of(self.keys)}"
        if not self.stages:
            return f"{self.target} takes {sizes}"
        return f"{self.target} takes {sizes}, and stages {_any_of(self.stages)}, as far as they fit"


def asked_text(problem: Problem) -> str:
    """`tile=(128, 64), stages=3`."""
    parts = []
    if problem.tile is not None:
        parts.append(f"tile=({problem.tile.q}, {problem.tile.k})")
    if problem.stages is not None:
        parts.append(f"stages={problem.stages}")
    return ", ".join(parts)


def _any_of(numbers: tuple[int, ...]) -> str:
    """`64`, `64 or 128`, `16, 32 or 64`; five or more as `2 to 8`."""
    texts = [str(number) for number in numbers]
    if len(numbers) > 4:
        return f"{texts[0]} to {texts[-1]}"
    return " or ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
