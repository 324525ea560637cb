"""The record of a call: options among keywords, their defaults, and what signatures show of it."""

from __future__ import annotations

import gc
import inspect
import pickle
import weakref

import numpy as np
import pytest

import maskc as mc
from maskc.core.attention_call import DEFAULTS, WITH_LSE, AttentionCall, CallOptions
from maskc.core.data import CALL, RESERVED, SELECTING
from maskc.reference.dropout import factors
from maskc.runtime import CompiledMask

FIELDS = CallOptions._field_defaults
OTHERS = {
    "scale": 2.0, "return_lse": True, "softcap": 3.0, "alibi_slopes": "slopes",
    "sink_logits": "sinks", "normalizer": "entmax", "alpha": 1.25, "nan_safe": True,
    "deterministic": True, "dropout_p": 0.5, "dropout_seed": 7, "return_selection": True,
    "indexer_loss": True,
}  # fmt: skip
"""A value of each option that is not its default."""


def test_every_option_has_a_value_here():
    assert OTHERS.keys() == FIELDS.keys() == {*CALL, *SELECTING}
    assert FIELDS.keys() <= RESERVED
    assert all(OTHERS[name] != FIELDS[name] for name in FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_options_are_told_from_data(name: str):
    keywords = {"doc": [0, 1], name: OTHERS[name], "w": 4}
    options, data = CallOptions.read(keywords)
    assert options._asdict() == {**FIELDS, name: OTHERS[name]}
    assert data == {"doc": [0, 1], "w": 4}
    assert list(keywords) == ["doc", name, "w"], "the caller's dictionary stays"


def test_calls_without_options_share_a_record():
    assert CallOptions.read({"doc": 1})[0] is DEFAULTS
    assert CallOptions.read({"return_lse": True})[0] is WITH_LSE == CallOptions(return_lse=True)
    assert CallOptions.read({"return_lse": False})[0] == DEFAULTS


def test_copies_change_what_they_say_and_nothing_else():
    options = CallOptions(**OTHERS)
    heads = {"return_lse": True, "alibi_slopes": 1, "sink_logits": 2}
    assert options.with_heads(1, 2)._asdict() == {**OTHERS, **heads}
    undropped = {"dropout_p": 0.0, "dropout_seed": None}
    assert options.undropped()._asdict() == {**OTHERS, **undropped}
    assert DEFAULTS.with_heads(None, None) == WITH_LSE
    call = AttentionCall(*range(3), options, {"w": 1}, *range(5, 10))
    assert call.with_data({"w": 2})._asdict() == {**call._asdict(), "data": {"w": 2}}


@pytest.mark.parametrize("name", FIELDS)
def test_which_options_need_more_than_one_pass(name: str):
    more = {"dropout_p", "return_selection", "indexer_loss"}
    assert CallOptions(**{name: OTHERS[name]}).is_one_pass == (name not in more)


@pytest.mark.parametrize(
    ("alpha", "is_array"),
    [(1.5, False), (np.float32(1.5), False), (np.ones(2), True), (np.array(1.5), True)],
)
def test_an_array_of_alphas_is_no_number(alpha: object, is_array: bool):
    options = CallOptions(normalizer="entmax", alpha=alpha)
    assert options.alpha_by_head == is_array != options.is_one_pass


@pytest.mark.parametrize(
    "function", [mc.attention, CompiledMask.__call__, CompiledMask.backward, CompiledMask.launch]
)
def test_signatures_show_the_defaults_of_the_record(function: object):
    shown = inspect.signature(function).parameters
    named = {name: each.default for name, each in shown.items() if name in FIELDS}
    assert named == {name: FIELDS[name] for name in named}
    if function in (mc.attention, CompiledMask.__call__):
        assert named.keys() == FIELDS.keys()


# ------------------------------------------------------------------ one class


def kinds() -> dict[str, CompiledMask]:
    plain = mc.causal().compile(16, dtype="float32", target="cpu")
    scored = mc.causal().compile(16, dtype="float32", target="cpu", score=mc.scores.bias())
    return {
        "plain": plain,
        "scored": scored,
        "dropping": plain.dropping,
        "scored, dropping": scored.dropping,
        "float64": mc.causal().compile(16, dtype="float64", target="cpu"),
        "e4m3": mc.causal().compile(64, dtype="e4m3", target="sm_90a"),
    }


def test_every_mask_is_of_one_class_and_says_what_it_is():
    made = kinds()
    assert {type(attn) for attn in made.values()} == {CompiledMask}
    texts = {attn.identity for attn in made.values()}
    assert len(texts) == len(made)
    assert "float64" in repr(made["float64"])
    assert made["float64"].dropping is made["float64"]
    assert [name for name, attn in made.items() if attn.trainable == ("bias",)] == [
        "scored", "scored, dropping"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["scored", "dropping", "scored, dropping", "float64"])
def test_pickles_keep_what_a_mask_reads(name: str):
    attn = kinds()[name]
    again = pickle.loads(pickle.dumps(attn))
    assert again.identity == attn.identity
    assert again.trainable == attn.trainable
    assert type(again) is CompiledMask


def test_copies_with_other_inputs_are_made_once():
    attn = kinds()["scored"]
    other = mc.scores.bias("other").inputs
    copy = attn.holding(None, other)
    assert copy is attn.holding(None, other) is not attn
    assert copy.trainable == ("other",)
    assert attn.trainable == ("bias",)
    assert attn.holding(None, attn.inputs) is attn.holding(None) is attn


def test_copies_that_hold_arrays_are_not_kept_alive():
    table = np.ones((4, 4), np.float32)
    score = mc.score(lambda s, q, k: s + table[q % 4, k % 4])
    attn = mc.causal().compile(16, dtype="float32", target="cpu", score=score)
    again = mc.score(lambda s, q, k: s + table[q % 4, k % 4])
    copy = weakref.ref(attn.holding(None, again.inputs))
    gc.collect()
    assert copy() is None


def test_a_score_and_dropout_share_a_call():
    """Both blocks lie behind the arguments of a kernel, the formula's first."""
    attn = kinds()["scored"]
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, 2, 24, 16)).astype(np.float32)
    bias = np.random.default_rng(1).normal(size=(24, 24)).astype(np.float32)
    out = attn(q, k, v, bias=bias, dropout_p=0.5, dropout_seed=3)
    scores = q.astype(float) @ k.swapaxes(2, 3).astype(float) / 4 + bias
    scores = np.where(np.tri(24, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    weights *= factors(0.5, 3, 1, 2, 24, 24)
    np.testing.assert_allclose(out, weights @ v, atol=2e-5)
