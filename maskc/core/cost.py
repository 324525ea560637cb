"""Predict the cost of a pass.

Predictions depend only on the mask, the lengths and the model of the card. Each distinct list of
tiles counts once, regardless of the number of heads or sequences. Those only count in `Items`, for
calls that need not be batch-invariant. All other calls with one mask and one pair of lengths run
the same program on one model of card, with bitwise equal results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from maskc.core.problem import TileShape

EXCLUSIVE_DQ = "exclusive_dq"
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
    lone: int = 0
    """Tile rows (columns) with exactly one live tile."""
    queries: int = 0
    """All tile rows, of a backward pass: each has a tile of dq, even without live tiles."""


@dataclass(frozen=True, slots=True)
class Items:
    """The work items of a launch; a block takes one at a time, the longest first."""

    count: int
    tiles: int
    """The tiles of all items."""
    longest: int
    """The most tiles of an item."""

    def stretch(self, launch: LaunchCost, resident: int) -> float:
        """Return the time of the launch relative to evenly divided work; at least 1.

        Blocks take turns. If there are at most two turns, the last one takes as long as the first,
        however few items it has. If there are more, blocks drift apart, and it costs less. The
        longest item starts first, and is alone once items of mean length are done.

        Args:
            launch: the multiprocessors, and how fast a block is alone.
            resident: blocks that a multiprocessor runs at once.
        """
        slots = launch.multiprocessors * resident
        if not slots or not self.tiles:
            return 1.0
        whole, rest = divmod(self.count, slots)
        turns = whole + self._turn(rest, launch, resident)
        if self.count > _FEW_TURNS * slots:
            turns = min(turns, self.count / slots + _LAST_TURN)
        mean = self.tiles / self.count
        first = mean * self._turn(min(self.count, slots), launch, resident)
        first += (self.longest - mean) * self._turn(1, launch, resident)
        return max(1.0, slots * max(first / self.tiles, turns / self.count))

    @staticmethod
    def _turn(items: int, launch: LaunchCost, resident: int) -> float:
        """The time of a turn of few items, relative to that of a full one."""
        if not items:
            return 0.0
        return max(math.ceil(items / launch.multiprocessors) / resident, launch.alone)


_FEW_TURNS = 2
_LAST_TURN = 0.2
"""Time that the last of several turns adds, in turns. The times in
benchmarks/results/choices-fit-h200.json fit 0 to 1 about as well; of 0.2, 0.5 and 1 it chooses
best there."""


def stretch_of(
    launch: LaunchCost, resident: int, columns: Items | None, rows: Items | None = None
) -> float:
    """Return the time of a backward pass through its tiles, relative to evenly divided work.

    Args:
        launch: see `Items.stretch`.
        resident: see `Items.stretch`.
        columns: the items of the launch by tile columns; None where nobody counted them.
        rows: those of a launch by tile rows, which makes dq and has about half of the work; None
            where there is none.
    """
    if columns is None:
        return 1.0
    stretch = columns.stretch(launch, resident)
    return stretch if rows is None else (stretch + rows.stretch(launch, resident)) / 2


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """The cost of a launch in addition to its tiles, however few heads it has: a mask in parts pays
    it several times."""

    start: float = 0.0
    """Cycles of all multiprocessors together before blocks are at work."""
    join: float = 0.0
    """Cycles per query whose results are added to those of an earlier launch."""
    multiprocessors: int = 0
    """Multiprocessors that wait for the last row."""
    alone: float = 0.0
    """Cycles of a row that runs alone on a multiprocessor, relative to the time of a row among as
    many blocks as fit."""
    last_row: float = 0.0
    """The most cycles that they wait: long rows are cut."""
    step: float = 0.0
    """Cycles of all multiprocessors together for each launch of a pass; most launches are short."""


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
    lone: int = 0
    """Additional cycles of a tile row (column) with one live tile: nothing hides its loads."""
    query: int = 0
    """Per tile row of dq in a backward pass: it is cleared before and rounded after."""
    launch: LaunchCost = LaunchCost()
    """The cost of launches, for calls that have several."""

    def cycles(self, tally: Tally) -> int:
        """The cycles of a whole pass."""
        return (
            self.row * tally.rows + self.tile * tally.tiles + self.masked * tally.masked
            + self.lone * tally.lone + self.query * tally.queries
        )  # fmt: skip


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
    """Memory bandwidth per multiprocessor in bytes per cycle, at maximum clocks."""

    def cycles(self, microseconds: float) -> float:
        """Cycles of a multiprocessor that go by in a time."""
        return microseconds * 1e3 * self.ghz

    def milliseconds(self, cycles: float, launches: float = 1) -> float:
        """The time of work that keeps all multiprocessors busy, in milliseconds."""
        return cycles / (self.multiprocessors * self.ghz * 1e6) + launches * self.launch_us / 1e3


def at_least(tally: Tally, tile: TileShape, small: TileShape, n_kv: int) -> Tally:
    """Return a lower bound of the tally of smaller tiles of the same mask.

    A full tile inside the lengths is full of smaller ones; any other has at least one. If the
    smaller tiles do not divide the larger ones, only full ones are sure to be covered.

    Args:
        tally: of tiles of shape `tile`.
        tile: the shape of the larger tiles.
        small: the shape of the smaller tiles.
        n_kv: keys.
    """
    edges = tally.rows + -(-n_kv // tile.k)  # full tiles that the lengths may cut
    whole = max(0, tally.tiles - tally.masked - edges)
    queries = max(0, tally.queries - 1) * tile.q // small.q
    if tile.q % small.q or tile.k % small.k:
        tiles = whole * tile.q * tile.k // (small.q * small.k)
        return Tally(tally.rows, tiles, 0, queries=queries)
    small_per_large = (tile.q // small.q) * (tile.k // small.k)
    return Tally(tally.rows, tally.tiles + (small_per_large - 1) * whole, 0, queries=queries)
