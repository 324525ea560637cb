"""Choosing and attending told apart, and blocks that are known before."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import maskc as mc
from benchmarks import phases, suite
from benchmarks.anchors import SELECTIONS, Anchor, index, moba
from benchmarks.chosen import ChosenPairs
from benchmarks.contest import Ask, Contest, Measured
from benchmarks.report import table
from benchmarks.run import bench_case
from benchmarks.suite import SUITES, Limits, run_suite
from maskc.core.dtypes import DType
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.reference.attention import attention
from maskc.verify.case import Case
from maskc.verify.case_tensors import host, make_tensors
from maskc.verify.samples import true_mask
from maskc.verify.timing import Timed

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")
BLOCKS = mc.topk(2, mc.causal(), score="block_mean", block=16, q_block=16, share="group")
CPU = Target.named("cpu")


def case_of(mask: mc.Mask = BLOCKS, **changes) -> Case:
    return replace(Case("c", mask, 1, 4, 2, 90, 90, 16, DType.float32), **changes)


# ------------------------------------------------------------------ known before


@pytest.mark.parametrize("mask", [BLOCKS, mc.window(3) | BLOCKS], ids=str)
def test_blocks_known_before_are_those_chosen(mask: mc.Mask):
    case = case_of(mask)
    tensors = make_tensors(case, "cpu")
    made = phases.static_contender(case, tensors, ChosenPairs(case, tensors), CPU)
    assert made.key == ("maskc", "static")
    out, lse = (host(x) for x in made.forward())
    wanted, wanted_lse = attention(*map(host, tensors.qkv), true_mask(case, tensors))
    assert np.abs(out - wanted).max() < 1e-5
    assert np.abs(lse - wanted_lse).max() < 1e-5
    assert made.sources() == ("cpu",)


@pytest.mark.parametrize(
    "case",
    [case_of(moba(16, 3)), case_of(mc.topk(7, mc.causal())), case_of(batch=2),
     case_of(mc.topk(2, mc.causal()) | mc.topk(3, mc.full()))],
    ids=lambda case: str(case.mask),
)  # fmt: skip
def test_other_choices_are_no_table(case: Case):
    tensors = make_tensors(case, "cpu")
    assert phases.static_contender(case, tensors, ChosenPairs(case, tensors), CPU) is None


def test_a_broken_table_breaks_nothing_else(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(phases, "static_contender", broken)
    rows = bench_case(case_of(), Ask(CPU, ("fwd",), ("maskc",), 1)).rows
    assert [(r.get("variant"), r["ok"], r.get("raised")) for r in rows] == [
        ("static", False, "RuntimeError: no room"), (None, True, None)
    ]  # fmt: skip


# ------------------------------------------------------------------ phases


def test_kernels_by_phase():
    times = [
        ("select_blocks", 30.0), ("make_lists", 10.0), ("attention_choose", 20.0),
        ("gather_lists", 30.0), ("gather_scores", 10.0),
        ("attention_forward", 300.0), ("attention_merge", 100.0),
        ("Memset (Device)", 7.0), ("at::native::fill", 9.0),
    ]  # fmt: skip
    assert phases.by_phase(times, 5) == pytest.approx({"selection": 0.02, "attention": 0.08})
    assert phases.by_phase(times[-2:], 5) == {}


@pytest.mark.parametrize("anchor", SELECTIONS[:4], ids=lambda anchor: anchor.name)
def test_every_kernel_of_a_case_has_a_phase(anchor: Anchor):
    mask = anchor.mask()
    attn = mask.compile(anchor.head_dim, n_heads=anchor.heads, target="sm_90a")
    bundles = [attn.bundle] + [attn.bundle.chooser] * (attn.bundle.chooser is not None)
    units = [unit for each in bundles for unit in each.units if unit.target.startswith("sm_90a")]
    names = {
        launch.entry
        for unit in units if not unit.directions or Direction.forward in unit.directions
        for _, mode in unit.modes for launch in mode.launches
    }  # fmt: skip
    each = {name: phases.by_phase([(name, 1e3)], 1) for name in names}
    found = {phase for parts in each.values() for phase in parts}
    assert found == {"selection", "attention"}
    attends = {name for name, parts in each.items() if parts == {"attention": 1.0}}
    assert attends <= {"attention_forward", "attention_merge"}


@needs_torch
def test_a_profile_has_names_and_times():
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.ones(3) + 1
    assert {name for name, _ in phases.times_of(seen)} >= {"aten::add", "aten::ones"}
    assert all(us == 0 for _, us in phases.times_of(seen))


def test_a_profiler_that_sees_nothing_is_a_note(monkeypatch: pytest.MonkeyPatch):
    case = case_of()
    tensors = make_tensors(case, "cpu")
    ask = Ask(CPU, ("fwd",), ("maskc",), 1)
    contest = Contest(case, ask, tensors, ChosenPairs(case, tensors), np.arange(4), Measured())
    assert contest._phases(("maskc", ""), Timed(print)) == {}
    assert contest.result.notes == []
    contest.tensors = replace(tensors, device="cuda")
    answers = [{}, {"attention": 0.123456}]
    monkeypatch.setattr(phases, "measured", lambda run: answers.pop(0))
    assert contest._phases(("topk", ""), Timed(print)) == {}
    assert contest._phases(("maskc", ""), Timed(print)) == {}
    assert contest._phases(("maskc", ""), Timed(print)) == {"attention": 0.1235}
    assert contest._phases(("maskc", ""), Timed(print)) == {}
    assert contest.result.notes == [
        "c, maskc: its phases were not measured: no kernel was seen",
        "c, maskc: its phases were not measured: IndexError: pop from empty list",
    ]


def test_phases_in_the_table():
    def row(ms: float, parts: dict[str, float], **more):
        return {
            "case": "b", "impl": "maskc", "direction": "fwd", "ms": ms, "live_tflops": 1.0,
            "error": 1e-6, "ok": True, "phases_ms": parts, **more,
        }  # fmt: skip

    rows = [
        row(3.0, {"selection": 0.5, "attention": 2.0}),
        row(1.8, {"attention": 1.8}, variant="static"),
    ]
    assert (
        "b fwd: selection 0.5 ms and attention 2 ms; attention at 90% of the speed with blocks "
        "known before\n"
    ) in table({"environment": {}, "rows": rows})
    assert "known before" not in table({"environment": {}, "rows": rows[:1]})


# ------------------------------------------------------------------ the suite, at small lengths

SMALL = {
    "topk512_8k": {"mask": lambda: mc.topk(31, mc.causal()), "n": 160},
    "blocks16_64_32k": {"n": 1280},
    "moba512_4_8k": {"mask": lambda: moba(32, 4), "n": 160},
    "dsa2048_32k": {
        "mask": lambda: mc.topk(31, mc.causal(), score="indexer", share="all"),
        "n": 160, "n_q": 160, "data": lambda: index(4, 160, 160, 16),
    },
    "dsa2048_128k": {
        "mask": lambda: mc.topk(31, mc.causal(), score="indexer", share="all"),
        "n": 200, "n_q": 100, "data": lambda: index(4, 100, 200, 16),
    },
    "dsa2048_32k_e4m3": {
        "mask": lambda: mc.topk(31, mc.causal(), score="indexer", share="all"),
        "n": 160, "n_q": 160, "data": lambda: index(4, 160, 160, 16, "float8_e4m3fn"),
    },
}  # fmt: skip


@needs_torch
def test_the_selections_at_small_lengths(monkeypatch: pytest.MonkeyPatch):
    small = tuple(
        replace(anchor, heads=anchor.heads // 4, kv_heads=-(-anchor.kv_heads // 4), head_dim=16,
                **SMALL[anchor.name])
        for anchor in SELECTIONS
    )  # fmt: skip
    own = replace(SUITES["selections"], anchors=small, target="cpu")
    monkeypatch.setitem(suite.SUITES, "selections", own)
    report = run_suite("selections", Limits(repeats=1))
    found = {(row["case"], row["impl"], row.get("variant")) for row in report["rows"]}
    assert all(row["ok"] for row in report["rows"]), report["environment"]["notes"]
    assert found == {
        (name, impl, None) for name in SMALL for impl in ("maskc", "topk", "dense")
    } | {("blocks16_64_32k", "maskc", "static")}
