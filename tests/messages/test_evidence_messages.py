"""The full text of every refusal of caches for decoding (MC640 to MC643), of the explorer (MC720
and MC721), of reports (MC750 and MC755), and of heatmaps of weights (MC751 to MC754)."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

from collections.abc import Callable

import islpy as isl
import numpy as np
import pytest

import maskc as mc
from maskc.analysis import retention
from maskc.core.errors import MaskcError
from maskc.core.errors.evidence import BadEvaluation, BadNotes, ExplorerPort, ExplorerTooLarge

ONES = np.ones((2, 4, 3))
UNBOUNDED = "    hint: keep some first keys and a window, for example mc.causal() & (mc.sinks(4) | mc.window(1023)), or keep all keys"
CASES: dict[str, tuple[Callable[[], object], str]] = {
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
        "    hint: give q [n_q, D], [heads, n_q, D] or [sequences, heads, n_q, D], and k alike "
        "with a number of heads that divides that of q; without both, q and k are synthetic",
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
}
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
}
"""Errors that test_explorer.py and test_report.py raise."""


def text_of(wrong: Callable[[], object]) -> str:
    with pytest.raises(MaskcError) as caught:
        wrong()
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str):
    wrong, text = CASES[name]
    assert text_of(wrong) == text


@pytest.mark.parametrize("error", SHOWN, ids=lambda error: error.code)
def test_shown(error: MaskcError):
    assert str(error) == SHOWN[error]


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
