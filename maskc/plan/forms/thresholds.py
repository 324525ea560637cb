"""Masks with single keys chosen by q . k: kernels select them by a threshold per row.

A row sees such a key if its score passes the row's threshold. The mask becomes two masks without a
selection: the pairs it keeps if all candidates are chosen, and among them the pairs it keeps if
none is chosen (`always_kept`). A separate kernel finds the thresholds before the pass.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.analysis.head_groups import HeadGroups, assume
from maskc.core import expr as E
from maskc.core.errors import SelectionNotCompiled
from maskc.core.expr import Expr
from maskc.core.forms import CHOOSE, THRESHOLDS
from maskc.core.problem import Direction, Problem
from maskc.core.selection import Score, Selection, Share
from maskc.core.target import Target
from maskc.ir.lift import Lifted, lift
from maskc.ir.selecting import chosen, place_of
from maskc.ir.set_comparison import subset
from maskc.ir.types import MaskIR
from maskc.plan.families.table import family_of
from maskc.plan.forms.tiles import plan_tiles
from maskc.plan.intervals import intervals
from maskc.plan.ranges import row_ranges
from maskc.plan.types import KernelPlan

_REASON = (
    "keys are chosen one by one: first a kernel finds each row's threshold, in passes over its "
    "scores; then pairs in all tiles of candidates are compared with it; this report describes the "
    "mask with all candidates"
)


def by_threshold(heads: HeadGroups, target: Target) -> Selection | None:
    """Return the selection of the masks, if it needs thresholds; None without a selection, or with
    larger blocks.

    Raises:
        SelectionNotCompiled: there are no kernels for the selection.
    """
    by_name = {selection.name: (ir, selection) for ir in heads.masks for selection in ir.selections}
    small = [
        (ir, selection)
        for ir, selection in by_name.values()
        if selection.block < target.least_block
    ]
    if not small or (Direction.forward, CHOOSE) not in family_of(target).schedules:
        return None
    ir, one = small[0]
    why = None
    if one.block > 1 or one.q_block > 1 or one.score is not Score.qk or one.at:
        return None  # an error says so where blocks are looked at
    if len(by_name) > 1:
        why = "single keys together with another selection"
    elif one.share is not Share.head:
        why = "single keys that heads share"
    elif any(_grows(mask, one) is not True for mask in heads.masks):
        why = "single keys that are taken away"
    if why is not None:
        raise SelectionNotCompiled(target.name, why, target.least_block, at=place_of(ir, one))
    return one


def _grows(ir: MaskIR, one: Selection) -> bool | None:
    """Whether choosing more keys keeps more pairs."""
    return subset(assume(ir.keep, one, False), assume(ir.keep, one, True))


def lifted_pair(keep: Expr, one: Selection) -> tuple[Lifted, Expr]:
    """Return (mask when everything is selected, shape of the mask when nothing is), with the same
    constants lifted out."""
    whole = lift(keep)
    atoms = [made for made, source in whole.sources if source == chosen(one)]
    shapes = [whole.shape, whole.shape]
    for atom in atoms:
        shapes = [E.assume(s, atom, taken) for s, taken in zip(shapes, (True, False), strict=True)]
    return replace(whole, shape=shapes[0]), shapes[1]


def plan_by_threshold(
    heads: HeadGroups, one: Selection, problem: Problem, target: Target
) -> KernelPlan:
    """Plan a mask with single chosen keys: as a whole, with one tile size."""
    hull = next(hull for hull in heads.hulls if hull.selection == one)
    pairs = [lifted_pair(ir.keep, one) for ir in heads.masks]
    forward, *backward = (
        _with_thresholds(plan_tiles(hull.widest, problem, target, direction, ""), pairs)
        for direction in target.directions
        if direction is Direction.forward or (direction, THRESHOLDS) in family_of(target).schedules
    )
    chooser = plan_tiles(hull.candidates, problem, target, Direction.forward, CHOOSE)
    count = max(len(mask.lifted.args) for mask in chooser.masks)
    masks = tuple(
        replace(mask, lifted=_padded(mask.lifted, count, one.k)) for mask in chooser.masks
    )
    chooser = replace(chooser, masks=masks, chosen=count)
    reasons = (*forward.reasons, _REASON, f"the kernel for thresholds: {chooser.schedule.reason}")
    return replace(forward, reasons=reasons, chooser=chooser, alternatives=tuple(backward))


def _padded(lifted: Lifted, count: int, k: int) -> Lifted:
    more = count - len(lifted.args)
    args = (*lifted.args, *(E.ZERO for _ in range(more)), E.const(k))
    return replace(lifted, args=args, rests=(*lifted.rests, *(None,) * (more + 1)))


def _with_thresholds(plan: KernelPlan, pairs: list[tuple[Lifted, E.Expr]]) -> KernelPlan:
    """Return the plan of the hulls with the always-kept pairs; intervals serve both or neither."""
    masks = []
    for mask, (lifted, always_kept) in zip(plan.masks, pairs, strict=True):
        kept = () if always_kept == E.NEVER else intervals(always_kept)
        ranges = row_ranges(lifted.shape, plan.tile) if mask.ranges else None
        alongside = None if kept is None or plan.distances else intervals(lifted.shape)
        masks.append(replace(
            mask, lifted=lifted, ranges=ranges, intervals=alongside, always_kept=always_kept,
            always_kept_intervals=kept if alongside is not None else None,
        ))  # fmt: skip
    if any(mask.intervals is None for mask in masks):
        masks = [replace(mask, intervals=None, always_kept_intervals=None) for mask in masks]
    use_ranges, schedule = all(mask.ranges for mask in masks), plan.schedule
    if plan.direction is Direction.backward:
        family = family_of(plan.target)
        schedule = family.schedule(plan.padded, (), plan.direction, THRESHOLDS)
    else:  # comparing takes the registers that a stream needs
        modes = tuple((name, mode) for name, mode in schedule.modes if name == "default")
        schedule = replace(schedule, modes=modes)
    return replace(plan, masks=tuple(masks), distances=False, thresholds=True,
                   use_ranges=use_ranges, schedule=schedule)  # fmt: skip
