"""Predict the cost of a pass.

Predictions depend only on the mask, the lengths and the model of the card. Each distinct list of
tiles counts once, regardless of the number of heads or sequences. One mask at one pair of lengths
therefore always runs the same source on one model of card, with bitwise equal results.
"""

from __future__ import annotations

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
