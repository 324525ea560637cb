"""Prepare masks for a tile: lifted constants, closed forms, intervals, recipes for lists."""

from __future__ import annotations

from dataclasses import replace

from maskc.analysis.facts import MaskFacts
from maskc.analysis.head_groups import HeadGroups
from maskc.core.bundle import LayoutRecipe
from maskc.core.problem import Problem, TileShape
from maskc.ir.lift import lift
from maskc.ir.types import MaskIR
from maskc.layout.tiles.relative_bits import parts_by_distance
from maskc.plan.data_intervals import DataIntervals
from maskc.plan.intervals import chosen_atom, intervals, intervals_alongside
from maskc.plan.ranges import row_ranges
from maskc.plan.recipe import difficulty, layout_recipe
from maskc.plan.types import PlannedMask

FEW, MANY = 3, 1 << 16
"""Intervals per row that are cheaper than bits from memory; more than any row has."""


def masks_for(heads: HeadGroups, tile: TileShape) -> tuple[PlannedMask, ...]:
    """Prepare the masks of all heads. Similar heads share one attempt to find closed forms of
    lists."""
    planned: list[PlannedMask] = []
    hopeless: set[tuple[str, ...]] = set()
    for ir, facts in zip(heads.masks, heads.facts, strict=True):
        kind = difficulty(ir.keep)
        planned.append(mask_for(ir, facts, tile, kind not in hopeless))
        if planned[-1].recipe.loops is None:
            hopeless.add(kind)
    return tuple(planned)


def mask_for(ir: MaskIR, facts: MaskFacts, tile: TileShape, closed: bool = True) -> PlannedMask:
    """Prepare one mask. Closed-form ranges are tried only if the keys of a query are proved to be
    consecutive.

    Args:
        closed: whether closed forms of lists are sought.
    """
    lifted = lift(ir.keep)
    ranges = row_ranges(lifted.shape, tile) if facts.contiguous_rows.holds else None
    recipe = layout_recipe(ir.keep, tile) if closed else LayoutRecipe(tile, ir.keep, None)
    per_row = intervals(lifted.shape, chosen_atom(ir, lifted), lifted.args)
    return PlannedMask(ir, lifted, recipe, ranges, per_row)


def without_chosen(mask: PlannedMask) -> PlannedMask:
    """Return the mask without intervals of selected pairs: kernels support them for a single
    formula only."""
    told = any(interval.chosen is not None for interval in mask.intervals or ())
    return replace(mask, intervals=None) if told else mask


def without_floors(mask: PlannedMask) -> PlannedMask:
    """Return the mask for a backward pass on Hopper, without intervals found behind floors. They
    take longer than tests of pairs: block diffusion at 8k tokens takes 1.88 ms instead of 1.69
    (H100)."""
    behind = any(interval.behind_floors for interval in mask.intervals or ())
    return replace(mask, intervals=None) if behind else mask


def with_distances(masks: tuple[PlannedMask, ...]) -> tuple[PlannedMask, ...] | None:
    """Return the masks as bits over k - q and the remaining intervals; None if intervals alone are
    cheaper, or if some mask needs more than that."""
    if max(MANY if m.intervals is None else len(m.intervals) for m in masks) <= FEW:
        return None
    alongside = [intervals_alongside(mask.ir.keep, mask.lifted) for mask in masks]
    if None in alongside or not any(parts_by_distance(mask.ir.keep)[0] for mask in masks):
        return None
    return tuple(
        replace(mask, intervals=covered) for mask, covered in zip(masks, alongside, strict=True)
    )


def why_padded(problem: Problem, padded: Problem) -> tuple[str, ...]:
    """Explain to which widths rows are padded, if they are."""
    if padded == problem:
        return ()
    wide = padded.head_dim
    return (
        f"rows are filled up to {wide} elements with zeros in shared memory; no copies are made",
    )


def why_lists(masks: tuple[PlannedMask, ...], use_ranges: bool) -> str:
    """Explain how kernels find live tiles."""
    if use_ranges:
        return "closed-form tile ranges: every row's live tiles are consecutive, no index memory"
    if any(mask.ir.selections for mask in masks):
        return "tile lists in memory (CSR), built at every call: the selection decides what is live"
    if any(mask.ir.data for mask in masks):
        return "tile lists in memory (CSR): which tiles live depends on data given at call time"
    return "tile lists in memory (CSR): some rows have gaps between their live tiles"


def why_partial(
    masks: tuple[PlannedMask, ...], distances: bool, run: int, data: DataIntervals | None = None
) -> str:
    """Explain how kernels treat partial tiles.

    Args:
        run: aligned keys that share one test.
    """
    if data is not None:
        return _why_data(data)
    most = max(len(mask.intervals or ()) for mask in masks)
    if distances:
        more = f" and of {most} interval{'s' * (most != 1)} per row" if most else ""
        return f"partial tiles: bits from a table over k - q{more}, no test per pair"
    if any(mask.intervals is None for mask in masks):
        alike = f"each run of {run} keys" if run > 1 else "each pair"
        return f"partial tiles: test {alike}, because a query's keys are not a few intervals"
    told = any(interval.chosen is not None for mask in masks for interval in mask.intervals or ())
    more = " and of the chosen blocks" if told else ""
    several = f"{most} interval{'s' * (most != 1)} per row"
    return f"partial tiles: bits of {several}{more}, no test per pair"


def _why_data(data: DataIntervals) -> str:
    most = len(data.intervals)
    said = f"partial tiles: bits of {most} interval{'s' * (most != 1)} per row, from the data"
    if data.columns:
        said += ", and of data by column"
    if not data.alike:
        return f"{said}; no test per pair"
    return f"{said}, once for each run of equal data; a test per pair if there are many runs"


def why_layout(mask: PlannedMask) -> str:
    """Explain how live tiles are found."""
    recipe = mask.recipe
    if mask.ir.selections:
        return "layout by counts of chosen pairs: undecided tiles count as partial"
    if recipe.loops is None:
        why = "it reads data" if mask.ir.data else "isl's budget or loop form did not suffice"
        return f"layout by exact numbers, because {why}"
    forms = f"layout from {len(recipe.loops)} closed-form loops"
    notes = [f"{name} = {value}" for name, value in recipe.fixed]
    notes += ["n_q = n_kv"] if recipe.square else []
    return forms + (f" if {', '.join(notes)}, else by exact numbers" if notes else "")
