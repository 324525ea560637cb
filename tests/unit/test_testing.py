"""Tests that users write for their own masks: right kernels pass, a broken one is made small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import maskc as mc
from maskc import driver, testing
from maskc.core.errors import CheckFailed, Counterexample, NothingCompared
from maskc.runtime import CompiledMask
from maskc.testing.checking import Wanted, examine
from maskc.testing.emulator import Fault, emulated, machine
from maskc.verify import random_cases as cases
from maskc.verify.case_tensors import has_torch
from tests.support.cli import maskc, maskc_json

ROOT = Path(__file__).parents[2]
CPU = {"head_dim": 16, "target": "cpu"}
HOPPER = {"head_dim": 64, "target": "sm_90a", "dtype": "bfloat16"}
STRIPES = "where(lambda q, k: (q - 3 * k) % 7 < 4)"
FILE = """\
import maskc as mc

narrow = mc.window(3)


@mc.pattern
def near(*, width: int = 9) -> mc.Mask:
    return mc.causal() & mc.window(width)
"""


@mc.pattern
def near(*, width: int = 9) -> mc.Mask:
    return mc.causal() & mc.window(width)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No options that change scores are drawn, whose kernels are others."""
    monkeypatch.setattr(cases, "OPTIONS", ((),))


# ------------------------------------------------------------------ right kernels


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    "mask", [near, mc.window(mc.param("w", 3)), mc.per_head([mc.causal(), mc.documents("doc")])]
)
def test_right_masks_pass(mask: Any):
    assert testing.check(mask, examples=4, dtype="float32", **CPU) == 4


def test_every_dtype_and_option_is_drawn(monkeypatch: pytest.MonkeyPatch):
    found: list[cases.DrawnCase] = []
    monkeypatch.setattr(cases, "mismatch", lambda case, _: found.append(case))
    assert testing.check(mc.causal() & mc.documents("d"), examples=200, **CPU) == 200
    assert {case.dtype for case in found} == {"float32", "bfloat16", "float16"}
    assert {case.options for case in found} == set(cases.OPTIONS)
    for name in ("data_by_sequence", "deterministic", "planted"):
        assert {getattr(case, name) for case in found} == {False, True}, name
    assert {case.data_as_tensors for case in found} == {False, has_torch()}
    assert {case.heads // case.kv_heads for case in found} == {1, 2, 4}


def test_all_of_it_in_half_precision():
    assert testing.check(mc.window(30) | mc.sinks(2), dtype="bfloat16", examples=12, **CPU) == 12


def test_a_file_is_tested_whole(tmp_path: Path):
    (tmp_path / "mine.py").write_text(FILE)
    assert testing.check(tmp_path / "mine.py", examples=2, dtype="float32", **CPU) == 4


@pytest.mark.usefixtures("plain")
def test_hopper_is_emulated_where_there_is_none():
    pytest.importorskip("torch", reason="the emulator's memory is PyTorch's")
    done = examine("mask", mc.causal() & mc.window(20), Wanted(examples=6, **HOPPER))
    assert (done.right(), done.where) == (6, "sm_90a in the emulator")
    assert not machine.installed


def test_the_emulator_leaves_no_trace():
    pytest.importorskip("torch", reason="the emulator's memory is PyTorch's")
    from maskc.build import toolchain
    from maskc.runtime.arrays import known

    before, libraries = toolchain.gpus, dict(known.LIBRARIES)
    with emulated():
        assert [gpu.name for gpu in toolchain.gpus()] == ["emulated Hopper"]
    assert toolchain.gpus is before
    assert libraries.items() == known.LIBRARIES.items()


def test_a_mask_that_refuses_every_case(monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: object) -> None:
        raise mc.MaskcError("no")

    monkeypatch.setattr(cases, "mismatch", refuses)
    with pytest.raises(NothingCompared) as raised:
        testing.check(mc.causal(), examples=3, **CPU)
    assert "MC612  none of the 3 cases of causal() could be compared" in str(raised.value)


# ------------------------------------------------------------------ broken kernels


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels whose sources have one text in place of another, compiled and run as any other."""

    def install(right: str, wrong: str) -> None:
        emit = driver.emit_bundle

        def emitted(*given: Any, **more: Any) -> Any:
            bundle = emit(*given, **more)
            units = tuple(replace(u, text=u.source.replace(right, wrong)) for u in bundle.units)
            assert all(right in unit.source for unit in bundle.units)
            return replace(bundle, units=units)

        monkeypatch.setattr(driver, "emit_bundle", emitted)

    return install


FLOOR_MOD = "a % b + (a % b < 0 ? b : 0)"


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("where", [CPU | {"dtype": "float32"}, HOPPER], ids=["cpu", "sm_90a"])
def test_a_broken_formula_is_found_and_made_small(broken: Any, where: dict[str, Any]):
    """C's remainder is negative below 0: query 0 sees key 1, which it should not."""
    if where is HOPPER:
        pytest.importorskip("torch", reason="the emulator's memory is PyTorch's")
    broken(FLOOR_MOD, "a % b")
    done = examine("mask", mc.parse(STRIPES), Wanted(examples=10, **where))
    wrong = done.outcome.mismatch
    assert wrong is not None
    case = wrong.case
    assert (case.n_q, case.n_kv, case.batch, case.heads) == (1, 2, 1, 1)
    assert (case.options, case.strides, case.seed) == ((), "contiguous", 0)
    assert (case.data_as_tensors, case.deterministic, case.planted) == (False,) * 3
    with pytest.raises(Counterexample) as raised:
        done.right()
    assert f"MC611  {wrong.part} of {STRIPES} on {where['target']}" in str(raised.value)
    assert "batch, heads, kv_heads, n_q, n_kv = 1, 1, 1, 1, 2\n" in str(raised.value)
    assert isinstance(raised.value, CheckFailed)
    with emulated() if where is HOPPER else pytest.MonkeyPatch.context():
        assert status(done.program.replace("emulator.start()\n", "")) == 1


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch):
    """Of one input per head, in one sequence of two."""
    right = CompiledMask.backward

    def wrong(self: Any, q: Any, *given: Any, **more: Any) -> Any:
        found = right(self, q, *given, **more)
        if len(found) > 3 and q.shape[0] > 1:
            found[3][0] *= 1.001
        return found

    monkeypatch.setattr(CompiledMask, "backward", wrong)
    done = examine("mask", mc.window(20), Wanted(examples=40, dtype="float32", **CPU))
    assert done.outcome.mismatch is not None
    assert done.outcome.mismatch.part in ("dsink", "dalibi")
    assert done.outcome.mismatch.case.batch == 2


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("error", [Fault("kernel: threads wait for ever"), IndexError("9")])
def test_what_a_call_raises_is_made_small(error: Exception, monkeypatch: pytest.MonkeyPatch):
    right = CompiledMask.__call__

    def raises(self: Any, q: Any, k: Any, *given: Any, **more: Any) -> Any:
        if k.shape[2] > 21:
            raise error
        return right(self, q, k, *given, **more)

    monkeypatch.setattr(CompiledMask, "__call__", raises)
    done = examine("mask", mc.window(20), Wanted(examples=20, dtype="float32", **CPU))
    assert done.outcome.mismatch is not None
    assert (done.outcome.mismatch.part, done.outcome.mismatch.case.n_kv) == ("call", 22)
    assert done.finding() == f"a call of window(20) on cpu raises {type(error).__name__}: {error}"
    with pytest.raises(type(error)):
        status(done.program)


def status(program: str) -> int:
    """Exit status of a program, run in this process: another would import for seconds."""
    with pytest.raises(SystemExit) as end:
        exec(compile(program, "program", "exec"), {})
    return int(end.value.code)


# ------------------------------------------------------------------ the command


def test_the_command_says_what_it_compared(tmp_path: Path):
    (tmp_path / "mine.py").write_text(FILE)
    words = ("test", tmp_path / "mine.py", "--head-dim", 16, "--dtype", "float32", "--examples", 3)
    assert maskc(*words, "--target", "cpu").stdout == (
        "narrow: window(3)\ncpu, float32: 3 cases compared, all right\n"
        "near: causal() & window(9)\ncpu, float32: 3 cases compared, all right\n"
    )
    found = maskc_json(*words, "--pattern", "near", "--set", "width=4")["patterns"]
    assert [(each["formula"], each["cases"]) for each in found] == [("causal() & window(4)", 3)]
    assert found[0]["counterexample"] is None


@pytest.mark.usefixtures("plain")
def test_the_command_prints_a_program_and_exits_with_1(broken: Any):
    broken(FLOOR_MOD, "a % b")
    words = ("test", "--expr", STRIPES, "--head-dim", 16, "--dtype", "float32", "--examples", 10)
    done = maskc(*words, "--target", "cpu", code=1)
    assert f"mask: {STRIPES}\ncpu, float32: " in done.stdout
    program = done.stdout.partition("one is wrong\n\n")[2]
    assert program.startswith("# maskc test: ")
    assert status(program) == 1
    assert done.stderr.startswith(f"MC611  out of {STRIPES} on cpu is off by ")
    done = maskc(*words, "--target", "cpu", "--json", code=1)
    (report,) = json.loads(done.stdout)["patterns"]
    assert report["counterexample"]["script"] + "\n" == program
    assert json.loads(done.stderr)["errors"][0]["code"] == "MC611"


# ------------------------------------------------------------------ pytest


TESTS = """\
def test_mine(maskc_check):
    maskc_check("mine.py", head_dim=16, dtype="float32")
"""


@pytest.mark.usefixtures("soon_elsewhere")
def test_a_pattern_file_is_a_test_in_one_line(tmp_path: Path):
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = run_pytest(tmp_path, "--maskc-target", "cpu", "--maskc-examples", "2")
    assert done.returncode == 0, done.stdout
    (tmp_path / "mine.py").write_text("import maskc as mc\n\nbad = mc.window(-1)\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "MC101 " in done.stdout
    assert "Traceback" not in done.stdout


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "maskc.testing.plugin", "-q", *options],
        cwd=folder, capture_output=True, text=True, check=False, env=env, timeout=600,
    )  # fmt: skip
