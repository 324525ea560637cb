"""Everything the command line says when something is wrong, in full."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import maskc

THREE_MISTAKES = """\
import maskc as mc

bad_window = mc.causal() & mc.window(-1)


@mc.pattern
def bad_stride():
    return mc.dilated(4, stride=0)


@mc.pattern
def dropped():
    return mc.causal() and mc.full()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pattern file with three mistakes, its folder being the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it's bad.py").write_text(THREE_MISTAKES)
    return "it's bad.py"


def test_three_mistakes_of_one_file(file: str, message):
    done = maskc("compile", file, code=1)
    assert done.stdout == ""
    message("cli", "three mistakes", done.stderr.rstrip("\n"))


def test_three_mistakes_as_json(file: str):
    found = json.loads(maskc("compile", file, "--json", code=1).stderr)
    assert found["exit_code"] == 1
    assert [error["code"] for error in found["errors"]] == ["MC101", "MC102", "MC105"]
    assert found["errors"][0] == {
        "code": "MC101",
        "at": {"file": "it's bad.py", "line": 3, "column": 28},
        "finding": "window(-1): left must be >= 0, found -1",
        "hint": "counts are inclusive and never negative; None means unbounded where it is allowed",
    }


def test_mistakes_of_several_files_come_together(file: str, tmp_path: Path):
    (tmp_path / "worse.py").write_text("import maskc as mc\n1 / 0\n")
    (tmp_path / "zz.py").write_text("import maskc as mc\n\nfine = mc.causal()\n")
    text = maskc("explain", tmp_path, code=1).stderr
    assert [line.split()[0] for line in text.splitlines() if line.startswith("MC")] == [
        "MC101", "MC102", "MC105", "MC201",
    ]  # fmt: skip
    assert text.endswith("""\
MC201 worse.py:2:1  the pattern file raised ZeroDivisionError: division by zero
    1 / 0
    ^^^^^
    hint: a pattern file is ordinary Python, and this error comes from its code
""")


LINES = """\
import maskc as mc


@mc.pattern
def near(*, width: int = 8) -> mc.Mask:
    return mc.window(width)
"""


REFUSED = {
    "": 2,
    "near.py --expr 'causal()'": 2,
    "missing.py": 2,
    "empty": 1,
    "near.py --set widht=3": 2,
    "near.py --set width": 2,
    "near.py --set width=wide": 2,
    "near.py --pattern neer": 2,
    "near.py --target sm_61": 2,
    "near.py --dtype int8": 2,
    "--expr 'causal() and full()'": 2,
    "near.py --emit plan -o out": 2,
    "near.py --check --target cpu": 3,
}
"""Arguments of `maskc compile`, and the exit code."""


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text(LINES)
    (tmp_path / "empty").mkdir()
    done = maskc("compile", *shlex.split(words), code=REFUSED[words])
    assert done.stdout == ""
    message("cli", words or "nothing", done.stderr.rstrip("\n"))


def test_an_expression_runs_nothing():
    assert maskc("compile", "--expr", "__import__('os').system('true')", code=2).stdout == ""


def test_a_place_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text(LINES)
    done = maskc("compile", "near.py", "--target", "cpu", "-o", "near.py", code=2)
    assert (
        done.stderr
        == """\
MC603 -o  cannot write near.py/near.py: near.py is a file, not a folder
    hint: choose another place with -o
"""
    )


def test_two_patterns_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one.py", "other.py"):
        (tmp_path / name).write_text(LINES)
    assert (
        maskc("compile", tmp_path, code=2).stderr
        == """\
MC603  one.py and other.py both define 'near'
    hint: give each its own name, or compile one at a time
"""
    )


def test_lengths_go_together():
    assert (
        maskc("verify", "--expr", "causal()", "--n-kv", 5, code=2).stderr
        == """\
MC603 --n-kv  --n-kv was given without --n
    hint: give both
"""
    )


def test_a_terminal_gets_colour(file: str, monkeypatch: pytest.MonkeyPatch):
    from maskc.cli import app

    plain = maskc("compile", file, code=1).stderr
    colored = app._colored(plain)
    assert "\x1b[31m\x1b[1mMC101\x1b[0m" in colored
    assert "\x1b[36m    hint: strides" in colored
    import click

    assert click.unstyle(colored) == plain


def test_a_gpu_that_there_is_not():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    found = maskc("verify", "causal", "--target", "sm_90a", "--cases", 0, code=1).stderr
    assert (
        found
        == """\
MC509 target  this kernel needs an NVIDIA GPU, and PyTorch finds none
    hint: compile(target='cpu') runs anywhere; `maskc doctor` says what is missing
"""
    )


@pytest.mark.parametrize("words", [("patterns", "swin"), ("visualize", "causal", "--n", "64")])
def test_output_that_nothing_takes(words: tuple[str, ...]):
    """A full disk is a mistake in one line, and a closed stdout takes nothing, without a trace."""
    here = [sys.executable, "-m", "maskc", *words]
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = subprocess.run(here, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("MC603 stdout  cannot print: No space left on device\n")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *here], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
