"""Predicted times: of which sources they speak, and how near they are to what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import maskc as mc
from benchmarks.anchors import ANCHORS
from benchmarks.report import table
from maskc import driver
from maskc.core.coefficients import card_of
from maskc.core.cost import Card
from maskc.core.dtypes import DType
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.plan.cost import costs_of, layout_at
from maskc.plan.explain import explain
from maskc.plan.predict import milliseconds

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "anchors-h200.json"
FORWARD, BACKWARD = Direction.forward, Direction.backward


def planned(mask, dim=128, heads=16, target="sm_90a"):
    return driver.plan_kernel(
        mask, driver.problem(dim, None, heads, "bfloat16"), Target.named(target)
    )


def measured() -> dict[str, float]:
    """Milliseconds of forward passes on the card that coefficients are of."""
    report = json.loads(RESULTS.read_text())
    return {
        row["case"]: row["ms"] for row in report["rows"]
        if row["impl"] == "maskc" and row["direction"] == "fwd" and row["ok"]
    }  # fmt: skip


def test_against_what_was_measured():
    """Masks without data; the farthest runs in parts."""
    shares, known = {}, measured()
    for anchor in ANCHORS:
        if anchor.name in known and anchor.data is dict:
            case = anchor.case(DType.bfloat16)
            plan = planned(case.mask, case.head_dim, case.heads)
            time_ms = milliseconds(plan, FORWARD, case.n_q, case.n_kv, case.batch * case.heads)
            shares[anchor.name] = time_ms / known[anchor.name]
    assert len(shares) == 16
    assert all(0.74 < share < 1.15 for share in shares.values()), shares
    assert sum(abs(share - 1) <= 0.15 for share in shares.values()) >= 14, shares


def test_a_pass_in_numbers():
    """D 192 has one source, in blocks of 128 x 96: five rows run side by side, and 132,000 rows
    keep all of 132 multiprocessors busy. A persistent block does not hide its last row."""
    plan = planned(mc.full(), 192)
    default, persistent = costs_of(plan)
    card = card_of("sm_90a")
    row = persistent.row + 2 * persistent.tile
    for heads, rows in ((5, 1), (132_000, 1000)):
        cycles = 132 * (rows * row + default.row - persistent.row)
        time_ms = milliseconds(plan, FORWARD, 128, 192, heads)
        assert time_ms == pytest.approx(card.milliseconds(cycles))
    assert Card("any", 10, 2.0, 5.0).milliseconds(4e6, 3) == pytest.approx(0.2 + 0.015)


def test_more_work_takes_longer():
    plan = planned(mc.causal())
    for direction in Direction:
        found = [milliseconds(plan, direction, n, n, 16) for n in (1000, 2000, 4000)]
        assert found == sorted(found)
        both = milliseconds(plan, direction, 4000, 4000, 32)
        assert both < 2 * found[-1] < 1.1 * both
    assert milliseconds(plan, BACKWARD, 4000, 4000, 16) > found[-1] / 1.01


def test_heads_with_masks_of_their_own():
    wide, narrow = mc.causal(), mc.window(100)
    mixed = planned(mc.per_head([wide, wide, wide, narrow]), heads=4)
    time_ms = milliseconds(mixed, FORWARD, 4096, 4096, 80)
    shares = ((wide, 60), (narrow, 20))
    each = [milliseconds(planned(mask), FORWARD, 4096, 4096, n) for mask, n in shares]
    want = sum(each) - card_of("sm_90a").launch_us / 1e3  # one launch for both
    assert want * 0.99 < time_ms < want * 1.2


def test_nothing_is_said_of_what_is_not_known():
    assert milliseconds(planned(mc.causal(), target="cpu"), FORWARD, 100, 100, 1) is None
    assert milliseconds(planned(mc.documents("doc")), FORWARD, 100, 100, 1) is None
    assert milliseconds(planned(mc.causal()), FORWARD, 0, 100, 1) is None
    known = milliseconds(
        planned(mc.documents("doc")), FORWARD, 100, 100, 1,
        lambda plan, mask, n_q, n_kv: layout_at(planned(mc.full()), planned(mc.full()).masks[0],
                                                n_q, n_kv),
    )  # fmt: skip
    assert known is not None


def test_explain_says_it():
    (line,) = [x for x in explain(planned(mc.causal()), 16384).splitlines() if x[:4] == "time"]
    assert line.startswith("time     16384 x 16384, 16 heads, predicted for an NVIDIA H200: 1.")
    assert line.endswith(" ms backward")
    assert "time  " not in explain(planned(mc.causal(), target="cpu"), 16384)


def test_tables_show_predicted_beside_measured():
    row = {"case": "a", "impl": "maskc", "direction": "fwd", "ms": 2.0, "live_tflops": 1.0,
           "error": 0.0, "ok": True, "predicted_ms": 1.8,
           "sources": ["sm_90a default"]}  # fmt: skip
    rows = [row, {**row, "direction": "bwd", "predicted_ms": 1.0, "sources": ["sm_90a_backward"]}]
    text = table({"environment": {}, "rows": rows})
    head, first, *rest = text.splitlines()
    assert head.split()[3:5] == ["ms", "predicted"]
    assert first.split()[3:5] == ["2", "1.8"]
    assert "a fwd ran sm_90a default" in rest
    assert (
        "predicted within 15% of measured: 1 of 2; the farthest is a bwd, predicted 0.50 times "
        "what it took"
    ) in rest


def test_landmarks_count_with_all_queries():
    """A window and every 64th key: the part of landmarks has all rows, and a 64th of the keys."""
    plan = planned(mc.causal() & (mc.window(511) | mc.strided(64, 63)))
    assert any(part.keys is not None for part in plan.parts)
    time_ms = milliseconds(plan, FORWARD, 32768, 32768, 16)
    window = milliseconds(planned(mc.causal() & mc.window(511)), FORWARD, 32768, 32768, 16)
    whole = milliseconds(planned(mc.causal()), FORWARD, 32768, 32768, 16)
    assert window < time_ms < window + whole / 16


def test_nothing_is_predicted_of_keys_chosen_one_by_one():
    assert "time  " in explain(planned(mc.causal()), 4096, 4096)
    assert "time  " not in explain(planned(mc.topk(9, mc.causal())), 4096, 4096)
