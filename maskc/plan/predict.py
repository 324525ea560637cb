"""Predicted time of a pass in milliseconds, for the card of the coefficients.

These predictions are only printed. Choices use maskc/core/cost.py.
"""

from __future__ import annotations

from collections import Counter

from maskc.core.coefficients import card_of
from maskc.core.problem import Direction
from maskc.dispatch.programs import Facts, least
from maskc.layout.work.tile_counts import adders_of, tally_of
from maskc.plan.cost import (
    Candidate,
    Tiles,
    candidates,
    choice,
    items_of,
    launch_share,
    layout_at,
    programs_at,
)
from maskc.plan.types import KernelPlan

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
    """Milliseconds of one pass on a card that it keeps busy; None if coefficients are not known,
    or the mask reads data that `tiles` does not know.

    Args:
        plan: of the forward pass, with those that go along.
        owners: heads of all sequences; where masks differ by head, a multiple of the heads.
        tiles: finds live tiles; the default works for masks that read no data.
    """
    card = card_of(plan.target.name)
    blind = tiles is layout_at and any(mask.ir.data for mask in plan.masks)
    if card is None or blind or not n_q or not n_kv:
        return None
    chosen = choice(plan, n_q, n_kv, direction, owners) if plan.parts else None
    if chosen is not None and chosen[0].runs_in_parts:  # beyond the launches of the whole mask
        whole = least([program for program in chosen[1] if not program.runs_in_parts])
        launches = _launches(whole.unit, whole.mode)
        return card.milliseconds(owners * chosen[0].cycles, launches)
    time = _whole(plan, direction, n_q, n_kv, owners, tiles)
    return None if time is None else card.milliseconds(*time)


def _whole(
    plan: KernelPlan, direction: Direction, n_q: int, n_kv: int, owners: int, tiles: Tiles
) -> _Cycles | None:
    """Return the cost of the source and mode with the fewest cycles."""
    cycles = []
    for candidate in candidates(plan, direction, n_q, n_kv):
        candidate_plan = candidate.plan
        layouts = [tiles(candidate_plan, mask, n_q, n_kv) for mask in candidate_plan.masks]
        adders = adders_of(layouts)
        items = items_of(candidate_plan, layouts, n_q, n_kv, owners)
        facts = [Facts(tally_of([one], direction), adders, items=items) for one in layouts]
        fastest = [least(programs_at(candidate, one, n_q, n_kv, heads=owners)) for one in facts]
        if not candidate.costs or any(program.obstacle for program in fastest):
            continue
        total = sum(
            heads * (program.cycles + program.idle)
            for heads, program in zip(_heads(candidate_plan, owners), fastest, strict=True)
        )
        cycles.append((total, _launches(candidate, fastest[0].mode)))
    return min(cycles) if cycles else None


def _launches(candidate: Candidate, mode: str) -> float:
    """The launches of a source; shorter ones than most count less."""
    return launch_share(candidate.plan) * len(dict(candidate.modes)[mode].usual_launches)


def _heads(plan: KernelPlan, owners: int) -> list[float]:
    """Return the number of heads of all sequences with each mask."""
    if not plan.of_head:
        return [float(owners)]
    count = Counter(plan.of_head)
    return [owners * count[number] / len(plan.of_head) for number in range(len(plan.masks))]
