"""Calls that were timed in parts and whole: the cost model takes the faster way, or a close one."""

from __future__ import annotations

import json

import pytest

from benchmarks.parts import MASKS, RESULTS, passes, regret, report
from maskc.core.problem import Direction

ROWS = json.loads(RESULTS.read_text())["rows"]


def test_every_mask_is_known():
    assert {row[0] for row in ROWS} == set(MASKS)
    timed = list(passes(ROWS))
    assert len(timed) == 175
    assert sum(one.direction is Direction.forward for one in timed) == len(ROWS)


@pytest.mark.parametrize(("name", "direction"), [("axial", "forward"), ("landmark", "backward")])
def test_regret(name, direction):
    """Always whole and always in parts are both far worse."""
    rows = [row for row in ROWS if row[0] == name]
    timed = [one for one in passes(rows) if one.direction.value == direction]
    mean, worst = regret(timed)
    assert mean < 1.025
    assert worst < 1.25
    for way in ("whole", "parts"):
        assert max(getattr(one, way) / min(one.whole, one.parts) for one in timed) > 1.7


def test_wrong_choices_are_listed():
    rows = [row for row in ROWS if row[0] == "landmark"]
    lines = list(report(rows))
    assert lines[0].startswith("forward, all: 12 calls, ")
    assert lines[5].startswith("backward, odd rows: 4 calls, ")
    regrets = [float(line.split()[0]) for line in lines[6:]]
    wrong = [one.regret for one in passes(rows) if one.in_parts != (one.parts < one.whole)]
    assert regrets == pytest.approx(sorted(wrong, reverse=True), abs=1e-3)
