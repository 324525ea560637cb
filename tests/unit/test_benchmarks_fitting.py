"""Coefficients of the cost model: found again from times that they made, and written to a file."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from benchmarks.calibration import PROBES, forced, sources, units, work_of
from benchmarks.contest import Ask
from benchmarks.fitting import BY_HAND, GHZ, Sample, calibrate, card, fits, non_negative, with_fits
from maskc.core.cost import Card, Cost, Tally
from maskc.core.dtypes import DType
from maskc.core.errors import UsageMistake
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.testing.emulator import machine
from maskc.verify.case import Case
from tests.support.cli import benchmarks
from tests.support.thorough import examples

HOPPER = Target.named("sm_90a")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PROCESSORS, LAUNCH_US = 132, 4.2
TRUE = {
    ("large", "usual"): Cost("usual", 7507, 2367, 870),
    ("large", "stream"): Cost("stream", 4128, 2336, 0),
    ("small", "usual"): Cost("usual", 3183, 694, 200),
    ("small", "stream"): Cost("stream", 2437, 699, 13),
    ("backward", "usual"): Cost("usual", 8000, 3600, 500),
    ("small_backward", "usual"): Cost("usual", 6000, 2500, 400),
    ("small_backward", "apart"): Cost("apart", 5000, 2100, 700),
    ("tiny", "usual"): Cost("usual", 200, 300, 60),
}


def cases() -> list[Case]:
    return [
        Case(p.name, p.mask(), 1, p.heads, p.heads, p.n, p.n, 64 if p.tiny else 128, DType.bfloat16)
        for p in PROBES
    ]


def works() -> list[dict]:
    """Of every source and mode on every probe."""
    found = []
    for case, probe in zip(cases(), PROBES, strict=True):
        attn = case.mask.compile(case.head_dim, dtype="bfloat16", target="sm_90a")
        for unit, mode in sources(attn.bundle.units, "sm_90a", probe.tiny):
            found.append(work_of(case, attn, unit, mode))
    return found


@pytest.fixture(scope="module")
def timed() -> list[Sample]:
    """With times made by TRUE."""
    made = []
    for work in works():
        cost = TRUE[work["source"], work["mode"]]
        cycles = sum(getattr(cost, name) * work[f"{name}s" if name != "masked" else name]
                     for name in ("row", "tile", "masked"))  # fmt: skip
        ms = cycles / (PROCESSORS * GHZ * 1e6) + work["launches"] * LAUNCH_US / 1e3
        made.append(Sample(**work, ms=ms))
    return made


# ------------------------------------------------------------------ fits


def test_coefficients_are_recovered(timed):
    found = fits(timed, PROCESSORS)
    assert {(fit.source, fit.cost.mode) for fit in found} == set(TRUE)
    for fit in found:
        want = TRUE[fit.source, fit.cost.mode]
        for name in ("row", "tile", "masked"):
            assert abs(getattr(fit.cost, name) - getattr(want, name)) <= 1, (fit, want)
        assert fit.launch_us == pytest.approx(LAUNCH_US, abs=0.01)
        assert fit.worst < 1e-3


def test_rows_with_one_tile_and_tiles_of_dq_are_told_apart():
    """Where samples count them."""
    rng, cost = np.random.default_rng(0), Cost("usual", 2520, 4121, 1040, lone=1004, query=7608)
    made = []
    for counts in rng.integers(1, 10_000, (12, 5)):
        rows, tiles, masked, lone, queries = map(int, counts)
        tally = Tally(rows, tiles, masked, lone, queries)
        ms = cost.cycles(tally) / (PROCESSORS * GHZ * 1e6) + 3 * LAUNCH_US / 1e3
        made.append(Sample("backward", 64, "usual", *counts[:3], 3, ms, lone, queries))
    (fit,) = fits(made, PROCESSORS)
    assert fit.cost == cost


def test_noise_is_averaged(timed):
    """Five per cent on each time: predictions stay as near."""
    rng = np.random.default_rng(0)
    noisy = [Sample(**{**_plain(each), "ms": each.ms * rng.uniform(0.95, 1.05)}) for each in timed]
    for fit in fits(noisy, PROCESSORS):
        want = TRUE[fit.source, fit.cost.mode]
        assert fit.worst < 0.1
        assert fit.cost.tile == pytest.approx(want.tile, rel=0.1)


def _plain(sample: Sample) -> dict:
    return {name: getattr(sample, name) for name in Sample.__slots__}


def test_the_probes_tell_coefficients_apart(timed):
    """Times of each source depend on each of the four in a way of its own."""
    groups = {(each.source, each.mode) for each in timed}
    for group in groups:
        own = [each for each in timed if (each.source, each.mode) == group]
        work = np.array([[x.launches, x.rows, x.tiles, x.masked] for x in own], float)
        work /= np.array([x.ms for x in own])[:, None]
        assert np.linalg.cond(work / np.linalg.norm(work, axis=0)) < 300, group


def test_too_few_times_are_no_fit(timed):
    with pytest.raises(UsageMistake, match="fewer than 5 times"):
        fits(timed[:8], PROCESSORS)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 1 << 30))
def test_non_negative_least_squares(seed):
    """No other point that is not negative is nearer, tried around and at random."""
    rng = np.random.default_rng(seed)
    matrix, target = rng.standard_normal((7, 4)), rng.standard_normal(7)
    found = non_negative(matrix, target)
    assert (found >= 0).all()
    least = ((matrix @ found - target) ** 2).sum()
    for other in (*(np.abs(rng.standard_normal((40, 4)))),
                  *np.clip(found + 0.01 * rng.standard_normal((200, 4)), 0, None)):  # fmt: skip
        assert ((matrix @ other - target) ** 2).sum() >= least - 1e-12


# ------------------------------------------------------------------ the file


def package_file() -> str:
    return (files("maskc.core") / "cost.toml").read_text("utf-8")


def test_other_lines_stay(timed):
    found = fits(timed, PROCESSORS)
    for name, section in (("NVIDIA H200", "sm_90a"), ("Some GPU", "sm_90a on Some GPU")):
        measured_card = card(name, PROCESSORS, found, 3.25)
        text = with_fits(package_file(), "sm_90a", found, measured_card)
        made, before = tomllib.loads(text), tomllib.loads(package_file())
        own, old = made[section], before.setdefault(section, {})
        assert own.pop("card") == {
            "name": name, "multiprocessors": PROCESSORS, "ghz": GHZ, "launch_us": LAUNCH_US,
            "bytes_per_cycle": 3.2,
        }  # fmt: skip
        old.pop("card", None)
        for fit in found:
            if fit.source in BY_HAND:
                continue
            costs = own[fit.source].pop(str(fit.head_dim), None) or {}
            old.setdefault(fit.source, {}).pop(str(fit.head_dim), None)
            terms = {"row", "tile", "masked", "lone", "query"}
            assert all(costs[mode].keys() == terms for mode in costs)
        assert made == before
        assert with_fits(text, "sm_90a", found, measured_card) == text


def test_a_new_target_gets_sections(timed):
    found = fits(timed, PROCESSORS)
    text = with_fits("# mine\n\n[other.large]\n64.usual = 1\n", "sm_90a", found,
                     Card("A", 2, GHZ, 3.0))  # fmt: skip
    assert text.startswith("# mine\n\n[other.large]\n64.usual = 1\n\n[sm_90a.card]\n")
    made = tomllib.loads(text)
    assert made["other"] == {"large": {"64": {"usual": 1}}}
    assert set(made["sm_90a"]) == {
        "card", "large", "small", "backward", "small_backward",
    }  # fmt: skip


def report_of(timed: list[Sample]) -> dict:
    rows = [
        {
            "case": "a",
            "impl": "maskc",
            "direction": "fwd",
            "ms": each.ms,
            "ok": True,
            "work": {n: x for n, x in _plain(each).items() if n != "ms"},
        }
        for each in timed
    ]
    about = {"suite": "calibration", "target": "sm_90a", "gpu": "Some GPU",
             "cases": {"a": {"multiprocessors": PROCESSORS}}}  # fmt: skip
    return {"environment": about, "rows": rows}


def test_from_results_that_were_kept(timed, tmp_path):
    """Without a GPU; rows that failed do not count."""
    report, kept, into = report_of(timed), tmp_path / "kept.json", tmp_path / "cost.toml"
    report["rows"].append({**report["rows"][0], "ok": False, "ms": 1e9, "raised": "it"})
    kept.write_text(json.dumps(report))
    result = benchmarks("show", kept, "--calibrate", into)
    assert "large 128 usual: row 7507, tile 2367, masked 870 cycles" in result.stdout
    made = tomllib.loads(into.read_text())
    assert made["sm_90a on Some GPU"]["small"]["128"]["usual"] == {
        "row": 3183,
        "tile": 694,
        "masked": 200,
        "lone": 0,
        "query": 0,
    }


def test_the_package_has_what_was_measured_on_an_h100(tmp_path):
    """Fits of the times that are kept are the numbers that calls choose by."""
    report = json.loads((RESULTS / "calibration-h100.json").read_text())
    into = tmp_path / "cost.toml"
    into.write_text(package_file())
    calibrate(report, str(into))
    assert tomllib.loads(into.read_text()) == tomllib.loads(package_file())


def test_other_results_are_refused(timed, tmp_path):
    report = report_of(timed)
    report["environment"]["suite"] = "anchors"
    with pytest.raises(UsageMistake, match="no results of the suite"):
        calibrate(report, str(tmp_path / "cost.toml"))


def test_other_targets_have_no_cost_model():
    ask = Ask(Target.named("cpu"))
    with pytest.raises(UsageMistake, match="cpu has no cost model"):
        list(units(ask.target, (), ask))


# ------------------------------------------------------------------ what is timed


def test_every_head_dimension_is_probed():
    names = [name for name, _ in units(HOPPER, (), Ask(HOPPER))]
    assert len(names) == len(set(names)) == len(PROBES) * len(HOPPER.head_dims)
    assert [name for name, _ in units(HOPPER, ("full_1k*",), Ask(HOPPER))] == [
        f"full_1k_d{dim}" for dim in HOPPER.head_dims
    ]


def test_what_is_forced_runs(monkeypatch):
    """On an emulated Hopper: each source in its mode, with the same results to rounding."""
    torch = pytest.importorskip("torch")
    machine.install(monkeypatch)
    from tests.support.exact_attention import tensors

    attn = mc.window.hf(60).compile(64, dtype="bfloat16", target="sm_90a")
    *inputs, dout = tensors(150, 150, 64, torch.bfloat16, batch=1, heads=2, kv_heads=2)
    outs, names = [], []
    for unit, mode in sources(attn.bundle.units, "sm_90a"):
        made = forced(attn, unit, mode)
        out, lse = made(*inputs, return_lse=True)
        outs.append(out)
        if Direction.backward in unit.directions:
            made.backward(*inputs, out, lse, dout)
        names += made.last_sources
    assert names == [
        "sm_90a usual", "sm_90a stream", "sm_90a_small usual", "sm_90a_small stream",
        "sm_90a_backward usual", "sm_90a_small_backward usual", "sm_90a_small_backward apart",
    ]  # fmt: skip
    for out in outs:
        torch.testing.assert_close(out, outs[0], atol=2e-2, rtol=2e-2)
    attn = mc.window.hf(16).compile(64, dtype="bfloat16", target="sm_90a")
    ((unit, mode),) = sources(attn.bundle.units, "sm_90a", tiny=True)
    made = forced(attn, unit, mode)
    made(*inputs)
    assert made.last_sources == ("sm_90a_tiny usual",)
