"""maskc bench: rivals that are exact, growth, crossover, memory; every result is checked."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.cli import seeds as suite_command
from maskc.core.dtypes import DType
from maskc.core.errors import UsageMistake
from maskc.core.target import Target
from maskc.lab import bench as module
from maskc.lab import rivals
from maskc.lab import seeds as lab_seeds
from maskc.lab.bench import bench_mask
from maskc.lab.case_pairs import CasePairs
from maskc.lab.mask_mod import formula_of
from maskc.lab.rivals import RIVALS, Contender
from maskc.lab.sweep import Crossover, crossover, exponent, growths, sweep
from maskc.runtime import CompiledMask
from maskc.verify.case import Case
from maskc.verify.case_tensors import make_tensors
from maskc.verify.timing import peak_bytes
from tests.support.cli import maskc, maskc_json
from tests.support.thorough import without_inductor

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")
CPU = Target.named("cpu")
DOC = np.repeat([0, 1, 2], [20, 3, 27])
SMALL = ("--heads", 1, "--head-dim", 8, "--dtype", "float32", "--target", "cpu", "--repeats", 1,
         "--direction", "fwd")  # fmt: skip

MASKS: dict[str, tuple[mc.Mask, dict[str, object]]] = {
    "streaming": (mc.causal() & (mc.sinks(2) | mc.window(5)), {}),
    "dead rows": (mc.window(5) & mc.where(lambda q, k: q % 3 != 0), {}),
    "nothing": (mc.causal() & mc.where(lambda q, k: k > q), {}),
    "dilated": (mc.dilated(6, 6, stride=3), {}),
    "by head": (mc.per_head([mc.causal(), mc.window(1), mc.full(), mc.sinks(3)]), {}),
    "by sequence": (mc.documents("doc") & mc.causal(), {"doc": np.stack([DOC, DOC[::-1]])}),
}


@pytest.fixture(autouse=True)
def no_flex(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """FlexAttention takes seconds to compile; one test below has it."""
    if "slow" in request.keywords:
        return

    def refuse(*given: Any) -> Contender:
        raise RuntimeError("not now")

    monkeypatch.setattr(rivals, "flex", refuse)


def case_of(name: str, n: int = 50, **more: Any) -> Case:
    mask, data = MASKS[name]
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "n_q": n, "n_kv": n, "head_dim": 8}
    return Case(name, mask, **{**sizes, "dtype": DType.float32, **more}, data=data)


# ------------------------------------------------------------------ rivals


@needs_torch
@pytest.mark.parametrize("name", MASKS)
def test_every_rival_computes_the_same(name: str):
    rows, _ = bench_mask(case_of(name), CPU, repeats=1)
    found = {(row["impl"], row["direction"]) for row in rows}
    assert {("unfused", "fwd"), ("unfused", "bwd"), ("sparse", "fwd")} <= found
    assert all(row["ok"] for row in rows), rows


@needs_torch
@pytest.mark.parametrize("name", MASKS)
def test_intervals_of_keys_are_the_mask(name: str):
    case = case_of(name)
    pairs = CasePairs(case)
    heads = case.heads if pairs.by_head else 1
    keep = formula_of(case, pairs, "cpu")
    ends = rivals.intervals(keep, case.batch, heads, 50, 50, "cpu").numpy()
    assert ends.shape[1] % 2 == 1
    for head, batch, q in np.ndindex(heads, case.batch, 50):
        own, seen = ends[head, :, batch * 50 + q], np.zeros(50, bool)
        for start, end in zip([0, *own[1::2]], own[::2], strict=True):
            seen[start:end] = True
        assert (seen == pairs.rows(batch, head, np.array([q]))[0]).all()


@needs_torch
def test_what_would_be_too_large_is_refused(monkeypatch: pytest.MonkeyPatch):
    case = case_of("streaming")
    pairs, tensors = CasePairs(case), make_tensors(case, "cpu")
    monkeypatch.setattr(rivals, "_LIVE", 100)
    with pytest.raises(rivals.Unavailable, match="more than 100 entries"):
        rivals.sparse(case, tensors, pairs)
    monkeypatch.setattr(rivals, "_PAIRS", 100)
    with pytest.raises(rivals.Unavailable, match="pairs are too many to list"):
        rivals.sparse(case, tensors, pairs)
    monkeypatch.setattr(rivals, "_SCORES", {"cpu": 10})
    with pytest.raises(rivals.Unavailable, match=r"would store 2e\+04 scores"):
        rivals.unfused(case, tensors, rivals.boolean_mask(case, tensors, pairs))


# ------------------------------------------------------------------ memory


def test_peak_memory_of_a_call():
    size = 64 << 20
    peak = peak_bytes(lambda: np.ones(size, np.uint8), "cpu")
    none = peak_bytes(lambda: None, "cpu")
    if peak is None or none is None:
        pytest.skip("this system does not tell")
    assert size * 0.9 < peak < size * 1.5
    assert none < size / 8
    passing = peak_bytes(lambda: np.ones(size, np.uint8).sum() and None, "cpu")
    assert passing is not None
    assert passing > size * 0.9  # although nothing is left of it


# ------------------------------------------------------------------ growth


def test_exponents():
    lengths = [128, 256, 1024, 4096]
    assert exponent({n: 3e-5 * n**1.5 for n in lengths}) == pytest.approx(1.5)
    noisy = {n: 2.0 * n**2 * factor for n, factor in zip(lengths, (1, 1.1, 0.9, 1), strict=True)}
    slope = np.polyfit(np.log(lengths), np.log([noisy[n] for n in lengths]), 1)[0]
    assert exponent(noisy) == pytest.approx(slope, rel=1e-3)
    assert exponent({128: 1.0}) is None
    assert exponent({}) is None


def test_crossovers():
    mine, dense = {1: 4.0, 2: 4.0, 4: 4.0, 8: 4.0}, {1: 1.0, 2: 2.0, 4: 8.0, 8: 32.0}
    assert crossover("dense", mine, dense) == Crossover("dense", 2, 4, 3)  # 2 * sqrt(2)
    assert crossover("dense", dense, mine) == Crossover("dense", 8, None, None)
    assert crossover("dense", {4: 1.0}, {4: 2.0, 8: 1.0}) == Crossover("dense", None, 4, None)
    back = {1: 2.0, 2: 0.5, 4: 2.0}  # what counts is where it stays faster
    assert crossover("dense", dict.fromkeys(back, 1.0), back) == Crossover("dense", 2, 4, 3)
    even = dict.fromkeys((1, 2), 1.0)
    assert crossover("dense", even, even).above is None


def test_orders():
    assert driver.order(mc.causal(), 4) == ("O(N**2)", 2)
    assert driver.order(mc.causal() & mc.window(mc.param("w", 7)), 4) == ("O(N*w)", 1)
    heads = mc.per_head([mc.window(1), mc.full(), mc.sinks(1), mc.sinks(2)])
    assert driver.order(heads, 4)[1] == 2
    assert driver.order(mc.documents("doc"), 4) is None


def test_rows_become_growth():
    times = {"maskc": {64: 1.0, 128: 2.0}, "dense": {64: 1.0, 128: 4.0}}
    rows = [
        {"case": "m", "direction": "fwd", "impl": impl, "n_q": n, "ms": ms, "pairs": n * n,
         "ok": True}
        for impl, at in times.items() for n, ms in at.items()
    ]  # fmt: skip
    rows.append(rows[0] | {"impl": "flex", "ok": False})
    (found,) = growths(rows, {"m": ("O(N)", 1)})
    assert found.exponents == {"maskc": 1.0, "dense": 2.0}
    assert found.pairs_exponent == 2.0
    assert found.speedups == {"dense": {64: 1.0, 128: 2.0}}
    assert list(found.lines()) == [
        "m fwd: time grows as N^1.00 from 64 to 128, predicted pairs N^2.00, O(N) for long "
        "sequences; dense N^2.00",
        "m fwd: faster than dense from about N = 64 on, between 64 and 128",
    ]
    assert json.loads(json.dumps(asdict(found)))["crossovers"][0]["above"] == 128


@needs_torch
def test_slow_rivals_are_left_out_of_longer_lengths(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("maskc.lab.sweep._SLOW", 0.0)
    rows, notes = sweep(lambda n: case_of("streaming", n), (20, 30, 40), CPU, ("fwd",), 1)
    by_length = {n: {r["impl"] for r in rows if r["n_q"] == n} for n in (20, 30, 40)}
    assert by_length[20] > {"dense", "unfused"}
    assert by_length[30] == by_length[40] == {"maskc"}
    assert "dense: left out beyond N = 20, where a call took more than 0 s" in notes
    assert "N = 20: streaming, flex: RuntimeError: not now" in notes or any(
        note.startswith("N = 20, 30, 40: streaming, flex") for note in notes
    )


# ------------------------------------------------------------------ the command


@needs_torch
def test_a_sweep_as_json_and_as_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "growth.svg"
    report = maskc_json(
        "bench", "--expr", "causal() & window(9)", *SMALL, "--n", "32,64,1k", "--plot", picture
    )
    assert {row["n_q"] for row in report["rows"]} == {32, 64, 1024}
    assert all(row["ok"] for row in report["rows"])
    (growth,) = report["growth"]
    assert growth["order"] == "O(N)"
    assert growth["degree"] == 1
    counts = {n: mc.parse("causal() & window(9)").count(n) for n in (32, 64, 1024)}
    assert growth["pairs_exponent"] == exponent(counts)
    assert "dense" in {each["rival"] for each in growth["crossovers"]}
    assert picture.read_text().startswith("<?xml")


@needs_torch
def test_a_sweep_as_text():
    done = maskc("bench", "--expr", "window(3)", *SMALL, "--n", "16,32", "--nvtx")
    assert "time grows as N^" in done.stdout
    assert "predicted pairs N^1." in done.stdout
    assert "than dense" in done.stdout
    assert "note: N = 16, 32: mask, nvtx: PyTorch has no GPU here" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--n", "64,32"), "64,32 does not ascend"),
        (("--n", "64,64"), "64,64 does not ascend"),
        (("--n", "64,"), "'' is no number of tokens"),
        (("--n", "64,1q"), "'1q' is no number of tokens"),
        (("--n", "64", "--plot", "x.png"), "--plot draws a sweep and needs several lengths"),
        (("--n", "64,128", "--plot", "x.pdf"), "is neither *.png nor *.svg"),
        (("--suite", "seeds"), "--suite has its own masks, so FILE or --expr cannot be given"),
    ],
)
def test_mistakes_come_before_any_timing(words: tuple[str, ...], text: str):
    pytest.importorskip("matplotlib")
    done = maskc("bench", "--expr", "causal()", *SMALL, *words, code=2)
    assert text in done.stderr
    assert "compiling" not in done.stderr


def test_without_a_mask_or_a_suite():
    assert "give" in maskc("bench", code=2).stderr


# ------------------------------------------------------------------ the suite


@needs_torch
def test_seeds_are_judged_where_they_were_measured(monkeypatch: pytest.MonkeyPatch):
    few = [seed for seed in lab_seeds.seeds() if seed.name in ("streaming", "window", "10% live")]
    monkeypatch.setattr(suite_command, "seeds", lambda: few)
    report = maskc_json("bench", "--suite", "seeds", "--n", 128, *SMALL)
    by_name = {row["mask"]: row for row in report["seeds"]}
    assert by_name["streaming"]["met"] in (True, False)
    assert by_name["window"]["met"] is None
    assert by_name["window"]["measured_at"] == 128
    assert {row["impl"] for row in report["rows"]} == {"maskc", "dense"}
    assert all(row["ok"] for row in report["rows"])
    text = maskc("bench", "--suite", "seeds", "--n", 128, *SMALL).stdout
    assert "128, not 131,072" in text
    assert "not judged" in text


def test_speeds_are_met_or_missed():
    seed = next(each for each in lab_seeds.seeds() if each.name == "25% live")
    rows = [
        {"impl": impl, "n_q": 8192, "direction": "fwd", "ms": ms, "ok": True}
        for impl, ms in (("maskc", 1.0), ("dense", 2.4))
    ]
    (row,) = lab_seeds.judgements(seed, rows, None)
    assert (row["speed_over_dense"], row["met"]) == (2.4, False)
    rows[1]["ms"] = 2.5
    assert lab_seeds.judgements(seed, rows, None)[0]["met"] is True
    assert lab_seeds.judgements(seed, rows, 512)[0]["met"] is None


def test_tables_have_their_share():
    for share in (0.5, 0.25, 0.1):
        table = lab_seeds.table_of(16384, share)
        assert table.shape == (128, 128)
        assert table.diagonal().all()
        assert abs(table.mean() - share) < 0.02


# ------------------------------------------------------------------ one length


ONE_LENGTH = ("--n", 70, "--heads", 2, "--head-dim", 16, "--dtype", "float32", "--target", "cpu",
         "--repeats", 1)  # fmt: skip


def case(mask: mc.Mask, **more: Any) -> Case:
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "n_q": 40, "n_kv": 50, "head_dim": 16}
    return Case("mask", mask, **{**sizes, "dtype": DType.float32, **more})


@needs_torch
@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16])
def test_rows_of_all_that_run(dtype: DType):
    rows, notes = bench_mask(case(mc.window(7), dtype=dtype), CPU, repeats=1)
    assert [(row["impl"], row["direction"]) for row in rows] == [
        (impl, direction)
        for direction in ("fwd", "bwd")
        for impl in ("maskc", "dense", "sdpa_masked", "unfused", "sparse")
        if (direction, impl) != ("bwd", "sparse")
    ]
    assert all(row["ok"] and row["ms"] > 0 and row["error"] < 0.1 for row in rows)
    live = mc.window(7).count(40, 50) * 8
    assert rows[0]["live_tflops"] == pytest.approx(4 * 16 * live / rows[0]["ms"] / 1e9, rel=1e-2)
    assert all(row["tokens_per_s"] == pytest.approx(80 / row["ms"] * 1e3, rel=1e-2) for row in rows)
    assert all(row["pairs"] == live and row["peak_bytes"] >= 0 for row in rows)
    assert notes == [
        "mask, flex: RuntimeError: not now",
        "mask, cudnn_flex: not installed: pip install nvidia-cudnn-frontend",
        "mask, sparse: it has no backward here",
    ]


@needs_torch
def test_keys_that_are_chosen_have_a_dense_rival_only():
    rows, notes = bench_mask(case(mc.topk(3, of=mc.causal())), CPU, ("fwd",), 1)
    assert [row["impl"] for row in rows] == ["maskc", "dense"]
    assert all(row["ok"] for row in rows)
    assert notes == ["mask, rivals but dense: keys are chosen at run time"]


def test_too_many_pairs_to_rank_are_refused():
    with pytest.raises(UsageMistake, match="takes too long to check"):
        module._chosen(case(mc.topk(3, of=mc.causal()), n_q=1 << 20, n_kv=1 << 20), None)


@needs_torch
@pytest.mark.slow
def test_flex_attention_runs_forward(monkeypatch: pytest.MonkeyPatch):
    without_inductor(monkeypatch)
    rows, notes = bench_mask(case(mc.window(9), n_q=128, n_kv=128, batch=1), CPU, repeats=1)
    assert {row["impl"] for row in rows if row["direction"] == "fwd"} == {"maskc", *RIVALS} - {
        "cudnn_flex"
    }
    assert all(row["ok"] for row in rows)
    assert "mask, flex: it has no backward here" in notes


def test_without_torch_maskc_runs_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("maskc.verify.case_tensors.has_torch", lambda: False)
    monkeypatch.setattr(module, "has_torch", lambda: False)
    rows, notes = bench_mask(case(mc.causal(), dtype=DType.float16), CPU, repeats=1)
    assert [row["impl"] for row in rows] == ["maskc", "maskc"]
    assert all(row["ok"] for row in rows)
    assert notes == ["mask, rivals: PyTorch is not installed"]


@needs_torch
def test_a_rival_that_breaks_or_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch):
    def two(case: Case, tensors: Any, *rest: Any) -> list[Contender]:
        def breaks() -> Any:
            raise RuntimeError("out of\nluck")

        return [Contender("dense", breaks, None), Contender("flex", lambda: tensors.q * 0, None)]

    monkeypatch.setattr(module, "_rivals", two)
    rows, notes = bench_mask(case(mc.causal()), CPU, ("fwd",), 1)
    assert {row["impl"]: row["ok"] for row in rows} == {"maskc": True, "flex": False}
    assert notes == ["mask, dense: fwd raised RuntimeError: out of"]


# ------------------------------------------------------------------ the command


def test_several_patterns_are_one_report(tmp_path: Path):
    file = tmp_path / "two.py"
    file.write_text(
        "import maskc as mc\n\none = mc.causal() & mc.documents('doc')\n"
        "other = mc.per_head([mc.full(), mc.window(3)])\n"
    )
    report = maskc_json(
        "bench", file, *ONE_LENGTH, "--kv-heads", 1, "--batch", 2, "--direction", "fwd"
    )
    assert [r["case"] for r in report["rows"] if r["impl"] == "maskc"] == ["one", "other"]
    assert all(row["ok"] and row["target"] == "cpu" for row in report["rows"])
    assert report["environment"]["rivals"] == RIVALS


def test_the_table_says_what_was_measured():
    done = maskc("bench", "--expr", "causal()", *ONE_LENGTH)
    assert "mask: compiling for cpu\n" in done.stderr
    assert "compiling" not in done.stdout
    assert done.stdout.count(" ok") >= 2
    if find_spec("torch"):
        assert f"dense: {RIVALS['dense']}" in done.stdout
        assert f"flex: {RIVALS['flex']}" not in done.stdout


def test_a_wrong_kernel_fails_and_has_no_time(monkeypatch: pytest.MonkeyPatch):
    right = CompiledMask.__call__

    def wrong(self: Any, *given: Any, **more: Any) -> Any:
        out, lse = right(self, *given, **more)
        return out * 1.01, lse

    monkeypatch.setattr(CompiledMask, "__call__", wrong)
    words = ("bench", "--expr", "causal()", *ONE_LENGTH, "--direction", "fwd")
    done = maskc(*words, code=3)
    line = next(line for line in done.stdout.splitlines() if " maskc " in line)
    assert line.split()[:3] == ["mask", "fwd", "maskc"]
    assert line.split()[-1] == "FAILED"
    assert len(line.split()) == 5  # an error, and no time
    assert "MC602  1 results of maskc are wrong: mask fwd" in done.stderr
    assert not json.loads(maskc(*words, "--json", code=3).stdout)["rows"][0]["ok"]
