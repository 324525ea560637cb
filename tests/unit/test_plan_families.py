"""Another tile shape is a schedule, a row of its family, and numbers: CONTRIBUTING's first list."""

from __future__ import annotations

from dataclasses import replace

import pytest

import maskc as mc
from maskc import driver
from maskc.core import coefficients
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.target import TARGETS
from maskc.plan.explain import explain
from maskc.plan.families import sm90a, table
from maskc.plan.families.family import Along
from maskc.plan.types import Schedule

TILE = TileShape(128, 64)


def thin_schedule(problem: Problem) -> Schedule:
    return sm90a.forward_schedule(replace(problem, tile=TILE))


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the form to Hopper's family."""
    family = table.FAMILIES["sm90a"]
    schedules = {**family.schedules, (Direction.forward, "thin"): thin_schedule}
    along = (*family.along, Along("sm_90a", Direction.forward, "thin"))
    dims = {**family.head_dims, "thin": (128,)}
    changed = replace(family, schedules=schedules, along=along, head_dims=dims)
    monkeypatch.setitem(table.FAMILIES, "sm90a", changed)


def test_a_form_is_a_schedule_and_a_row(thin: None) -> None:
    problem = driver.problem(128, None, None, "bfloat16")
    plan = driver.plan_kernel(mc.window(100), problem, TARGETS["sm_90a"])
    (other,) = (each for each in plan.alternatives if each.form == "thin")
    assert other.tile == TILE
    assert "or tiles of 128 x 64" in explain(plan)
    (unit,) = (unit for unit in driver.emit_bundle(plan).units if unit.form == "thin")
    assert "TILE_K = 64" in unit.source
    assert unit.costs, "those of the first source"


def test_numbers_go_by_the_name_of_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, backward = Direction.forward, Direction.backward
    named = coefficients.source_name
    assert [named(forward, form) for form in ("", "small", "grid")] == ["large", "small", "large"]
    assert named(backward, "small") == "small_backward"
    assert named(backward, "thin") == "backward"
    tables = {"sm_90a": {"thin_backward": {"128": {}}}}
    monkeypatch.setattr(coefficients, "_file", lambda: tables)
    assert named(backward, "thin") == "thin_backward"
    assert named(forward, "thin") == "large"
