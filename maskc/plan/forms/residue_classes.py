"""Masks in parts, of which some run over residue classes of the tokens, or over listed tokens."""

from __future__ import annotations

from collections.abc import Callable

from maskc.analysis.heads import Heads
from maskc.plan.types import KernelPlan, PlannedPart


def planned_parts(heads: Heads, alone: Callable[[Heads], KernelPlan]) -> tuple[PlannedPart, ...]:
    """The parts of the one mask that all heads share, if some run over residue classes.

    Args:
        alone: plans a mask that has no parts of its own.
    """
    return tuple(
        PlannedPart(part.stride, alone(part.heads), part.aligned, part.keys, part.listed)
        for part in heads.parts
    )
