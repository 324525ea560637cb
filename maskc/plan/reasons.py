"""Why a mask runs as it does, a sentence for each choice: what `maskc explain` prints of a plan."""

from __future__ import annotations

from maskc.core.problem import Direction
from maskc.plan import documents
from maskc.plan.boxes import box_note, grid_masks
from maskc.plan.cost import WHEN
from maskc.plan.types import Plan, PlannedMask


def why_other(plan: Plan) -> str:
    """When a call takes this source instead of the first of its pass."""
    how = f"boxes of a grid, {box_note(plan.boxes)}" if plan.boxes else plan.schedule.reason
    which = "backward: " if plan.direction is Direction.backward else ""
    return f"{which}or {how}: {documents.WHEN if plan.documents else WHEN}"


def why_no_boxes(plan: Plan) -> tuple[str, ...]:
    """Something to say only of products over a grid."""
    found = grid_masks(tuple(mask.ir for mask in plan.masks))
    if not found or plan.target.family != "sm90a":
        return ()
    grid = " x ".join(map(str, ("N", *found[0].extents)))
    return (f"a product over a grid of {grid}: tiles of consecutive tokens are as good as boxes",)


def why_lists(masks: tuple[PlannedMask, ...], use_ranges: bool) -> str:
    """Where kernels find live tiles."""
    if use_ranges:
        return "closed-form tile ranges: every row's live tiles are consecutive, no index memory"
    if any(mask.ir.selections for mask in masks):
        return "tile lists in memory (CSR), made at every call: what is chosen decides which live"
    if any(mask.ir.data for mask in masks):
        return "tile lists in memory (CSR): which tiles live depends on data given at call time"
    return "tile lists in memory (CSR): some rows have gaps between their live tiles"


def why_partial(masks: tuple[PlannedMask, ...], distances: bool, runs: tuple[int, ...]) -> str:
    """How Hopper's kernels treat partial tiles."""
    if distances:
        most = max(len(mask.intervals or ()) for mask in masks)
        more = f" and of {most} interval{'s' * (most != 1)} per row" if most else ""
        return f"partial tiles: bits from a table over k - q{more}, no pair is tested"
    if any(mask.intervals is None for mask in masks):
        alike = f", one for {runs[0]} keys" if runs[0] > 1 else ""
        return f"partial tiles: pairs are tested{alike}, as a query's keys are not a few intervals"
    most = max(len(mask.intervals or ()) for mask in masks)
    told = any(each.chosen is not None for mask in masks for each in mask.intervals or ())
    more = " and of the chosen blocks" if told else ""
    several = f"{most} interval{'s' * (most != 1)} per row"
    return f"partial tiles: bits of {several}{more}, no pair is tested"


def why_layout(mask: PlannedMask) -> str:
    """How live tiles are found."""
    recipe = mask.recipe
    if mask.ir.selections:
        return "layout by counts of chosen pairs: tiles that these leave in doubt count as partial"
    if recipe.loops is None:
        why = "it reads data" if mask.ir.data else "isl's budget or loop form did not suffice"
        return f"layout by exact numbers, because {why}"
    forms = f"layout from {len(recipe.loops)} closed-form loops"
    notes = [f"{name} = {value}" for name, value in recipe.fixed]
    notes += ["n_q = n_kv"] if recipe.square else []
    return forms + (f" where {', '.join(notes)}, else by exact numbers" if notes else "")
