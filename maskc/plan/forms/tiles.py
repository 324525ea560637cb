"""The form that every mask has: tiles of consecutive tokens."""

from __future__ import annotations

from math import gcd

from maskc.analysis.head_groups import HeadGroups
from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.core.data import LISTED, DataKind
from maskc.core.errors import SelectionNotCompiled, TileUnsupported, TooManyArrays
from maskc.core.forms import TINY
from maskc.core.problem import Direction, Problem
from maskc.core.target import Target
from maskc.ir.selecting import place_of
from maskc.plan.data_intervals import DataIntervals, data_intervals
from maskc.plan.families.limits import asked_text
from maskc.plan.families.table import family_of
from maskc.plan.intervals import CELL
from maskc.plan.masks import (
    masks_for,
    why_layout,
    why_lists,
    why_padded,
    why_partial,
    with_distances,
    without_chosen,
    without_floors,
)
from maskc.plan.runs import run_length
from maskc.plan.types import KernelPlan, PlannedMask


def plan_tiles(
    heads: HeadGroups, problem: Problem, target: Target, direction: Direction, form: str
) -> KernelPlan:
    """One of the plans, alone.

    Raises:
        MaskcError: see `plan`.
    """
    target.check(problem)
    _check_blocks(heads, target)
    reads = {name for ir in heads.masks for name in E.arrays(ir.keep)}
    if len(reads) > MAX_ARRAYS:
        raise TooManyArrays(len(reads), MAX_ARRAYS)
    family = family_of(target)
    padded = target.padded(problem, direction, form)
    schedule = family.schedule(padded, heads.masks, direction, form)
    masks = masks_for(heads, schedule.tile)
    if not family.tables or len({mask.lifted.shape for mask in masks}) > 1:
        masks = tuple(map(without_chosen, masks))
    if direction is Direction.backward:
        masks = tuple(map(without_floors, masks))
    use_ranges = all(mask.ranges for mask in masks)
    of_k, of_q = (min(run_length(mask.ir.keep, x) for mask in masks) for x in (E.K, E.Q))
    runs = of_k, of_q
    by_distance = with_distances(masks) if family.tables and form != TINY else None
    masks, distances = by_distance or masks, by_distance is not None
    by_query, by_key = None, None
    if schedule.data_rows and form != TINY:  # whose partial tiles test pairs
        by_query = _of_data(masks, 0, gcd(of_k, schedule.tile.k))
        if direction is Direction.backward:
            by_key = _of_data(masks, 1, gcd(of_q, schedule.tile.q))
    data = by_key if direction is Direction.backward else by_query
    return KernelPlan(
        problem, target, schedule, schedule.tile, use_ranges, masks, heads.facts, heads.of_head,
        (
            schedule.reason, *_why_tile(problem, direction), *why_padded(problem, padded),
            why_lists(masks, use_ranges), *map(why_layout, masks),
            why_partial(masks, distances, runs[0] if target.language == "cuda" else 1, data),
        ), distances, runs, direction, form, by_query=by_query, by_key=by_key,
    )  # fmt: skip


def selects_in_own_tiles(heads: HeadGroups, problem: Problem, target: Target) -> TileUnsupported:
    """Return the error for a user's tile with a mask that chooses keys at run time."""
    ir = next(ir for ir in heads.masks if ir.selections)
    why = "masks that choose keys at run time have tiles that fit their blocks"
    hint = "leave tile and stages out for masks with topk"
    at = place_of(ir, ir.selections[0])
    return TileUnsupported(target.name, asked_text(problem), why, hint, at=at)


def _why_tile(problem: Problem, direction: Direction) -> tuple[str, ...]:
    """Return the sentence about a tile that the user requested, if there is one."""
    if not problem.names_tile or direction is Direction.backward:
        return ()
    return (
        f"{asked_text(problem)} as the caller set it: the planner chose no tile, no other sources",
    )


def _of_data(masks: tuple[PlannedMask, ...], along: int, run: int) -> DataIntervals | None:
    """Return the intervals of masks that read data, if all heads share a formula; None if one test
    serves many pairs anyway, or if data differ between neighbouring tokens.

    Args:
        along: see `data_intervals`.
        run: aligned columns that the mask treats alike.
    """
    ir, shape = masks[0].ir, masks[0].lifted.shape
    listed = any(decl.kind in LISTED for decl in ir.data)
    if listed or run >= CELL or any(mask.lifted.shape != shape for mask in masks):
        return None
    of_data = data_intervals(shape, along)
    walks = {name for decl in ir.data if decl.kind is DataKind.tree for name in decl.arrays}
    if of_data is None or any(
        walks.intersection(E.arrays(condition)) for condition in of_data.alike
    ):
        return None
    return of_data


def check_rows(heads: HeadGroups, problem: Problem, target: Target) -> None:
    """Check that a target can choose keys by rows of this width.

    Raises:
        HeadDimUnsupported: rows are too long, or would be padded, which the selection of blocks
            does not support.
    """
    for block in (selection.block for ir in heads.masks for selection in ir.selections):
        if target.lacks_choice(problem, block):
            raise target.no_such_dims(problem, block)


def _check_blocks(heads: HeadGroups, target: Target) -> None:
    """Check that a target has kernels for the blocks of a selection.

    Raises:
        SelectionNotCompiled: blocks that are too small.
    """
    for ir in heads.masks:
        for selection in ir.selections:
            if selection.block < target.least_block:
                finding = (
                    "single keys" if selection.block == 1 else f"blocks of {selection.block} keys"
                )
                at = place_of(ir, selection)
                raise SelectionNotCompiled(target.name, finding, target.least_block, at=at)
