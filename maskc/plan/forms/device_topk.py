"""Selections computed on the device (templates/common/select.cu.j2): launches and conditions.

A block ranks all blocks of keys for a few blocks of queries. Order-preserving integers of the
scores are in shared memory, a threshold is found bit by bit, and blocks that reach it are marked as
bits. Nothing of the size of the scores is ever in global memory. Lists of tiles follow from the
bits and from the static parts of the mask, which the host evaluates once per lengths.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.core import expr as E
from maskc.core.abi import MAX_SELECTIONS
from maskc.core.bundle import Grid, Launch
from maskc.core.data import DataKind
from maskc.core.selection import Selection
from maskc.layout.topk.sizes import THREADS
from maskc.plan.list_making import MAKE_LISTS
from maskc.plan.types import KernelPlan, PlannedMask, selections

ON_DEVICE = (
    "the GPU chooses blocks and builds tile lists in the call's own memory, and the host does not "
    "wait; with nan_safe, entmax, or scores in host memory, the host chooses and waits"
)
_ON_HOST = "the host chooses blocks, and waits for q and k: {}"


def launches(shared_bytes: int) -> tuple[Launch, ...]:
    """Return the launches that make the selections of a call, in order."""
    return (
        Launch("select_join", Grid.keys, THREADS),
        Launch("select_blocks", Grid.queries, THREADS, shared_bytes),
        MAKE_LISTS,
    )


def why_host(masks: tuple[PlannedMask, ...]) -> str:
    """Why the device cannot make the selections of a mask; empty if it can."""
    chosen = selections(masks)
    if len(chosen) > MAX_SELECTIONS:
        return f"there are {len(chosen)} selections, of at most {MAX_SELECTIONS} that fit"
    kinds = (DataKind.selection, DataKind.scoring)
    if any(decl.kind not in kinds for mask in masks for decl in mask.ir.data):
        return "the mask reads data, of which the device knows no static part"
    return next(filter(None, map(_why_host, chosen)), "")


def _why_host(one: Selection) -> str:
    if len(set(one.allowed)) > 1:
        return f"{one.name} is among other pairs on other heads"
    if E.arrays(one.allowed[0]):
        return f"{one.name} is among pairs that depend on data or on another selection"
    return ""


def listed(plan: KernelPlan) -> KernelPlan:
    """Return the plan with blocks of keys chosen on the device, if possible."""
    why = why_host(plan.masks)
    reason = _ON_HOST.format(why) if why else ON_DEVICE
    return replace(plan, selecting=not why, reasons=(*plan.reasons, reason))
