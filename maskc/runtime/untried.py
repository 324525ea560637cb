"""Kernels that no card has run yet, and how users hear of it."""

from __future__ import annotations

import sys
import warnings

from maskc.core.bundle import SourceUnit
from maskc.core.choosing import FORM
from maskc.core.problem import Feature, Features


class UntriedWarning(UserWarning):
    """A kernel's results have been checked in an emulator, but not on a card."""


def untried(unit: SourceUnit, features: Features) -> str:
    """What a CUDA source does that no card has done; empty where one has."""
    if unit.gathers or unit.gather is not None:
        return "gathered keys"
    if unit.thresholds:
        return "keys chosen one by one"
    if unit.form == FORM:
        return "blocks chosen on the device"
    return "alpha-entmax" if Feature.entmax in features else ""


def warn_if_untried(unit: SourceUnit, features: Features) -> None:
    """Once per place of the caller's code, as Python's filters have it."""
    what = untried(unit, features)
    if what:
        warnings.warn(
            f"{unit.target} kernels of {what} have run in an emulator only, not yet on a card: "
            "compare with target='cpu' before you rely on them",
            UntriedWarning,
            stacklevel=outside(),
        )


def outside() -> int:
    """The stack level of the user's own code, counted from the function that asks."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("maskc."):
        frame, level = frame.f_back, level + 1
    return level
