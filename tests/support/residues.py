"""Runs masks with strides in their residue classes, whatever that costs."""

from __future__ import annotations

import math

import pytest

from maskc import driver
from maskc.analysis import head_groups
from maskc.dispatch.programs import PARTS, Program
from maskc.ir import relayout
from maskc.runtime import planner


def run_in_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone each stride is a part of its own, and parts are always worth it."""
    free = lambda whole, *_, **_options: Program(whole.unit, PARTS, -math.inf)  # noqa: E731
    monkeypatch.setattr(planner, "in_parts", free)
    monkeypatch.setattr(head_groups, "strides_together", relayout.alone)
    analyse = driver._analyse_heads.__wrapped__  # does not remember other analyses
    monkeypatch.setattr(driver, "_analyse_heads", analyse)
