"""A combinator takes three files: two are added to a copy of the package, as CONTRIBUTING says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

NODES = '''
@dataclass(frozen=True, repr=False)
class BlockCausal(Combinator):
    """k // size <= p // size."""

    size: int
    align: str = END

    @property
    def keeps(self) -> Expr:
        p = position(self.align)
        return E.le(E.floordiv(E.K, self.size), E.floordiv(p, self.size))


@dataclass(frozen=True, repr=False)
class HeadWindows(Combinator):
    """p - widths[h] <= k <= p."""

    widths: tuple[int, ...]

    @property
    def own_heads(self) -> int:
        return len(self.widths)

    @property
    def keeps(self) -> Expr:
        p = position(END)
        of_heads = (
            E.conj(E.eq(E.H, E.const(head)), E.ge(E.K, E.sub(p, E.const(width))))
            for head, width in enumerate(self.widths)
        )
        return E.conj(E.le(E.K, p), E.disj(*of_heads))


'''
FUNCTIONS = '''

def block_causal(size: int, *, align: str = END) -> Mask:
    """Keep k // size <= p // size."""
    at = caller()
    size = checked.constant("block_causal", "size", size, at)
    return nodes.BlockCausal(size, checked.align("block_causal", align, at), loc=at)


def head_windows(widths: Iterable[int]) -> Mask:
    """Keep p - widths[h] <= k <= p."""
    at = caller()
    return nodes.HeadWindows(tuple(widths), loc=at)
'''
MEANING = """        case N.BlockCausal(size):
            pairs = k // size <= p // size
        case N.HeadWindows(widths):
            pairs = (p - widths[at.head] <= k) & (k <= p)
"""
LISTED = "    | BlockDiagonal | Heads | Where\n"
EDITS = {
    "dsl/nodes.py": [
        ("\n\nPlaced = Causal", f"{NODES}Placed = Causal"),
        (LISTED, LISTED.replace("Where", "Where | BlockCausal | HeadWindows")),
    ],
    "dsl/combinators.py": [
        (
            '"block_diagonal", "causal"',
            '"block_causal", "head_windows", "block_diagonal", "causal"',
        ),
        ("\n\ndef full()", f"{FUNCTIONS}\n\ndef full()"),
    ],
    "reference/pairs.py": [
        ("        case N.Heads(ids):\n", f"{MEANING}        case N.Heads(ids):\n")
    ],
}

QUESTIONS = """
import pickle
import numpy as np
import maskc as mc
from maskc.ir.lower import computes_with_head, differs_by_head
from maskc.dsl.nodes import fixed_heads

def same_everywhere(mask, wanted, text, heads=1):
    assert str(mask) == text and mc.parse(text).equals(mask) and str(mc.parse(text)) == text, text
    assert pickle.loads(pickle.dumps(mask)) == mask
    dense = mask.dense(20, 33)
    assert (dense == wanted).all()
    assert mask.count(20, 33) == wanted.sum()
    q, k, v = (np.random.default_rng(i).standard_normal((1, heads, n, 16)).astype("float32")
               for i, n in enumerate((20, 33, 33)))
    out, _ = mc.attention(q, k, v, mask=mask, return_lse=True)
    scores = np.where(wanted, np.einsum("bhqd,bhkd->bhqk", q, k, dtype=np.float64) / 4, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert np.abs(out - weights @ v.astype(np.float64)).max() < 1e-5

p, k = np.arange(20)[:, None] + 13, np.arange(33)[None]
blocks = mc.block_causal(4)
same_everywhere(blocks, k // 4 <= p // 4, "block_causal(4)")
assert str(mc.block_causal(3, align="start")) == 'block_causal(3, align="start")'
assert not differs_by_head(blocks)
try:
    mc.block_causal(0)
except mc.MaskcError as error:
    assert error.code == "MC102"
else:
    raise SystemExit("size 0 is taken")

heads = mc.head_windows([2, 9, 0])
wanted = np.stack([(p - width <= k) & (k <= p) for width in (2, 9, 0)])
same_everywhere(heads, wanted, "head_windows([2, 9, 0])", heads=3)
assert differs_by_head(heads) and not computes_with_head(heads) and fixed_heads(heads) == 3
assert heads.count(20, 33, n_heads=3) == wanted.sum()
assert not heads.equals(mc.head_windows([2, 9, 1]))
print("right")
"""
ASKED = """
import maskc as mc
for ask in ("dense(8)", "count(8)", "layout(8, block=(4, 4), head=0)", "equals(mc.causal())"):
    try:
        answer = eval(f"mask.{ask}")
    except (TypeError, mc.MaskcError) as error:
        answer = str(error).splitlines()[0]
    print(ask.split("(")[0], answer, sep=": ")
"""
BLOCKS = f"import maskc as mc\nmask = mc.block_causal(4)\n{ASKED}"
HEADS = f"import maskc as mc\nmask = mc.head_windows([2, 9, 0])\n{ASKED}"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that holds the package with both combinators."""
    hidden = shutil.ignore_patterns("__pycache__", "lab", "distributed", "integrations")
    shutil.copytree(ROOT / "maskc", tmp_path / "maskc", ignore=hidden)
    for folder in ("templates", "patterns"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for name, edits in EDITS.items():
        path = tmp_path / "maskc" / name
        text = path.read_text()
        for old, new in edits:
            assert text.count(old) == 1, f"{name} has no place for {new}"
            text = text.replace(old, new)
        path.write_text(text)
    return tmp_path


def answer(package: Path, program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", program],
        env=environment, cwd=package, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_combinator_takes_three_files(package: Path) -> None:
    """The text, the parser, counts, kernels and head-dependence follow from name and formula."""
    assert len(EDITS) == 3
    assert answer(package, QUESTIONS) == "right"


def forget(package: Path, file: str, text: str, instead: str = "") -> None:
    path = package / "maskc" / file
    assert text in path.read_text()
    path.write_text(path.read_text().replace(text, instead))


def test_a_forgotten_meaning_is_said(package: Path) -> None:
    forget(package, "reference/pairs.py", MEANING)
    assert answer(package, BLOCKS).splitlines()[0] == "dense: no case for BlockCausal"


def test_a_class_that_no_union_lists_is_said(package: Path) -> None:
    forget(package, "dsl/nodes.py", " | BlockCausal | HeadWindows")
    said = "maskc.dsl.nodes.AnyNode does not list HeadWindows"
    answers = dict(line.split(": ", 1) for line in answer(package, HEADS).splitlines())
    assert answers == dict.fromkeys(("dense", "count", "layout", "equals"), said)


def test_a_forgotten_number_of_heads_is_said(package: Path) -> None:
    """The formula reads the head, so the mask is never taken for one that all heads share."""
    start = NODES.index("    @property\n    def own_heads")
    forget(package, "dsl/nodes.py", NODES[start : NODES.index("    @property\n", start + 1)])
    answers = dict(line.split(": ", 1) for line in answer(package, HEADS).splitlines())
    assert answers["dense"].startswith("MC114")
    assert answers["count"].startswith("MC114")
    assert not answers["layout"].startswith("MC")
    assert answers["equals"] == "False"


def test_a_function_that_is_not_exported_is_missing(package: Path) -> None:
    forget(package, "dsl/combinators.py", '"block_causal", "head_windows", ')
    asked = "import maskc as mc\ntry: mc.parse('head_windows([2, 9, 0])')\n"
    assert "MC115" in answer(package, f"{asked}except mc.MaskcError as error: print(error)")
