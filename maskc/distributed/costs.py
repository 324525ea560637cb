"""What a rank's share of a pass takes, by the kernels' own cost model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskc.core.coefficients import card_of, costs, measured
from maskc.core.cost import Card, Cost
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.target import Target
from maskc.distributed.reach import TILE, Reach
from maskc.plan.families.table import family_of

_TARGET = "sm_90a"


@dataclass(frozen=True)
class PassCost:
    """One pass of the kernels that predictions are of."""

    tile: TileShape
    cost: Cost
    card: Card
    stream: Cost | None = None
    """Of rows with few tiles, on average less than `below`."""
    below: int = 0

    def milliseconds(self, cycles: np.ndarray) -> np.ndarray:
        """The time of work that keeps a card busy."""
        found: np.ndarray = cycles / (self.card.multiprocessors * self.card.ghz * 1e6)
        return found

    def of_blocks(self, reach: Reach, block: int, columns: bool) -> np.ndarray:
        """Cycles of every block of queries, of all heads.

        Args:
            reach: live and partial tiles of `block` queries and 128 keys.
            block: queries of a block.
            columns: whether the pass goes by columns, whose own cost is not that of blocks.
        """
        area = block * TILE / (self.tile.q * self.tile.k)
        rows = np.minimum(reach.tiles, reach.heads) * block / self.tile.q
        cost, live = self.cost, area * reach.tiles
        if self.stream is not None and live.sum() < self.below * rows.sum():
            cost = self.stream
        found = cost.tile * live + cost.masked * area * reach.partial
        return np.asarray(found if columns else found + cost.row * rows)

    def of_columns(self, keys: np.ndarray, heads: int) -> np.ndarray:
        """Cycles that a pass by columns takes for each of them, from keys of each rank."""
        found: np.ndarray = self.cost.row * heads * keys / self.tile.k
        return found


def pass_costs(problem: Problem) -> tuple[PassCost, PassCost]:
    """Of the forward and the backward pass on the card that coefficients are of.

    Other head dimensions than the measured ones take what the next greater one takes.
    """
    target, card = Target.named(_TARGET), card_of(_TARGET)
    if card is None:
        raise LookupError(f"cost.toml has no card of {_TARGET}")
    dims = sorted(int(dim) for dim in measured(_TARGET)["large"] if dim.isdigit())
    dim = next((each for each in dims if each >= problem.head_dim), dims[-1])
    like = Problem(dim, dim, problem.dtype)
    forward, backward = (
        family_of(target).schedule(like, (), direction, "") for direction in Direction
    )
    by_mode = {
        cost.mode: cost
        for cost in costs(_TARGET, Direction.forward, "", dim, {"usual", "stream"})
    }  # fmt: skip
    (of_columns,) = costs(_TARGET, Direction.backward, "", dim, {"usual"})
    below = forward.work.stream_below if forward.work else 0
    return (
        PassCost(forward.tile, by_mode["usual"], card, by_mode.get("stream"), below),
        PassCost(backward.tile, of_columns, card),
    )
