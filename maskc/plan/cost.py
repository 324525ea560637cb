"""What the cost model says of two plans of one mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from maskc.core import coefficients
from maskc.core.boxes import axis_relations
from maskc.core.coefficients import source_name, step_size
from maskc.core.cost import Cost, cheapest, cycles
from maskc.core.forms import SMALL
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction
from maskc.layout.tiles.document_tiles import beside_documents
from maskc.layout.work.tile_counts import tally_of
from maskc.plan.families.table import family_of
from maskc.plan.types import KernelPlan, PlannedMask

WHEN = (
    "taken by a call when the exact tiles of its lengths are predicted to take fewer cycles "
    "(never for data given per sequence)"
)


def launch_share(plan: KernelPlan) -> float:
    """What a launch of a plan's source takes besides its cycles, of what most take."""
    forms = coefficients.measured(plan.target.name)
    own = forms.get(source_name(plan.direction, plan.form), {}).get("launch_us")
    return 1.0 if own is None else own / forms["card"]["launch_us"]


def costs_of(plan: KernelPlan) -> tuple[Cost, ...]:
    """What a plan's modes take; none where nothing is known."""
    size = 1.0
    other = plan.boxes is not None or plan.problem.names_tile
    if other and plan.direction is Direction.forward:
        usual = family_of(plan.target).schedule(plan.padded.planned, (), plan.direction, "")
        size = step_size(plan.tile.k, usual.tile.k)
    modes = dict(plan.schedule.modes)
    head_dim = plan.padded.head_dim
    return coefficients.costs(plan.target.name, plan.direction, plan.form, head_dim, modes, size)


def layout_at(
    plan: KernelPlan, mask: PlannedMask, n_q: int, n_kv: int, params: Mapping[str, int] = {},
    arrays: Mapping[str, np.ndarray] = {},
) -> BlockLayout:  # fmt: skip
    """The tiles of one of a plan's masks, which reads no other data; parameters that are not given
    are at their defaults."""
    from maskc.layout import build
    from maskc.layout.tiles.grid_tiles import box_layout

    if plan.boxes is None:
        return build(mask.recipe, n_q, n_kv, params, arrays)
    return box_layout(plan.boxes, axis_relations(mask.axes, plan.boxes.grid(n_q), {}))


def title(plan: KernelPlan) -> str:
    """The tiles of a plan in a few words."""
    size = f"{plan.tile.q} x {plan.tile.k}"
    return f"{'boxes' if plan.boxes else 'tiles'} of {size}"


def smaller(plan: KernelPlan) -> Iterator[KernelPlan]:
    """The plans of the same pass in smaller tiles."""
    return (e for e in plan.also if e.form == SMALL and e.direction is plan.direction)


def most_in_small_tiles(plan: KernelPlan) -> int | None:
    """The greatest `max_seqlen` with which documents run in the smaller tiles, parameters at their
    defaults; 0 where none does, None where there is no such choice."""
    from maskc.dispatch.source_choice import LONGEST, suited
    from maskc.layout.inputs.max_seqlen import promises

    small = tuple(smaller(plan))
    if not plan.documents or not small:
        return None
    ir = plan.masks[0].ir
    beside = beside_documents(ir.keep, tuple(ir.data))
    found = (each for each in reversed(promises(LONGEST))
             if suited((plan, *small), beside, ir.params, each) is not plan)  # fmt: skip
    return next(found, 0)


def choice(plan: KernelPlan, n_q: int, n_kv: int) -> tuple[KernelPlan, dict[str, float]] | None:
    """(the plan whose source a call takes, predicted cycles of each by its tiles); None where there
    is no choice, or it depends on data.

    Cycles count every distinct mask once.
    """
    plans = [
        plan,
        *(each for each in plan.also
          if each.form and each.direction is plan.direction and (each.boxes is None or
          each.boxes.hold(n_q, n_kv))),
    ]  # fmt: skip
    if len(plans) == 1 or any(mask.ir.data for mask in plan.masks):
        return None
    found = {
        each.form: tally_of(
            (layout_at(each, mask, n_q, n_kv) for mask in each.masks), plan.direction
        )
        for each in plans
    }
    taken = cheapest(plans, lambda each: found[each.form], n_kv)
    named = {title(p): cycles(p, found[p.form]) for p in plans}
    return taken, named
