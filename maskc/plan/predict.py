"""Predicted time of a pass in milliseconds, for the card of the coefficients.

Predictions are printed next to measurements; no choice depends on them, see maskc/core/cost.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from maskc.core.bundle import N_KV_OF_ALL, Grid, Mode
from maskc.core.coefficients import card_of
from maskc.core.cost import Cost
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction
from maskc.dispatch.listed_split import ListedTiles, of_all, times, tokens_of
from maskc.dispatch.programs import least
from maskc.dispatch.residue_split import Tiled, obstacle, time_in_pairs
from maskc.layout import views
from maskc.layout.work.tile_counts import adders_of, tally_of
from maskc.plan.cost import candidates, launch_share, layout_at, programs_at
from maskc.plan.types import KernelPlan, PlannedMask

USUAL_HEADS = 16
"""Heads of predicted times, where a mask is not compiled for a number of heads."""
Tiles = Callable[[KernelPlan, PlannedMask, int, int], BlockLayout]
"""(plan, one of its masks, n_q, n_kv) -> its live tiles."""
_Cycles = tuple[float, float]
"""Cycles of all launches, and the number of launches; shorter ones than most count less."""


def milliseconds(
    plan: KernelPlan,
    direction: Direction,
    n_q: int,
    n_kv: int,
    owners: int,
    tiles: Tiles = layout_at,
) -> float | None:
    """Milliseconds of one pass on a card that it keeps busy; None where coefficients are not known,
    or the mask reads data that `tiles` does not know.

    Args:
        plan: of the forward pass, with those that go along.
        owners: heads of all sequences; where masks differ by head, a multiple of the heads.
        tiles: finds live tiles; the usual one knows masks that read no data.
    """
    card = card_of(plan.target.name)
    blind = tiles is layout_at and any(mask.ir.data for mask in plan.masks)
    if card is None or blind or not n_q or not n_kv:
        return None
    times = part_times(plan, n_q, n_kv, direction, owners)
    in_parts = times is not None and times[0] < times[1]
    asked = (plan, direction, n_q, n_kv, owners)
    time = _in_parts(*asked) if in_parts else _whole(*asked, tiles)
    return None if time is None else card.milliseconds(*time)


def part_times(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction, heads: int | None = None
) -> tuple[float, float] | None:
    """(in parts, whole), as the runtime reckons; None where parts do not hold or data decide.

    Args:
        heads: heads of all sequences, which share launches; None: one sequence's, or USUAL_HEADS
            where the mask is not compiled for a number of heads.
    """
    if not plan.parts or obstacle(plan.parts, n_q, n_kv) or plan.masks[0].ir.data:
        return None
    heads = heads or plan.problem.n_heads or USUAL_HEADS
    if any(part.listed for part in plan.parts):
        tiles = tuple(
            ListedTiles(
                part.listed, part.plan.masks[0].recipe, tokens_of(part.listed, n_q, n_kv, {}, {})[0]
            )
            for part in plan.parts
            if part.listed is not None
        )
        base, language = plan.parts[0].plan.masks[0].recipe, plan.target.language
        whole_time, parts_time = times(base, tiles, {}, language, n_q, n_kv, direction, heads)
        return parts_time, whole_time
    whole = (Tiled(plan.masks[0].recipe),)
    parts = [
        Tiled(part.plan.masks[0].recipe, stride=part.stride, keys=part.keys) for part in plan.parts
    ]
    rest = (plan.target.language, n_q, n_kv, direction, heads)
    return time_in_pairs(parts, *rest), time_in_pairs(whole, *rest)


def part_cycles(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction, heads: int
) -> float | None:
    """Predicted cycles of one head in parts, with its share of starting more launches than the
    whole mask; None where that is not known. No choice depends on them, see `part_times`.

    Args:
        heads: heads that share a launch.
    """
    card = card_of(plan.target.name)
    if card is None or not n_q or not n_kv:
        return None
    if part_times(plan, n_q, n_kv, direction, heads) is None:
        return None
    asked = (plan, direction, n_q, n_kv, 1)
    parts, whole = _in_parts(*asked), _whole(*asked, layout_at)
    if parts is None or whole is None:
        return None
    return parts[0] + (parts[1] - whole[1]) * card.launch_cycles / heads


def _in_parts(
    plan: KernelPlan, direction: Direction, n_q: int, n_kv: int, owners: int
) -> _Cycles | None:
    cycles, launches = 0.0, 0.0
    for number, part in enumerate(plan.parts):
        if number and direction is Direction.forward and part.listed is None:
            cycles += owners * n_q * _joining(part.plan)
        runs: list[tuple[int, int, int]] = []
        if part.listed is not None:
            tokens = tokens_of(part.listed, n_q, n_kv, {}, {})  # masks in parts read no data here
            lengths = (tokens.size, n_kv) if part.listed.side == "q" else (n_q, tokens.size)
            runs.append((*lengths, owners))
            arrays = {part.listed.array: tokens[0]}
            tiles = partial(layout_at, params=of_all(n_q, n_kv), arrays=arrays)
            launches += 1  # which moves rows
        else:
            every = views(part.stride, part.keys, n_q, n_kv)
            runs += ((view.n_q, view.n_kv, owners * view.count) for view in every)
            tiles = partial(layout_at, params={N_KV_OF_ALL: n_kv})
        for queries, keys, shares in runs:
            if queries and keys:
                time = _whole(part.plan, direction, queries, keys, shares, tiles)
                if time is None:
                    return None
                cycles, launches = cycles + time[0], launches + time[1]
    return cycles, launches


def _joining(plan: KernelPlan) -> float:
    """Cycles to read a row of out again, which the launch of another part has written."""
    card = card_of(plan.target.name)
    size = plan.problem.head_dim_v * plan.problem.dtype.itemsize
    return size / card.bytes_per_cycle if card is not None and card.bytes_per_cycle else 0.0


def _whole(
    plan: KernelPlan, direction: Direction, n_q: int, n_kv: int, owners: int, tiles: Tiles
) -> _Cycles | None:
    """The cost of the source that takes fewest cycles, in the mode that it then runs in."""
    cycles = []
    for candidate in candidates(plan, direction, n_q, n_kv):
        candidate_plan = candidate.plan
        layouts = [tiles(candidate_plan, mask, n_q, n_kv) for mask in candidate_plan.masks]
        tallies = [tally_of([layout], direction) for layout in layouts]
        rest = (adders_of(layouts), n_q, n_kv)
        least_cycles = [least(programs_at(candidate, tally, *rest)) for tally in tallies]
        if not candidate.costs or any(one.obstacle for one in least_cycles):
            continue
        costs = {cost.mode: cost for cost in candidate.costs}
        total = sum(
            heads * costs.get(program.mode, _default(costs)).cycles(tally)
            for heads, program, tally in zip(
                _heads(candidate_plan, owners), least_cycles, tallies, strict=True
            )
        )
        launches = launches_of(dict(candidate_plan.schedule.modes)[least_cycles[0].mode])
        cycles.append((total, launch_share(candidate_plan) * launches))
    return min(cycles) if cycles else None


def _default(costs: Mapping[str, Cost]) -> Cost:
    """The cost of the default mode, which modes without a cost of their own are close to."""
    return next(iter(costs.values()))


def launches_of(mode: Mode) -> int:
    """Launches with softmax, without those that few pairs need, or rows or columns in parts."""
    rare = (Grid.keys, Grid.merges, Grid.few)
    return sum(launch.grid not in rare for launch in mode.launched(frozenset()))


def _heads(plan: KernelPlan, owners: int) -> list[float]:
    """Return the number of heads of all sequences with each mask."""
    if not plan.of_head:
        return [float(owners)]
    count = Counter(plan.of_head)
    return [owners * count[number] / len(plan.of_head) for number in range(len(plan.masks))]
