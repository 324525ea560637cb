"""Chooses how a mask runs: tile and threads from the family's schedule, lists or closed forms."""

from __future__ import annotations

from collections.abc import Callable

from maskc.analysis.facts import MaskFacts
from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.core.errors import TooManyArrays
from maskc.core.problem import Problem, TileShape
from maskc.core.target import Target
from maskc.ir.lift import lift
from maskc.ir.types import MaskIR
from maskc.plan import cpu, sm80
from maskc.plan.ranges import row_ranges
from maskc.plan.recipe import layout_recipe
from maskc.plan.types import Heads, Plan, PlannedMask, Schedule

_SCHEDULES: dict[str, Callable[[Problem], Schedule]] = {
    "cpu": cpu.schedule,
    "sm80": sm80.schedule,
}


def plan(heads: Heads, problem: Problem, target: Target) -> Plan:
    """The plan for one target.

    Raises:
        MaskcError: the target has no kernel for this problem.
    """
    target.check(problem)
    reads = {name for ir in heads.masks for name in E.arrays(ir.keep)}
    if len(reads) > MAX_ARRAYS:
        raise TooManyArrays(len(reads), MAX_ARRAYS)
    schedule = _SCHEDULES[target.family](problem)
    masks = tuple(
        _planned(ir, facts, schedule.tile)
        for ir, facts in zip(heads.masks, heads.facts, strict=True)
    )
    use_ranges = all(mask.ranges for mask in masks)
    return Plan(
        problem, target, schedule, schedule.tile, use_ranges, masks, heads.facts, heads.of_head,
        (schedule.reason, _why_lists(masks, use_ranges), *map(_why_layout, masks)),
    )  # fmt: skip


def _planned(ir: MaskIR, facts: MaskFacts, tile: TileShape) -> PlannedMask:
    """Closed-form ranges are sought only where a query's keys are proved to be consecutive."""
    lifted = lift(ir.keep)
    ranges = row_ranges(lifted.shape, tile) if facts.contiguous_rows.holds else None
    return PlannedMask(ir, lifted, layout_recipe(ir.keep, tile), ranges)


def _why_lists(masks: tuple[PlannedMask, ...], use_ranges: bool) -> str:
    if use_ranges:
        return "closed-form tile ranges: every row's live tiles are consecutive, no index memory"
    if any(mask.ir.data for mask in masks):
        return "tile lists in memory (CSR): which tiles live depends on data given at call time"
    return "tile lists in memory (CSR): some rows have gaps between their live tiles"


def _why_layout(mask: PlannedMask) -> str:
    recipe = mask.recipe
    if recipe.loops is None:
        why = "it reads data" if mask.ir.data else "isl's budget or loop form did not suffice"
        return f"layout by exact numbers, because {why}"
    forms = f"layout from {len(recipe.loops)} closed-form loops"
    notes = [f"{name} = {value}" for name, value in recipe.fixed]
    notes += ["n_q = n_kv"] if recipe.square else []
    return forms + (f" where {', '.join(notes)}, else by exact numbers" if notes else "")
