"""Hopper's kernels over packed rows of listed tokens, where no GPU is: against fp64, emulated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import DataRange
from maskc.runtime.launch.listed import ListedRowsPlan
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import called, live_pairs, vectors
from tests.support.hopper import check, given, in_parts, same_bits
from tests.support.thorough import alternating, more

IDS = [0, 40, 41, 77, 90, 140, 190, 201]
MASKS = {
    "both": mc.window(8, 8) | mc.global_tokens(IDS),
    "columns": mc.causal() & (mc.window(8) | mc.global_tokens(IDS).columns),
    "rows": mc.window(8, 8) | mc.global_tokens(IDS).rows,
}


@pytest.mark.parametrize(
    ("name", "deterministic"), alternating([more("both"), "columns", more("rows")], [False, True])
)
def test_both_passes(hopper, name, deterministic):
    mask, attn = MASKS[name], in_parts(MASKS[name])
    check(attn, given(210, 210, batch=2), live_pairs(mask, 210, 210), deterministic=deterministic)
    assert isinstance(attn._last[1], ListedRowsPlan)
    assert "move_rows" in {entry for entry, _ in hopper.launches}


@pytest.mark.parametrize("lengths", [(130, 210), (210, 130)], ids=str)
def test_lengths_that_differ(lengths):
    mask = MASKS["both"]
    check(in_parts(mask), given(*lengths), live_pairs(mask, *lengths))


@pytest.mark.parametrize("lengths", [(210, 210), more((130, 210)), more((210, 130))], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_features(name, lengths):
    """Distances are between the tokens of a list and others."""
    attn, both = in_parts(MASKS[name]), vectors(["sink_logits", "alibi_slopes"], 2)
    live = live_pairs(MASKS[name], *lengths)
    check(attn, given(*lengths), live, softcap=3.0, **both)
    assert isinstance(attn._last[1], ListedRowsPlan)


def test_every_so_manieth_key():
    """Distances of packed columns."""
    mask = mc.causal() & (mc.window(8) | mc.strided(16))
    attn = in_parts(mask)
    for lengths in ((210, 210), (130, 210)):
        check(attn, given(*lengths), live_pairs(mask, *lengths), softcap=3.0,
              **vectors(["alibi_slopes"], 2))  # fmt: skip
    assert any(source.startswith("part1") for source, _, _ in attn.all_reports)


@pytest.mark.parametrize("dim", [more(96), more(128), 256])
def test_head_dimensions(dim):
    mask = MASKS["columns"]
    check(in_parts(mask, dim, "float16"), given(150, 210, dim, "float16"),
          live_pairs(mask, 150, 210))  # fmt: skip


def test_flags_of_every_sequence():
    mask = mc.window(8, 8) | mc.flags("g") | mc.flags("g", on="q")
    flags = np.random.default_rng(0).random((2, 200)) < [[0.05], [0.1]]
    live = torch.tensor(np.stack([mask.dense(200, g=flag) for flag in flags]))
    check(in_parts(mask), given(200, 200, batch=2), live[:, None], {"g": torch.tensor(flags)})


def test_the_same_bits(hopper):
    attn, made = in_parts(MASKS["both"]), given(210, 210)
    same_bits(attn, made, 1, hopper, deterministic=True)


@pytest.mark.parametrize("deterministic", [more(False), True])
def test_flags_that_stay_on_the_device(hopper, deterministic):
    """Sequences with flags of their own, and one list for all of them."""
    mask = mc.window(8, 8) | mc.global_tokens("g", at_most=40)
    attn = in_parts(mask)
    flags = np.random.default_rng(0).random((2, 200)) < [[0.05], [0.1]]
    live = torch.tensor(np.stack([mask.dense(200, g=own) for own in flags]))
    made = given(200, 200, batch=2)
    check(attn, made, live[:, None], {"g": torch.tensor(flags)}, deterministic=deterministic)
    own = torch.tensor(flags[0]).to(torch.int64)
    check(attn, made, live[0], {"g": own}, deterministic=deterministic,
          **vectors(["alibi_slopes"], 2))  # fmt: skip
    assert "list_tokens" in {entry for entry, _ in hopper.launches}


def test_flags_of_columns_and_lengths_that_differ(hopper):
    mask = mc.causal() & (mc.window(8) | mc.flags("g", at_most=300))
    attn = in_parts(mask)
    for n_q, n_kv in ((130, 210), (210, 130)):
        flags = np.random.default_rng(0).random(n_kv) < 0.2
        check(attn, given(n_q, n_kv), live_pairs(mask, n_q, n_kv, {"g": flags}),
              {"g": torch.tensor(flags)})  # fmt: skip
    assert "list_tokens" in {entry for entry, _ in hopper.launches}


def test_more_flags_than_promised():
    mask = mc.causal() & (mc.window(8) | mc.flags("g", at_most=3))
    attn, (q, k, v, _) = in_parts(mask), given(130, 130)
    assert not called(attn, q, k, v, data={"g": torch.arange(130) < 3})["out"].isnan().any()
    assert called(attn, q, k, v, data={"g": torch.arange(130) < 4})["out"].isnan().all()
    with pytest.raises(DataRange, match="more tokens were flagged than promised"):
        attn(q, k, v, g=torch.arange(130) < 3)
    assert not attn(q, k, v, g=torch.arange(130) < 3).isnan().any()
