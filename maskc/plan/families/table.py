"""All kernel families by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from maskc.core.errors import SharedMemoryExceeded, TileUnsupported
from maskc.core.problem import Direction, Problem
from maskc.core.target import Target
from maskc.plan.families.ampere import AMPERE
from maskc.plan.families.cpu import CPU
from maskc.plan.families.family import Family
from maskc.plan.families.hopper import HOPPER
from maskc.plan.families.simt import SIMT

FAMILIES = {family.name: family for family in (CPU, AMPERE, HOPPER, SIMT)}


def family_of(target: Target) -> Family:
    """The family whose kernels run on a target."""
    return FAMILIES[target.family]


def fitting(problem: Problem, target: Target) -> Iterator[Problem]:
    """Yield the problem with every tile and number of stages that fits the card. A tile or stages
    that the problem already names filter them.

    Raises:
        HeadDimUnsupported, DTypeUnsupported: the target has no kernel at all.
    """
    target.check(problem)
    family, padded = family_of(target), target.padded(problem)
    for obstacle in family.limits(padded).problems(padded):
        if problem.tile not in (None, obstacle.tile) or problem.stages not in (
            None,
            obstacle.stages,
        ):
            continue
        try:
            family.schedule(obstacle, (), Direction.forward, "")
        except (TileUnsupported, SharedMemoryExceeded):
            continue
        yield replace(problem, tile=obstacle.tile, stages=obstacle.stages)
