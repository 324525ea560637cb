"""Timing, checking and reporting, end to end on small problems."""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

import maskc as mc
from benchmarks import contest
from benchmarks import run as module
from benchmarks.host_time import host_table, host_time
from benchmarks.report import reason, summary, table
from maskc.core.errors import DataMissing, HeadDimUnsupported, UnknownTarget, UsageMistake
from maskc.lab.rivals import Contender, Unavailable
from maskc.verify import timing
from maskc.verify.timing import Timed, take_turns
from tests.support import bench

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")
KEYS = {"case", "impl", "direction", "ms", "live_tflops", "error", "ok"}


WINDOW = mc.window(7)


def small(mask: mc.Mask = WINDOW, **changes):
    options = {"n": 70, "heads": 2, "head_dim": 16, "target": "cpu", "repeats": 2, **changes}
    return bench.bench_pattern("case", mask, **options)


def by_impl(report: dict, direction: str = "fwd") -> dict[str, dict]:
    return {row["impl"]: row for row in report["rows"] if row["direction"] == direction}


@pytest.fixture
def no_flex(monkeypatch: pytest.MonkeyPatch):
    """FlexAttention takes seconds to compile; one test below has it."""
    impls = {name: text for name, text in bench.IMPLS.items() if "flex" not in name}
    monkeypatch.setattr(bench, "IMPLS", impls)


# ------------------------------------------------------------------ bench_pattern


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pattern_beside_sdpa(dtype: str, no_flex: None):
    report = small(kv_heads=1, n_kv=90, batch=2, dtype=dtype)
    for direction in ("fwd", "bwd"):
        rows = by_impl(report, direction)
        assert set(rows) == {"maskc", "dense", "sdpa_masked"}
        assert all(set(row) >= KEYS and row["ok"] and row["ms"] > 0 for row in rows.values())
    live = mc.window(7).count(70, 90) * 4
    row = by_impl(report)["maskc"]
    assert row["live_tflops"] == pytest.approx(4 * 16 * live / row["ms"] / 1e9, rel=1e-2)
    about = report["environment"]["cases"]["case"]
    assert about["live_pairs"] == live
    assert about["n_kv"] == 90
    assert about["mask"] == "window(7)"
    assert json.loads(json.dumps(report)) == report


@needs_torch
def test_causal_has_a_rival_that_knows_it(no_flex: None):
    report = small(mc.causal(), directions=("fwd",))
    assert set(by_impl(report)) == {"maskc", "dense", "sdpa_causal", "sdpa_masked"}
    assert all(row["ok"] for row in report["rows"])
    assert not by_impl(report, "bwd")


@needs_torch
def test_masks_with_data_and_heads(no_flex: None):
    mask = mc.per_head([mc.documents("doc"), mc.causal()])
    report = small(mask, data={"doc": np.arange(70) // 20})
    assert all(row["ok"] for row in report["rows"])
    with pytest.raises(DataMissing):
        small(mask)


@needs_torch
@pytest.mark.slow
def test_flex_attention_runs_forward():
    report = small(n=128)
    assert by_impl(report)["flex"]["ok"]
    assert "flex" not in by_impl(report, "bwd")
    assert "case, flex: it has no backward here" in report["environment"]["notes"]


def test_without_torch_maskc_runs_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("maskc.verify.case_tensors.has_torch", lambda: False)
    monkeypatch.setattr(module, "has_torch", lambda: False)
    monkeypatch.setattr(contest, "has_torch", lambda: False)
    for dtype in ("float32", "float16", "bfloat16"):
        report = small(dtype=dtype)
        assert set(by_impl(report)) == {"maskc"}
        assert all(row["ok"] for row in report["rows"])
    assert report["environment"]["notes"] == ["case, rivals: PyTorch is not installed"]


def test_mistakes_are_errors_not_rows():
    with pytest.raises(UnknownTarget):
        small(target="sm_1")
    with pytest.raises(HeadDimUnsupported):
        small(target="sm_80", head_dim=513, dtype="bfloat16")


def test_nothing_names_the_machine(no_flex: None):
    import os
    import platform

    text = json.dumps(small(directions=("fwd",))["environment"])
    for private in (platform.node(), os.path.expanduser("~"), os.getcwd()):
        assert len(private) < 3 or private not in text


# ------------------------------------------------------------------ failures


@needs_torch
def test_a_wrong_result_is_a_failure_and_not_fast(monkeypatch: pytest.MonkeyPatch):
    def wrong(impl: str, case, tensors, pairs, backward) -> Contender:
        if impl == "dense":
            raise RuntimeError("out of\nluck")
        if impl == "sdpa_masked":
            raise Unavailable("it is away")
        return Contender(impl, lambda: tensors.q * 0, lambda dout: (dout, dout, dout))

    monkeypatch.setattr(contest, "make_rival", wrong)
    monkeypatch.setattr(bench, "IMPLS", ["maskc", "dense", "sdpa_masked", "flex"])
    report = small()
    rows, notes = by_impl(report), report["environment"]["notes"]
    assert rows["maskc"]["ok"]
    assert not rows["flex"]["ok"]
    assert rows["flex"]["error"] == pytest.approx(1, rel=0.1)
    assert rows["dense"]["ms"] is None
    assert not rows["dense"]["ok"]
    assert "case, dense: fwd raised RuntimeError: out of" in notes
    assert "case, sdpa_masked: it is away" in notes
    assert any(note.startswith("case, flex: fwd failed its check: error 1") for note in notes)
    text = table(report)
    line = next(line for line in text.splitlines() if " flex " in line)
    assert line.split()[-1] == "FAILED"
    assert "failed" in line
    assert "faster" not in text
    assert "results failed" in text


@needs_torch
def test_gradients_are_judged_by_the_out_that_was_read(monkeypatch: pytest.MonkeyPatch):
    """Also where a contender has no forward pass of its own."""
    judged, read = contest.judged_backward, []

    def noted(judge, rows, tensors, backward, out=None):
        read.append(out)
        return judged(judge, rows, tensors, backward, out)

    def backward_only(impl: str, case, tensors, pairs, backward) -> Contender:
        gradients = tensors.q, tensors.k, tensors.v
        return Contender(impl, None, lambda dout: gradients, attended=lambda: (tensors.dout, 0))

    monkeypatch.setattr(contest, "judged_backward", noted)
    monkeypatch.setattr(contest, "make_rival", backward_only)
    monkeypatch.setattr(bench, "IMPLS", ["maskc", "dense"])
    report = small(directions=("bwd",))
    ours, theirs = read
    assert ours is not None
    assert not by_impl(report, "bwd")["dense"]["ok"]
    assert theirs.shape == ours.shape
    assert not (theirs == ours).all()


@needs_torch
def test_timing_that_breaks_leaves_the_other_direction(
    no_flex: None, monkeypatch: pytest.MonkeyPatch
):
    def some(rivals, repeats, device, seconds):
        if ("dense", "") in rivals and len(turns) == 0:
            turns.append(1)
            raise MemoryError("no more")
        return take_turns(rivals, repeats, device, seconds)

    turns: list[int] = []
    monkeypatch.setattr(contest, "take_turns", some)
    report = small()
    assert all(r["raised"] == "timing: MemoryError: no more" for r in by_impl(report).values())
    assert all(r["ok"] and r["ms"] > 0 for r in by_impl(report, "bwd").values())


# ------------------------------------------------------------------ timing


def test_rivals_take_turns(monkeypatch: pytest.MonkeyPatch):
    bursts: list[tuple[str, int]] = []

    def burst(rival: Timed, calls: int) -> float:
        bursts.append((rival.run(), calls))
        return {"slow": 500.0, "fast": 10.0, "tiny": 0.001}[rival.run()]

    monkeypatch.setattr(timing, "_host_burst", burst)
    rivals = {name: Timed(lambda name=name: name) for name in ("slow", "fast", "tiny")}
    found = take_turns(rivals, 10, "cpu")
    assert found == {"slow": 500.0, "fast": 10.0, "tiny": 0.001}
    rounds = bursts[3:]
    assert set(rounds) == {("slow", 1), ("fast", 2), ("tiny", 8)}
    assert all({name for name, _ in rounds[i : i + 3]} == set(rivals) for i in (0, 3, 6))
    assert [name for name, _ in rounds].count("slow") == 4
    assert [name for name, _ in rounds].count("fast") == 10


def test_no_rival_always_follows_the_same_one(monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    monkeypatch.setattr(timing, "_host_burst", lambda rival, calls: order.append(rival.run()) or 1)
    rivals = {name: Timed(lambda name=name: name) for name in "abc"}
    take_turns(rivals, 12, "cpu")
    first, order[:] = order[3:], []
    take_turns(rivals, 12, "cpu")
    assert first == order[3:]
    assert len(set(pairwise(first))) >= 6


def test_the_clock_counts_calls_inside_the_scope():
    log: list[str] = []

    class Scope:
        def __enter__(self) -> None:
            log.append("in")

        def __exit__(self, *_: object) -> None:
            log.append("out")

    ms = timing._host_burst(Timed(lambda: log.append("run"), Scope), 3)
    assert log == ["in", "run", "run", "run", "run", "out"]
    assert ms > 0


# ------------------------------------------------------------------ text


def row(impl: str, ms: float | None, ok: bool = True, direction: str = "fwd", case: str = "w"):
    return {
        "case": case, "impl": impl, "direction": direction, "ms": ms,
        "live_tflops": ms and 1 / ms, "error": 1e-6 if ms else None, "ok": ok,
    }  # fmt: skip


def test_the_summary_says_when_dense_is_faster():
    rows = [row("maskc", 3.0), row("dense", 2.0), row("flex", 6.0)]
    assert summary({"environment": {}, "rows": rows}) == [
        "w fwd: maskc 2.00 times faster than flex, the best other; DENSE IS FASTER: leaving the "
        "mask out takes 2 ms, 1.50 times less than maskc's 3 ms"
    ]
    rows = [row("maskc", 2.0), row("dense", 8.0), row("flex", 1.0), row("sdpa_masked", 9.0)]
    assert summary({"environment": {}, "rows": rows}) == [
        "w fwd: maskc 2.00 times slower than flex, the best other; 4.00 times faster than dense"
    ]
    rows = [row("maskc", 3.0), row("maskc", 2.0) | {"variant": "softmax"}, row("topk", 6.0)]
    assert summary({"environment": {}, "rows": rows}) == [
        "w fwd: maskc 2.00 times faster than topk, the best other; entmax takes 1.50 times as "
        "long as softmax"
    ]
    failed = [row("maskc", 2.0), row("flex", 1.0, ok=False)]
    assert summary({"environment": {}, "rows": failed}) == ["1 of 2 results failed: flex on w fwd"]


def test_a_table():
    rows = [row("maskc", 3.0), row("flex", 1.0, ok=False), row("dense", None, ok=False)]
    report = {"environment": {"gpu": None, "cpu": "Z80", "notes": ["n"], "cases": {}}, "rows": rows}
    assert table(report) == (
        "case  direction  impl       ms  live TFLOP/s    error\n"
        "w     fwd        maskc       3        0.3333  1.0e-06      ok\n"
        "w     fwd        flex   failed                1.0e-06  FAILED\n"
        "w     fwd        dense  failed                      -  FAILED\n"
        "\n"
        "2 of 3 results failed: flex on w fwd, dense on w fwd\n"
        "note: n\n"
        "\n"
        "cpu Z80\n"
    )


def test_results_without_times_are_counted():
    rows = [
        {**row("maskc", None, case=f"p d{d} {t}"), "error": e}
        for d, t, e in ((64, "float32", 1e-6), (128, "float32", 2e-6), (64, "bfloat16", 3e-3))
    ]
    text = table({"environment": {}, "rows": rows})
    assert text == "p: 3 results ok; largest errors float32 2.0e-06, bfloat16 3.0e-03\n"


def test_reasons_are_short_and_without_folders():
    assert reason(ImportError("no x (/some/where/a-b/c.py)\nmore")) == "ImportError: no x (c.py)"
    assert reason(ValueError("4 / 2 is 2, and/or 3")) == "ValueError: 4 / 2 is 2, and/or 3"
    assert reason(UsageMistake("a", "b")) == "MC603 a"
    assert len(reason(ValueError("x" * 999))) == 200


def test_a_table_shows_the_first_notes():
    text = table({"environment": {"notes": [str(n) for n in range(30)]}, "rows": []})
    assert text.splitlines()[:2] == ["note: 0", "note: 1"]
    assert "note: 20" not in text
    assert "and 10 more notes" in text


# ------------------------------------------------------------------ host time


def test_host_time_of_every_library():
    report = host_time("cpu", calls=5, rounds=2)
    libraries = ["numpy", "dlpack"] + (["torch"] if find_spec("torch") else [])
    assert [row["impl"] for row in report["rows"]] == libraries
    assert all(set(row) >= KEYS and row["ms"] > 0 for row in report["rows"])
    assert all(row["error"] < 1e-5 for row in report["rows"])
    assert host_table(report).startswith("numpy ")
