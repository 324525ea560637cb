"""Cost of a rank's share of a pass, by the kernels' own cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from maskc import driver
from maskc.core.bundle import DEFAULT, PERSISTENT
from maskc.core.coefficients import card_of, costs, measured
from maskc.core.cost import Card, Cost
from maskc.core.errors import MaskcError
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.target import Target
from maskc.distributed.reach import TILE, Lengths, Reach, reach_of
from maskc.distributed.work import RankCall
from maskc.dsl.mask import Mask
from maskc.dsl.slots import emptied
from maskc.layout import atom_arrays, held_arrays
from maskc.plan.cost import layout_at
from maskc.plan.families.table import family_of
from maskc.plan.predict import milliseconds
from maskc.plan.types import KernelPlan, PlannedMask

if TYPE_CHECKING:
    from maskc.distributed.setting import Setting

_TARGET = "sm_90a"
_LONGEST = 1 << 17
"""Tokens at which the shares of longer sequences are reckoned."""


@dataclass(frozen=True)
class PassCost:
    """One pass of the kernels that predictions are of."""

    tile: TileShape
    costs: tuple[Cost, ...]
    """The cost of each mode; a pass runs in the cheapest."""
    card: Card
    columns: bool = False
    """Whether the pass runs by columns, and adds a cost per row of dq to the cost of tiles."""

    def milliseconds(self, cycles: np.ndarray) -> np.ndarray:
        """The time that work keeps a card busy, of the shape of `cycles`."""
        times: np.ndarray = cycles / (self.card.multiprocessors * self.card.ghz * 1e6)
        return times

    def of_blocks(self, reach: Reach, block: int) -> np.ndarray:
        """Count the cycles of every block of queries, for all heads: float [blocks].

        Args:
            reach: live and partial tiles of `block` queries and 128 keys.
            block: queries of a block.
        """
        area = block * TILE / (self.tile.q * self.tile.k)
        rows = np.minimum(reach.tiles, reach.heads) * block / self.tile.q
        live, partial = area * reach.tiles, area * reach.partial
        cycles = [cost.tile * live + cost.masked * partial + cost.row * rows for cost in self.costs]
        number = min(range(len(cycles)), key=lambda i: float(cycles[i].sum()))
        tile_cycles = cycles[number] - self.columns * self.costs[number].row * rows
        return np.asarray(tile_cycles)

    def of_rows(self, tokens: np.ndarray, heads: int) -> np.ndarray:
        """Count the cycles that a pass by columns needs besides tiles: float64 [ranks].

        Args:
            tokens: int64 [ranks]: the queries of each rank.
            heads: query heads.
        """
        cost = self.costs[0]
        row_cost = cost.row / self.tile.k + cost.query / self.tile.q
        return np.asarray(self.columns * row_cost * heads * tokens)


def shares(mask: Mask, reach: Reach, lengths: Lengths, setting: Setting) -> tuple[float, float]:
    """Return the costs of both passes, relative to the tiles of the sequence.

    Masks with remainders run over one residue class after another, with far fewer tiles than the
    whole mask. The model assumes that all rows gain equally.

    Args:
        reach: reach of the mask, which reads no data, at these lengths.
        lengths: queries and keys; only equal ones have other costs than those of tiles.
    """
    n, target = lengths[0], Target.named(_TARGET)
    count = min(n, _LONGEST) if lengths[1] == n else 0
    if not reach.remainders or not count or driver.selects(mask):
        return 1.0, 1.0
    try:
        plan = driver.plan_kernel(mask, replace(setting.problem, n_heads=reach.heads), target)
        if not plan.parts or any(part.listed is not None for part in plan.parts):
            return 1.0, 1.0
        if count < n:
            reach = reach_of(mask, (count, count), TILE, reach.heads, {})
        block = -(-count // len(reach.tiles))
        costs = []
        for direction, pass_of in zip(Direction, setting.passes, strict=True):
            whole = milliseconds(plan, direction, count, count, reach.heads)
            cycles = pass_of.of_blocks(reach, block).sum()
            cycles += pass_of.of_rows(np.asarray([count]), reach.heads).sum()
            of_tiles = float(pass_of.milliseconds(cycles))
            costs.append(min(1.0, whole / of_tiles) if whole and of_tiles else 1.0)
    except MaskcError:  # too many tiles to count
        return 1.0, 1.0
    return costs[0], costs[1]


def of_call(call: RankCall, problem: Problem, direction: Direction, heads: int) -> float | None:
    """Return the milliseconds of a call by the plan of its kernel; None if they depend on data or a
    selection.

    Args:
        problem: without heads; heads: query heads.
    """
    inner, held = emptied(call.local.mask)
    params = {name: x for name, x in call.local.data.items() if isinstance(x, int)}
    if len(params) < len(call.local.data) or driver.selects(inner):
        return None
    if not call.rows or not call.keys:
        return 0.0
    plan = driver.plan_kernel(inner, replace(problem, n_heads=heads), Target.named(_TARGET))
    lengths = call.rows, call.keys
    arrays: dict[str, np.ndarray] = {}
    if held is not None:
        tables = held_arrays(held.of_call(1, heads, *lengths), params, *lengths)
        decls = dict.fromkeys(decl for mask in plan.masks for decl in mask.ir.data)
        arrays = tables | atom_arrays(tuple(decls), tables, *lengths)

    def tiles(plan: KernelPlan, mask: PlannedMask, n_q: int, n_kv: int) -> BlockLayout:
        return layout_at(plan, mask, n_q, n_kv, params, arrays)

    return milliseconds(plan, direction, *lengths, heads, tiles)


def pass_costs(problem: Problem) -> tuple[PassCost, PassCost]:
    """Costs of the forward and the backward pass on the card that coefficients are of.

    Head dimensions that were not measured have the costs of the next larger one.
    """
    target, card = Target.named(_TARGET), card_of(_TARGET)
    if card is None:
        raise LookupError(f"cost.toml has no card of {_TARGET}")
    dims = sorted(int(dim) for dim in measured(_TARGET)["large"] if dim.isdigit())
    dim = next((dim for dim in dims if dim >= problem.head_dim), dims[-1])
    like = Problem(dim, dim, problem.dtype)
    forward, backward = (
        family_of(target).schedule(like, (), direction, "") for direction in Direction
    )
    of_rows = costs(measured(_TARGET), Direction.forward, "", dim, {DEFAULT, PERSISTENT})
    of_columns = costs(measured(_TARGET), Direction.backward, "", dim, {DEFAULT})
    return (
        PassCost(forward.tile, of_rows, card),
        PassCost(backward.tile, of_columns, card, columns=True),
    )
