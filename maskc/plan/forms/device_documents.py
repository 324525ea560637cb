"""Tile lists built on the device (templates/common/tile_lists.cu.j2) from document ids or
cumulative lengths on it.

A tile of the mask without its document term is kept if the range of ids of its queries overlaps the
range of ids of its keys.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.core.forms import SMALL
from maskc.core.problem import Direction
from maskc.layout.tiles.document_tiles import without_documents
from maskc.plan.intervals import intervals
from maskc.plan.types import KernelPlan

REASON = (
    "if documents are packed, tiles of keys begin at their first tokens; with ids on a GPU, lists "
    "are built there and the host does not wait; the host reads arrays that differ by head"
)
WHEN = (
    "used if predicted to be faster for documents of the length that mc.cu_seqlens(x, max_seqlen) "
    "promises"
)


def matches(plan: KernelPlan) -> bool:
    """Whether all heads have one mask, of documents and terms that read no data, which runs as a
    whole and tests single pairs."""
    mask, *others = plan.masks
    alone = without_documents(mask.ir.keep, tuple(mask.ir.data)) is not None
    return alone and not (others or plan.parts or plan.distances or mask.intervals is not None)


def listed(plan: KernelPlan) -> KernelPlan:
    """Return the forward plan, with permission to build tile lists on the device.

    Rows are then never split, even with lists from the host: the host cannot know in time how much
    memory the parts would take.
    """
    plan = _with_modes(plan)
    schedule, work = plan.schedule, plan.schedule.work
    if work is not None:
        schedule = replace(schedule, work=replace(work, uneven_tiles=0))
    (mask,) = plan.masks
    alongside = without_documents(mask.lifted.shape, tuple(mask.ir.data))
    covered = None if alongside is None else intervals(alongside)
    *reasons, partial = plan.reasons
    if covered is not None:
        several = f"{len(covered)} interval{'s' * (len(covered) != 1)}"
        partial = (
            f"partial tiles of one document: bits of {several} per row; others: tests per pair"
        )
    return replace(
        plan, schedule=schedule, masks=(replace(mask, intervals=covered),), documents=True,
        reasons=(*reasons, partial, REASON),
    )  # fmt: skip


def listed_alternative(plan: KernelPlan) -> KernelPlan:
    """Likewise for a further plan: tiles of keys begin with documents in small tiles of the forward
    pass alone; backward passes have a mode in which they may."""
    if (plan.form, plan.direction) == (SMALL, Direction.forward):
        return listed(plan)
    return _with_modes(plan)


def _with_modes(plan: KernelPlan) -> KernelPlan:
    """Return the plan with the modes that masks of documents alone have."""
    schedule = plan.schedule
    modes = *schedule.modes, *schedule.document_modes
    return replace(plan, schedule=replace(schedule, modes=modes, document_modes=()))
