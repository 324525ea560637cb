"""Regret of chosen programs: what is forced, what is summed up, what the documentation quotes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.choices import CASES, _shares, judged, regrets, samples, summary, variants
from benchmarks.parts import MASKS, passes, regret, report
from benchmarks.parts import RESULTS as PARTS
from maskc.core.problem import Direction
from tests.support.thorough import THOROUGH

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def row(name, **passes):
    return {"case": name} | {
        direction: {"chosen": chosen, "ms": ms} for direction, (chosen, ms) in passes.items()
    }


def test_regret_is_the_time_beside_the_fastest():
    rows = [
        row("a", forward=("x", {"chosen": 2.0, "x": 2.0, "y": 1.0})),
        row("b", forward=("x", {"chosen": 1.0, "x": 1.0, "y": 4.0}),
            backward=("z", {"chosen": 3.0, "z": 3.0, "w": 2.0})),
        {"case": "c", "raised": "it"},
    ]  # fmt: skip
    assert list(regrets(rows)) == [
        ("a", "forward", 2.0, "x", "y"), ("b", "forward", 1.0, "x", "x"),
        ("b", "backward", 1.5, "z", "w"),
    ]  # fmt: skip
    text = summary(rows)
    assert "forward: regret 1.414 (geometric mean of 2), worst 2.00 (a: x, fastest y)" in text
    assert "backward: regret 1.500" in text


def test_noise_is_no_gain():
    """The chosen program cannot be faster than itself."""
    rows = [row("a", forward=("x", {"chosen": 0.9, "x": 1.0}))]
    assert [regret[2] for regret in regrets(rows)] == [1.0]


def test_cases_with_the_same_kernels_stay_together():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    shares = _shares(list(range(len(CASES))), 15)
    assert sorted(number for share in shares for number in share) == list(range(len(CASES)))
    (home,) = [share for share in shares if names.index("window64_d128") in share]
    assert names.index("window1024_d128") in home


def test_every_source_and_mode_is_forced():
    case = next(case for case in CASES if case.name == "dilated8_d64")
    attn = case.mask().compile(64, n_heads=case.heads, target="sm_90a")
    forward = variants(attn, Direction.forward)
    assert set(forward) == {
        "large default",
        "large interleaved",
        "large persistent",
        "small default",
        "small persistent",
        "parts",
    }
    for name, made in forward.items():
        units = made.bundle.choice("sm_90a", Direction.forward)
        if name != "parts":
            (unit,) = units
            assert [cost.mode for cost in unit.costs] == [name.split()[1]]
            assert not made.bundle.parts


@pytest.mark.skipif(not THOROUGH, reason="every case is planned: 15 s")
def test_the_documentation_quotes_the_results():
    rows = judged(json.loads((RESULTS / "choices-h200.json").read_text())["rows"])
    found = list(regrets(rows))
    means = [
        math.exp(np.mean([math.log(each[2]) for each in found if each[1] == direction]))
        for direction in ("forward", "backward")
    ]
    page = " ".join((ROOT / "docs" / "kernels.md").read_text().split())
    match = re.search(
        r"On (\d+) masks and lengths on an H200, the chosen program takes ([\d.]+) times "
        r"\(forward\) and ([\d.]+) times \(backward\).*?the worst case takes ([\d.]+) times", page,
    )  # fmt: skip
    assert match is not None
    cases, forward, backward, worst = match.groups()
    assert int(cases) == sum(each[1] == "forward" for each in found)
    assert [forward, backward] == [f"{mean:.3f}" for mean in means]
    assert worst == f"{max(each[2] for each in found):.2f}"


@pytest.mark.parametrize(
    ("name", "direction"),
    [("cross_4k_77_d128", "backward"), ("cross_4k_77_d64", "backward"),
     ("window256_d64", "backward"), ("padded_512_d64", "forward"), ("dilated8_d64", "forward"),
     ("natten64_7_d64", "backward")],
)  # fmt: skip
def test_calls_take_nearly_the_fastest_program(name, direction):
    """Few columns for a card, launches that count, padding, parts, pairs that are tested."""
    rows = json.loads((RESULTS / "choices-h200.json").read_text())["rows"]
    (one,) = (row for row in rows if row["case"] == name)
    (now,) = judged([{"case": name, direction: one[direction]}])
    (regret,) = regrets([now])
    assert regret[2] <= 1.03, regret


@pytest.mark.parametrize("name", ["full_384_d64", "documents300_d128"])
def test_work_of_a_timed_program(name):
    """Counted once more by hand: rows, tiles, rows with one tile, tile rows of dq."""
    case = next(case for case in CASES if case.name == name)
    timed = {"small default": 1.0, "small_backward default": 2.0}
    rows = [{"case": name} | {each.value: {"ms": timed} for each in Direction}]
    forward, backward = samples(rows)
    assert (forward.source, forward.mode, forward.ms) == ("small", "default", 1.0)
    assert (backward.source, backward.queries) == (
        "small_backward", case.batch * case.heads * -(-case.n_q // 64),
    )  # fmt: skip
    assert backward.rows == case.batch * case.kv_heads * -(-case.n_kv // 64)
    if name == "full_384_d64":
        heads = case.batch * case.heads
        assert (forward.rows, forward.tiles, forward.lone) == (heads * 6, heads * 36, 0)
    assert forward.tiles >= forward.rows >= forward.lone


# ------------------------ calls that were timed in parts and whole


ROWS = json.loads(PARTS.read_text())["rows"]


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
