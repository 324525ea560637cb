"""Everything the command line says when something is wrong, in full."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import json
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


def test_three_mistakes_of_one_file(file: str):
    done = maskc("compile", file, code=1)
    assert done.stdout == ""
    assert (
        done.stderr
        == """\
MC101 it's bad.py:3:28  window(-1): left must be >= 0, found -1
    bad_window = mc.causal() & mc.window(-1)
                               ^^^^^^^^^^^^^
    hint: counts are inclusive and never negative; None means unbounded where it is allowed
MC102 it's bad.py:8:12  dilated(0): stride must be >= 1, found 0
        return mc.dilated(4, stride=0)
               ^^^^^^^^^^^^^^^^^^^^^^^
    hint: strides, block sizes and counts of levels start at 1
MC105 it's bad.py:13:12  a mask has no truth value: `and`, `or`, `not`, `if` and chained comparisons would drop it
        return mc.causal() and mc.full()
               ^^^^^^^^^^^^^^^^^^^^^^^^^
    hint: use & for and, | for or, ~ for not, and put comparisons in parentheses
"""
    )


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


@pytest.mark.parametrize(("words", "code", "text"), [
    ((), 2, """\
MC603 FILE  nothing to work on
    hint: give a pattern file, a folder of them, or --expr "causal() & window(1023)"
"""),
    (("near.py", "--expr", "causal()"), 2, """\
MC603 FILE  a pattern file and --expr were both given
    hint: give a pattern file, a folder of them, or --expr "causal() & window(1023)"
"""),
    (("missing.py",), 2, """\
MC207  no such file: missing.py
    hint: check the path; `maskc compile --expr "causal()"` needs no file
"""),
    (("empty",), 1, """\
MC202 empty  no pattern in this file
    hint: decorate a function with @mc.pattern, or assign a mask to a module-level name
"""),
    (("near.py", "--set", "widht=3"), 2, """\
MC603 --set  --set: no parameter 'widht'
    hint: did you mean width? there is: width
"""),
    (("near.py", "--set", "width"), 2, """\
MC603 --set  --set expects name=value, found 'width'
    hint: for example --set window=512
"""),
    (("near.py", "--set", "width=wide"), 2, """\
MC205 near.py:4:2  near: parameter 'width' expects int, found 'wide'
    @mc.pattern
     ^^^^^^^^^^
    hint: the annotation in the pattern's signature decides the type
"""),
    (("near.py", "--pattern", "neer"), 2, """\
MC603 --pattern  --pattern: no pattern 'neer'
    hint: did you mean near? there is: near
"""),
    (("near.py", "--target", "sm_61"), 2, """\
MC502 target  unknown target 'sm_61'; known: cpu, sm_80, sm_90a, simt
    hint: target=None picks what this machine has
"""),
    (("near.py", "--dtype", "int8"), 2, """\
MC501 dtype  unknown dtype 'int8'; known: bfloat16, float16, float32, float8_e4m3fn
    hint: pass one of these, as text or as a dtype of torch or NumPy; convert other tensors first, \
for example with q.float() or q.astype('float32'), as kernels compute in fp32
"""),
    (("--expr", "causal() and full()"), 2, """\
MC115  cannot read the mask expression: `and` and `or` drop a mask; use & and |
    hint: an expression is made of combinators, integers, & | ~ - ^ and parentheses
"""),
    (("--expr", "__import__('os').system('true')"), 2, None),
    (("near.py", "--emit", "plan", "-o", "out"), 2, """\
MC603 --emit  --emit prints, -o and --check compare files
    hint: choose one
"""),
    (("near.py", "--check", "--target", "cpu"), 3, """\
MC601 generated  the files differ from what the patterns generate now: near.cpu.c (missing), near.plan.json (missing), near.py (missing)
    hint: run `maskc compile near.py -o generated` and commit the result
"""),
])  # fmt: skip
def test_refusals(
    words: tuple[str, ...], code: int, text: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text(LINES)
    (tmp_path / "empty").mkdir()
    done = maskc("compile", *words, code=code)
    assert done.stdout == ""
    if text is not None:
        assert done.stderr == text


def test_a_place_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text(LINES)
    done = maskc("compile", "near.py", "--target", "cpu", "-o", "near.py", code=2)
    assert (
        done.stderr
        == """\
MC603 -o  cannot write near.py/near.py: File exists
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
MC509 target  target of this kernel needs an NVIDIA GPU, and PyTorch finds none
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
