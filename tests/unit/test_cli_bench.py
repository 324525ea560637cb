"""maskc bench: a mask compared with PyTorch's attention; every result is checked."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import maskc as mc
from maskc.core.dtypes import DType
from maskc.core.errors import UsageMistake
from maskc.core.target import Target
from maskc.lab import bench as module
from maskc.lab import rivals
from maskc.lab.bench import bench_mask
from maskc.lab.rivals import RIVALS, Contender
from maskc.runtime import CompiledMask
from maskc.verify.case import Case
from tests.support.cli import maskc, maskc_json
from tests.support.thorough import without_inductor

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")
CPU = Target.named("cpu")
SMALL = ("--n", 70, "--heads", 2, "--head-dim", 16, "--dtype", "float32", "--target", "cpu",
         "--repeats", 1)  # fmt: skip


@pytest.fixture(autouse=True)
def no_flex(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """FlexAttention takes seconds to compile; one test below has it."""
    if "slow" in request.keywords:
        return

    def refuse(*given: Any) -> Contender:
        raise RuntimeError("not now")

    monkeypatch.setattr(rivals, "flex", refuse)


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
    report = maskc_json("bench", file, *SMALL, "--kv-heads", 1, "--batch", 2, "--direction", "fwd")
    assert [r["case"] for r in report["rows"] if r["impl"] == "maskc"] == ["one", "other"]
    assert all(row["ok"] and row["target"] == "cpu" for row in report["rows"])
    assert report["environment"]["rivals"] == RIVALS


def test_the_table_says_what_was_measured():
    done = maskc("bench", "--expr", "causal()", *SMALL)
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
    words = ("bench", "--expr", "causal()", *SMALL, "--direction", "fwd")
    done = maskc(*words, code=3)
    line = next(line for line in done.stdout.splitlines() if " maskc " in line)
    assert line.split()[:3] == ["mask", "fwd", "maskc"]
    assert line.split()[-1] == "FAILED"
    assert len(line.split()) == 5  # an error, and no time
    assert "MC602  1 results of maskc are wrong: mask fwd" in done.stderr
    assert not json.loads(maskc(*words, "--json", code=3).stdout)["rows"][0]["ok"]
