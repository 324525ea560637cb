"""The full text of every refusal of property tests (MC610 to MC612)."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import pytest

import maskc as mc
from maskc import testing
from maskc.core.errors import Counterexample, EmulatorMissing, MaskcError, NothingCompared
from maskc.testing.emulator import machine
from maskc.verify import random_cases as cases
from tests.support.cli import maskc


def test_what_the_emulator_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr("maskc.testing.checking.runs", lambda target, index: False)
    with pytest.raises(EmulatorMissing) as raised:
        testing.check(mc.causal(), target="sm_90a", dtype="bfloat16")
    assert str(raised.value) == (
        "MC610  this machine has no GPU that runs the kernels, and the emulator needs g++ and PyTorch\n"
        "    hint: install it, or test the CPU kernels with target='cpu'"
    )
    assert not machine.installed


def test_a_wrong_case(monkeypatch: pytest.MonkeyPatch):
    def wrong(case: cases.DrawnCase, _: object) -> cases.Mismatch:
        return cases.Mismatch(case, "dq", 0.25, 0.01)

    monkeypatch.setattr(cases, "mismatch", wrong)
    done = maskc("test", "--expr", "window(3)", "--target", "cpu", "--examples", 5, code=1)
    assert done.stderr == (
        "MC611  dq of window(3) on cpu is off by 0.25, allowed 0.01\n"
        "    hint: this program reproduces the fault: please report it with the pattern\n"
    )
    with pytest.raises(Counterexample) as raised:
        testing.check(mc.window(3), target="cpu", examples=5)
    head, program = str(raised.value).split("\n\n", 1)
    assert head == "MC611  dq of window(3) on cpu is off by 0.25, allowed 0.01"
    assert program.startswith(
        "# maskc test: dq is wrong by 2.5e-01, 1.0e-02 is allowed.\nimport sys\n"
    )


def test_nothing_is_compared(monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: object) -> None:
        raise MaskcError("a reason")

    monkeypatch.setattr(cases, "mismatch", refuses)
    with pytest.raises(NothingCompared) as raised:
        testing.check(mc.window(3), target="cpu", examples=5)
    expected = (
        "MC612  none of the 5 cases of window(3) could be compared; the first was refused: MC000 a reason\n"
        "    hint: pass the data that such a call needs, or lengths that the mask accepts"
    )
    assert str(raised.value) == expected
    done = maskc("test", "--expr", "window(3)", "--target", "cpu", "--examples", 5, code=1)
    assert done.stderr == f"{expected}\n"
