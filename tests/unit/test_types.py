"""What a type checker says of public calls: results, and the signature of a pattern."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CALLS = """
import numpy as np
import maskc as mc

@mc.pattern
def local(left: int = 4, *, wide: bool = False) -> mc.Mask:
    return mc.window(left)

q = np.zeros((1, 1, 8, 16), dtype=np.float32)
attn = local().compile(16)
flag = bool(input())

reveal_type(local)
reveal_type(local(2, wide=True))
reveal_type(local.with_text({"left": "2"}))
reveal_type(attn)
reveal_type(attn(q, q, q))
reveal_type(attn(q, q, q, return_lse=True))
reveal_type(attn(q, q, q, return_lse=flag))
reveal_type(mc.attention(q, q, q, local()))
reveal_type(mc.attention(q, q, q, local(), return_lse=True))
reveal_type(mc.attention(q, q, q, local(), return_lse=flag))
reveal_type(local().dense(8))
reveal_type(local().layout(8).row_ptr)
reveal_type(local().count(8))
reveal_type(local().equals(mc.causal()))
reveal_type(mc.causal() & mc.sinks(4) | ~mc.full())
"""
REVEALED = [
    "Pattern[[left: int =, *, wide: bool =]]", "Mask", "Mask", "CompiledMask",
    "Any", "tuple[Any, Any]", "Any",
    "Any", "tuple[Any, Any]", "Any",
    "ndarray", "ndarray", "int", "bool | None", "Mask",
]  # fmt: skip

MISTAKES = """
import maskc as mc

@mc.pattern
def local(left: int = 4, *, wide: bool = False) -> mc.Mask:
    return mc.window(left)

local(right=2)
local("2")
local(2, True)
mc.causal().layout(8, block=128)
mc.causal().compile()
mc.attention(1, 2, 3, local)
"""


def checked(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What mypy says of a file, line by line, under the settings of this repository."""
    api = pytest.importorskip("mypy.api")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    file = folder / "of_a_user.py"
    file.write_text(text)
    shown, error, _ = api.run([str(file), "--no-error-summary", "--no-pretty"])
    assert not error
    return [line.partition("of_a_user.py:")[2] for line in shown.splitlines()]


def plain(revealed: str) -> str:
    """A revealed type without modules, and without what NumPy says of shapes."""
    return re.sub(r"\bndarray\[.*", "ndarray", re.sub(r"\b[a-z_]\w*\.", "", revealed))


@pytest.mark.slow
def test_public_calls_reveal_their_types(tmp_path, monkeypatch):
    lines = checked(CALLS, tmp_path, monkeypatch)
    assert [line for line in lines if "error" in line] == []
    found = [re.search('Revealed type is "(.*)"', line) for line in lines]
    assert [plain(each[1]) for each in found if each] == REVEALED


@pytest.mark.slow
def test_calls_that_cannot_be_right_are_errors(tmp_path, monkeypatch):
    lines = checked(MISTAKES, tmp_path, monkeypatch)
    wrong = {int(line.partition(":")[0]) for line in lines if " error: " in line}
    assert wrong == set(range(8, 14)), "\n".join(lines)


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "maskc" / "py.typed").is_file()
