"""All kernel families by name."""

from __future__ import annotations

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
