"""The record of a call: options among keywords, their defaults, and what signatures show of it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import maskc as mc
from maskc.core.attention_call import DEFAULTS, WITH_LSE, AttentionCall, CallOptions
from maskc.core.data import CALL, RESERVED, SELECTING
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
