"""The cost model's coefficients, from cost.toml, and what it says of two plans of one mask."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from maskc.core.boxes import axis_relations
from maskc.core.cost import Card, Cost, cheapest, cycles
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction
from maskc.layout.documents import beside_documents
from maskc.layout.tally import tally_of
from maskc.plan.sm90a import step_size
from maskc.plan.types import Plan, PlannedMask

SMALL = "small"
"""The form of a source for short rows."""
TINY = "tiny"
"""The form of a source for rows of very few keys."""
GRID = "grid"
"""The form of a source whose tiles are boxes of a grid."""
WHEN = (
    "taken by a call when the exact tiles of its lengths are predicted to take fewer cycles "
    "(never for data given per sequence)"
)


_COEFFICIENTS = {
    (Direction.forward, SMALL): "small",
    (Direction.backward, SMALL): "small_backward",
    (Direction.forward, TINY): "tiny",
    (Direction.backward, TINY): "tiny_backward",
}
"""What coefficients of sources are called which are not the first ones of their pass."""


@cache
def _coefficients() -> Mapping[str, Mapping]:
    return tomllib.loads((files("maskc.plan") / "cost.toml").read_text("utf-8"))


def card_of(target: str) -> Card | None:
    """The card that coefficients of a target were measured on; None where there are none."""
    found = _coefficients().get(target, {}).get("card")
    return None if found is None else Card(**found)


def source_name(direction: Direction, form: str) -> str:
    """What coefficients call a source: `large`, `small`, `tiny`, `backward`, `small_backward` or
    `tiny_backward`."""
    first = "backward" if direction is Direction.backward else "large"
    return _COEFFICIENTS.get((direction, form), first)


def launch_share(plan: Plan) -> float:
    """What a launch of a plan's source takes besides its cycles, of what most take."""
    forms = _coefficients().get(plan.target.name, {})
    own = forms.get(source_name(plan.direction, plan.form), {}).get("launch_us")
    return 1.0 if own is None else own / forms["card"]["launch_us"]


def costs_of(plan: Plan) -> tuple[Cost, ...]:
    """What a plan's modes take; none where nothing is known."""
    forms = _coefficients().get(plan.target.name, {})
    name = source_name(plan.direction, plan.form)
    modes = forms.get(name, {}).get(str(plan.problem.head_dim), {})
    size = 1.0
    if plan.boxes is not None and plan.direction is Direction.forward:
        size = step_size(plan.problem, plan.tile.k)
    return tuple(
        Cost(mode, found["row"], round(size * found["tile"]), round(size * found["masked"]))
        for mode, found in modes.items()
        if mode in dict(getattr(plan.schedule, "modes", ()))
    )


def layout_at(
    plan: Plan, mask: PlannedMask, n_q: int, n_kv: int, params: Mapping[str, int] = {}
) -> BlockLayout:  # fmt: skip
    """The tiles of one of a plan's masks, which reads no data; parameters that are not given are at
    their defaults."""
    from maskc.layout import build
    from maskc.layout.boxes import box_layout

    if plan.boxes is None:
        return build(mask.recipe, n_q, n_kv, params, {})
    return box_layout(plan.boxes, axis_relations(mask.axes, plan.boxes.grid(n_q), {}))


def title(plan: Plan) -> str:
    """The tiles of a plan in a few words."""
    size = f"{plan.tile.q} x {plan.tile.k}"
    return f"{'boxes' if plan.boxes else 'tiles'} of {size}"


def smaller(plan: Plan) -> Iterator[Plan]:
    """Of the same pass, in smaller tiles."""
    return (e for e in plan.also if e.form == SMALL and e.direction is plan.direction)


def most_in_small_tiles(plan: Plan) -> int | None:
    """The greatest `max_seqlen` with which documents run in the smaller tiles, parameters at their
    defaults; 0 where none does, None where there is no such choice."""
    from maskc.layout.promises import promises
    from maskc.layout.suited import LONGEST, suited

    small = tuple(smaller(plan))
    if not plan.documents or not small:
        return None
    ir = plan.masks[0].ir
    beside = beside_documents(ir.keep, tuple(ir.data))
    found = (each for each in reversed(promises(LONGEST))
             if suited((plan, *small), beside, ir.params, each) is not plan)  # fmt: skip
    return next(found, 0)


def choice(plan: Plan, n_q: int, n_kv: int) -> tuple[Plan, dict[str, int]] | None:
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
