"""Coefficients of the cost model: found again from times that they made, and written to a file."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from benchmarks.fitting import BY_HAND, card, samples_of, with_fits
from maskc.build.toolchain import InstalledGpu as Visible
from maskc.core.coefficients import Gpu, measured, over
from maskc.core.cost import Card, Cost, Tally
from maskc.core.errors import NoDevice, UsageMistake
from maskc.core.problem import Direction
from maskc.lab.calibrate import PROBES, calibrate, forced, programs, tables_of, work_of_probe
from maskc.lab.fitting import GHZ, Sample, fits, non_negative
from maskc.runtime import device
from maskc.testing.emulator import machine
from tests.support.cli import maskc
from tests.support.thorough import examples

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PROCESSORS, LAUNCH_US = 132, 4.2
TRUE = {
    ("large", "default"): Cost("default", 7507, 2367, 870),
    ("large", "persistent"): Cost("persistent", 4128, 2336, 0),
    ("small", "default"): Cost("default", 3183, 694, 200),
    ("small", "persistent"): Cost("persistent", 2437, 699, 13),
    ("backward", "default"): Cost("default", 8000, 3600, 500, query=9000),
    ("small_backward", "default"): Cost("default", 6000, 2500, 400),
    ("small_backward", "separate_dq"): Cost("separate_dq", 5000, 2100, 700),
}
TEST = {"large": 158, "small": 77, "backward": 110, "small_backward": 0}


def works() -> list[Sample]:
    """The work of every source and mode on every probe."""
    samples = []
    for probe in PROBES:
        attn = probe.mask().compile(128, dtype="bfloat16", target="sm_90a")
        for unit, mode in programs(attn.bundle.units, "sm_90a"):
            samples.append(work_of_probe(probe, attn, unit, mode, 128))
    return samples


@pytest.fixture(scope="module")
def timed() -> list[Sample]:
    """With times made by TRUE."""
    made = []
    for work in works():
        cost = TRUE[work.source, work.mode]
        tally = Tally(work.rows, work.tiles, work.masked, work.lone)
        of_tiles = cost.cycles(tally) + TEST[work.source] * work.tests
        cycles = work.stretch * of_tiles + cost.query * work.queries
        ms = cycles / (PROCESSORS * GHZ * 1e6) + work.launches * LAUNCH_US / 1e3
        made.append(replace(work, ms=ms))
    return made


@pytest.fixture(scope="module")
def fitted(timed):
    """Fits of these times."""
    return fits(timed, PROCESSORS)


# ------------------------------------------------------------------ fits


def test_coefficients_are_recovered(fitted):
    assert {(fit.source, fit.cost.mode) for fit in fitted} == set(TRUE)
    for fit in fitted:
        want = TRUE[fit.source, fit.cost.mode]
        for name in ("row", "tile", "masked", "lone", "query"):
            assert abs(getattr(fit.cost, name) - getattr(want, name)) <= 1, (fit, want)
        assert fit.test == TEST[fit.source]
        assert fit.launch_us == pytest.approx(LAUNCH_US, abs=0.01)
        assert fit.worst < 1e-3


def test_rows_with_one_tile_and_tiles_of_dq_are_told_apart():
    """Where samples count them."""
    rng, cost = np.random.default_rng(0), Cost("default", 2520, 4121, 1040, lone=1004, query=7608)
    made = []
    for counts in rng.integers(1, 10_000, (12, 5)):
        rows, tiles, masked, lone, queries = map(int, counts)
        tally = Tally(rows, tiles, masked, lone, queries)
        ms = cost.cycles(tally) / (PROCESSORS * GHZ * 1e6) + 3 * LAUNCH_US / 1e3
        made.append(Sample("backward", 64, "default", *counts[:3], 3, ms, lone, queries))
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
        work = np.array([[x.launches, x.rows, x.tiles, x.masked, x.tests] for x in own], float)
        work /= np.array([x.ms for x in own])[:, None]
        assert np.linalg.cond(work / np.linalg.norm(work, axis=0)) < 300, group


def test_too_few_times_are_no_fit(timed):
    with pytest.raises(UsageMistake, match="fewer than 5 times"):
        fits(timed[:8], PROCESSORS)


@settings(max_examples=examples(50))
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


def test_other_lines_stay(fitted):
    for name, section in (("NVIDIA H200", "sm_90a"), ("Some GPU", "sm_90a on Some GPU")):
        measured_card = card(name, PROCESSORS, fitted, 3.25)
        text = with_fits(package_file(), "sm_90a", fitted, measured_card)
        made, before = tomllib.loads(text), tomllib.loads(package_file())
        own, old = made[section], before.setdefault(section, {})
        assert own.pop("card") == {
            "name": name, "multiprocessors": PROCESSORS, "ghz": GHZ, "launch_us": LAUNCH_US,
            "bytes_per_cycle": 3.2,
        }  # fmt: skip
        old.pop("card", None)
        for fit in fitted:
            if fit.source in BY_HAND:
                continue
            costs = own[fit.source].pop(str(fit.head_dim), None) or {}
            old.setdefault(fit.source, {}).pop(str(fit.head_dim), None)
            terms = {"row", "tile", "masked", "lone", "query"}
            assert all(costs[mode].keys() - {"test"} == terms for mode in costs)
        assert made == before
        assert with_fits(text, "sm_90a", fitted, measured_card) == text


def test_a_new_target_gets_sections(fitted):
    text = with_fits("# mine\n\n[other.large]\n64.default = 1\n", "sm_90a", fitted,
                     Card("A", 2, GHZ, 3.0))  # fmt: skip
    assert text.startswith("# mine\n\n[other.large]\n64.default = 1\n\n[sm_90a.card]\n")
    made = tomllib.loads(text)
    assert made["other"] == {"large": {"64": {"default": 1}}}
    assert set(made["sm_90a"]) == {
        "card", "large", "small", "backward", "small_backward",
    }  # fmt: skip


def test_the_package_has_what_was_measured_on_an_h100():
    """Fits of the times that are kept are the numbers that calls choose by."""
    report = json.loads((RESULTS / "calibration-h100.json").read_text())
    about = report["environment"]
    ((processors, per_cycle),) = {
        (case["multiprocessors"], case.get("bytes_per_cycle", 0.0))
        for case in about["cases"].values() if "multiprocessors" in case
    }  # fmt: skip
    fitted = fits(samples_of(report["rows"]), processors)
    measured_card = card(about["gpu"], processors, fitted, per_cycle)
    text = with_fits(package_file(), about["target"], fitted, measured_card)
    assert tomllib.loads(text) == tomllib.loads(package_file())


# ------------------------------------------------------------------ calibration


def test_calibrated_tables_predict_the_times_again(timed, fitted):
    """With the card's own launch; only storing dq costs less than adding to it."""
    gpu = Gpu("Some GPU", 15.0)
    shipped = measured("sm_90a")
    tables = tables_of(fitted, gpu, PROCESSORS)
    made = over(measured("sm_90a", gpu), json.loads(json.dumps(tables)))
    assert Card(**made["card"]) == Card("Some GPU", PROCESSORS, GHZ, LAUNCH_US, 15.0)
    for sample in timed:
        numbers = dict(made[sample.source][str(sample.head_dim)][sample.mode])
        tests = numbers.pop("test")
        tally = Tally(sample.rows, sample.tiles, sample.masked, sample.lone)
        cost = Cost(sample.mode, **numbers)
        cycles = sample.stretch * (cost.cycles(tally) + tests * sample.tests)
        ms = Card(**made["card"]).milliseconds(
            cycles + cost.query * sample.queries, sample.launches
        )
        assert ms == pytest.approx(sample.ms, rel=1e-3)
    usual, once = (made["backward"]["128"][mode] for mode in ("default", "exclusive_dq"))
    assert {**once, "query": 0} == {**usual, "query": 0}
    assert 0 < once["query"] < usual["query"] / 3
    assert made["tiny"] == shipped["tiny"]


def test_calibration_needs_a_card_with_a_choice(monkeypatch):
    with pytest.raises(NoDevice, match="this machine has none"):
        calibrate()
    for gpu in (Visible("NVIDIA A100", 80), Visible("NVIDIA B200", 100)):
        monkeypatch.setattr(device, "gpus", lambda gpu=gpu: (gpu,))
        with pytest.raises(NoDevice, match=f"{gpu.name} has one kernel for each pass"):
            calibrate()
    result = maskc("calibrate", code=1)
    assert "MC509" in result.stderr


# ------------------------------------------------------------------ what is timed


def test_what_is_forced_runs(monkeypatch):
    """On an emulated Hopper: each source in its mode, with the same results to rounding."""
    torch = pytest.importorskip("torch")
    machine.install(monkeypatch)
    from tests.support.exact_attention import tensors

    attn = mc.window.hf(60).compile(64, dtype="bfloat16", target="sm_90a")
    *inputs, dout = tensors(150, 150, 64, torch.bfloat16, batch=1, heads=2, kv_heads=2)
    outs, names = [], []
    for unit, mode in programs(attn.bundle.units, "sm_90a"):
        made = forced(attn, unit, mode)
        out, lse = made(*inputs, return_lse=True)
        outs.append(out)
        if Direction.backward in unit.directions:
            made.backward(*inputs, out, lse, dout)
        names += made.last_sources
    assert names == [
        "sm_90a default", "sm_90a persistent", "sm_90a_small default", "sm_90a_small persistent",
        "sm_90a_backward default", "sm_90a_small_backward default",
        "sm_90a_small_backward separate_dq",
    ]  # fmt: skip
    for out in outs:
        torch.testing.assert_close(out, outs[0], atol=2e-2, rtol=2e-2)
