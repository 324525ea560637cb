"""The full text of every refusal of caches for decoding (MC640 to MC643)."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

from collections.abc import Callable

import islpy as isl
import pytest

import maskc as mc
from maskc.analysis import retention
from maskc.core.errors import MaskcError

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
}


def text_of(wrong: Callable[[], object]) -> str:
    with pytest.raises(MaskcError) as caught:
        wrong()
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str):
    wrong, text = CASES[name]
    assert text_of(wrong) == text


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
