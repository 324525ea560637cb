"""The predicted cost of a pass, and which of several sources is cheapest.

Predictions depend on the mask, the lengths and the model of the card alone: each distinct list of
tiles counts once, however many heads or sequences have it. So one mask at one pair of lengths
always runs the same source on one model of card, and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from maskc.core.boxes import Boxes
from maskc.core.problem import TileShape

ONCE = "once"
"""The mode of a backward pass without a tile row that several tile columns have: nothing of dq is
added up. It knows no gradients of OF_HEADS."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over the distinct lists of tiles of a pass."""

    rows: int
    """Tile rows with a live tile; tile columns in a backward pass."""
    tiles: int
    """Live tiles."""
    masked: int
    """Live tiles with dead pairs."""
    single: bool = False
    """Whether no tile row has several tiles, for a backward pass that may store dq."""
    alone: bool = False
    """Whether, besides, no tile column has."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of work in one mode of a source.

    It is in cycles of a multiprocessor whose blocks are all at work.
    """

    mode: str
    row: int
    """Per tile row (column) that has a live tile."""
    tile: int
    """Per live tile."""
    masked: int
    """Additional cycles of a live tile with dead pairs."""

    def cycles(self, tally: Tally) -> int:
        """The cycles of a whole pass."""
        return self.row * tally.rows + self.tile * tally.tiles + self.masked * tally.masked


@dataclass(frozen=True, slots=True)
class Card:
    """The GPU on which coefficients were measured."""

    name: str
    multiprocessors: int
    ghz: float
    """Cycles per nanosecond, as cycles are counted in coefficients."""
    launch_us: float
    """The overhead of a launch, in microseconds."""
    bytes_per_cycle: float = 0.0
    """What memory gives a multiprocessor, at the greatest clocks of both."""

    def milliseconds(self, cycles: float, launches: float = 1) -> float:
        """The time of work that keeps all multiprocessors busy, in milliseconds."""
        return cycles / (self.multiprocessors * self.ghz * 1e6) + launches * self.launch_us / 1e3


class Costed(Protocol):
    """A source that runs a pass in one of several modes."""

    @property
    def tile(self) -> TileShape:
        """The tile that one step computes."""

    @property
    def costs(self) -> tuple[Cost, ...]:
        """One cost for each mode."""

    @property
    def boxes(self) -> Boxes | None:
        """The boxes, where tiles are boxes of a grid."""


Source = TypeVar("Source", bound=Costed)


def modes_with(costs: Sequence[Cost], tally: Tally) -> tuple[Cost, ...]:
    """The modes that a pass with these tiles may run in: ONCE where it can, and only there.

    A source that has no other mode gives a warp to each tile column. It is only for tiles that are
    alone in theirs, because no warp would share the work of a long column.
    """
    once = tuple(cost for cost in costs if cost.mode == ONCE)
    others = tuple(cost for cost in costs if cost.mode != ONCE)
    if not once:
        return others
    return once if (tally.single if others else tally.alone) else others


def cycles(source: Costed, tally: Tally) -> float:
    """The cycles of a pass in its cheapest mode.

    The result is 0 where the source has no costs, and infinite where none of its modes can run.
    """
    if not source.costs:
        return 0
    return min((cost.cycles(tally) for cost in modes_with(source.costs, tally)), default=math.inf)


def faster(source: Costed, tally: Tally) -> str:
    """The cheapest mode of a pass with these tiles; of equal ones the first.

    The result is "" where no mode has a cost.
    """
    known = modes_with(source.costs, tally)
    best = min(known, key=lambda cost: cost.cycles(tally), default=None)
    return "" if best is None else best.mode


def at_least(tally: Tally, tile: TileShape, small: TileShape, n_kv: int) -> Tally:
    """A lower bound of the tally of smaller tiles of the same mask, from that of larger ones.

    A full tile inside the lengths is full of smaller ones; any other has at least one. Where the
    smaller tiles do not divide the larger ones, only full ones are sure to be covered. Smaller
    tiles may always be alone in their rows and columns.

    Args:
        tally: of tiles of shape `tile`.
        tile: the shape of the larger tiles.
        small: the shape of the smaller tiles.
        n_kv: keys.
    """
    edges = tally.rows + -(-n_kv // tile.k)  # full tiles that the lengths may cut
    whole = max(0, tally.tiles - tally.masked - edges)
    if tile.q % small.q or tile.k % small.k:
        return Tally(tally.rows, whole * tile.q * tile.k // (small.q * small.k), 0, True, True)
    each = (tile.q // small.q) * (tile.k // small.k)
    return Tally(tally.rows, tally.tiles + (each - 1) * whole, 0, True, True)


def cheapest(
    sources: Sequence[Source], tally_of: Callable[[Source], Tally], n_kv: int
) -> Source:  # fmt: skip
    """The source of least cycles, of equal ones the first.

    Tiles are counted only for sources that might take less than one counted before; what boxes of
    a grid take cannot be told from other tiles.

    Args:
        sources: the one with the largest tiles first, which are no boxes.
        tally_of: counts the tiles of a source.
        n_kv: keys.
    """
    best, *others = sources
    first = tally_of(best)
    least = cycles(best, first)
    for source in others:
        if source.boxes is None:
            fewest = at_least(first, sources[0].tile, source.tile, n_kv)
            if cycles(source, fewest) >= least:
                continue
        found = cycles(source, tally_of(source))
        if found < least:
            best, least = source, found
    return best
