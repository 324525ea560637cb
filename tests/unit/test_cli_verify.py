"""maskc verify: right kernels pass, wrong ones do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.dtypes import DType
from maskc.verify.case import Case
from maskc.verify.probes import Probe
from tests.support.cli import maskc, maskc_json

CPU = ("--target", "cpu", "--head-dim", "16", "--dtype", "float32")
STREAMING = "causal() & (sinks(2) | window(5))"
CHECKS = [
    "reads the mask back", "forward", "backward", "NaN in K stays with its key",
    "NaN in V stays with its key",
]  # fmt: skip


def test_a_right_kernel_passes():
    (report,) = maskc_json("verify", "--expr", STREAMING, *CPU)["patterns"]
    assert report["target"] == "cpu"
    assert {row["case"] for row in report["rows"]} == {
        "1 x 1", "64 x 64", "129 x 129", "257 x 257", "75 x 203", "203 x 75",
    }  # fmt: skip
    assert [row["check"] for row in report["rows"]] == CHECKS * 6
    assert all(row["ok"] for row in report["rows"])
    assert all(row["error"] <= row["allowed"] for row in report["rows"])


def test_the_table_says_what_was_checked():
    text = maskc("verify", "--expr", STREAMING, *CPU, "--n", 40).stdout
    assert text.startswith(f"mask: {STREAMING}\ncpu, float32, head_dim 16, 2 heads\n")
    for check in CHECKS:
        assert f"40 x 40          {check}" in text
    assert text.count(" ok") == len(CHECKS)


@pytest.mark.parametrize("expr", [
    'causal() & documents("doc") | flags("f1")', 'tree("walk") & intervals("iv")',
    "per_head([causal(), window(3), random_blocks(8, 2, 1)])", "causal() & ~causal()",
    'window(param("w", 9))',
])  # fmt: skip
def test_masks_of_every_kind(expr: str):
    more = ("--set", "w=3") if "param" in expr else ()
    answer = maskc_json("verify", "--expr", expr, *CPU, "--n", 50, "--n-kv", 70, *more)
    assert all(row["ok"] for row in answer["patterns"][0]["rows"])


def test_half_precision():
    words = ("--target", "cpu", "--head-dim", 16, "--dtype", "bf16", "--n", 90)
    (report,) = maskc_json("verify", "--expr", STREAMING, *words)["patterns"]
    assert report["dtype"] == "bfloat16"
    assert 1e-4 < next(row["allowed"] for row in report["rows"] if row["check"] == "forward") < 1e-1


def test_lengths_that_do_not_fit_are_left_out(tmp_path: Path):
    file = tmp_path / "table.py"
    file.write_text("import maskc as mc\n\nfixed = mc.block_table([[1, 0], [1, 1]], 64)\n")
    (report,) = maskc_json("verify", file, *CPU, "--n", 128)["patterns"]
    assert report["skipped"] == []
    done = maskc("verify", file, *CPU, "--n", 64, code=2)
    assert "fixed fits none of the lengths" in done.stderr


def test_a_kernel_of_another_mask_fails(monkeypatch: pytest.MonkeyPatch):
    right = driver.compile

    def another(mask: mc.Mask, **options: Any) -> Any:
        return right(mask - mc.where(lambda q, k: (q == 20) & (k == 19)), **options)

    monkeypatch.setattr(driver, "compile", another)
    words = ("--expr", "window(5)", *CPU, "--n", 40, "--seed", 2)  # plants no NaN in key 19
    done = maskc("verify", *words, code=3)
    assert "FAILED" in done.stdout
    assert "MC602  3 of 5 checks failed: mask 40 x 40 (reads the mask back), " in done.stderr
    answer = maskc("verify", *words, "--json", code=3)
    rows = json.loads(answer.stdout)["patterns"][0]["rows"]
    wrong = {row["check"]: row["error"] for row in rows if not row["ok"]}
    assert set(wrong) == {"reads the mask back", "forward", "backward"}
    # One query lost one of its six keys: that key reads 0 and the five others 1/5, on two heads.
    assert wrong["reads the mask back"] == 2 * 6
    assert json.loads(answer.stderr)["exit_code"] == 3


class Leaking:
    """A kernel that lets a masked NaN through, or swallows one."""

    def __init__(self, attn: Any, leak: bool) -> None:
        self.attn, self.target, self.leak = attn, attn.target, leak

    def __call__(self, q: Any, k: Any, v: Any, **more: Any) -> Any:
        out = self.attn(q, k, v, **more)
        if any(np.isnan(np.asarray(x, np.float32)).any() for x in (k, v)):
            out[:, :, 3 if self.leak else slice(None)] = np.nan if self.leak else 0.0
        return out


@pytest.mark.parametrize("leak", [True, False])
def test_a_nan_that_wanders_or_vanishes_is_found(leak: bool):
    mask = mc.window(0)
    attn = mask.compile(16, n_heads=2, dtype="float32", target="cpu")
    case = Case("self", mask, 1, 2, 1, 40, 40, 16, DType.float32)
    keep = np.broadcast_to(mask.dense(40), (2, 40, 40))
    probe = Probe(Leaking(attn, leak), case, keep, seed=1)
    from maskc.verify.case_tensors import make_tensors

    tensors = make_tensors(case, "cpu")
    assert Probe(attn, case, keep, seed=1)._planted(tensors, "K").ok
    for where in "KV":
        check = probe._planted(tensors, where)
        assert not check.ok
        assert check.error == (2 if leak else 2 * 40)
