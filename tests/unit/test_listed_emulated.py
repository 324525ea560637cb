"""Hopper's kernels over packed rows of listed tokens, where no GPU is: against fp64, emulated."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc

torch = pytest.importorskip("torch")

from maskc.runtime import CompiledMask  # noqa: E402
from maskc.runtime.launch.listed import ListedRowsPlan  # noqa: E402
from tests.emulator import machine  # noqa: E402
from tests.support.exact_attention import called, live_pairs, tensors, vectors  # noqa: E402
from tests.support.hopper import TARGET, check, half  # noqa: E402

IDS = [3, 40, 41, 77, 90, 140, 190, 201]
MASKS = {
    "both": mc.window(8, 8) | mc.global_tokens(IDS),
    "columns": mc.causal() & (mc.window(8) | mc.global_tokens(IDS).columns),
    "rows": mc.window(8, 8) | mc.global_tokens(IDS).rows,
}


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    return machine.install(monkeypatch)


def given(n_q, n_kv, dim=64, dtype="bfloat16", seed=0, batch=1, heads=2, kv_heads=1):
    return tensors(n_q, n_kv, dim, half(dtype), seed, batch=batch, heads=heads, kv_heads=kv_heads)


def in_parts(mask, dim=64, dtype="bfloat16"):
    made = mask.compile(head_dim=dim, dtype=dtype, target=TARGET)
    return CompiledMask(made.bundle, TARGET, in_parts=True)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_both_passes(hopper, name, deterministic):
    mask, attn = MASKS[name], in_parts(MASKS[name])
    check(attn, given(210, 210, batch=2), live_pairs(mask, 210, 210), deterministic=deterministic)
    assert isinstance(attn._last[1], ListedRowsPlan)
    assert "move_rows" in {entry for entry, _ in hopper.launches}


@pytest.mark.parametrize("lengths", [(130, 210), (210, 130)], ids=str)
def test_lengths_that_differ(lengths):
    mask = MASKS["both"]
    check(in_parts(mask), given(*lengths), live_pairs(mask, *lengths))


def test_features():
    mask, both = MASKS["both"], vectors(["sink_logits"], 2)
    live = live_pairs(mask, 210, 210)
    check(in_parts(mask), given(210, 210), live, softcap=3.0, **both)


@pytest.mark.parametrize("dim", [96, 128, 256])
def test_head_dimensions(dim):
    mask = MASKS["columns"]
    check(in_parts(mask, dim, "float16"), given(150, 210, dim, "float16"),
          live_pairs(mask, 150, 210))  # fmt: skip


def test_flags_of_every_sequence():
    mask = mc.window(8, 8) | mc.flags("g") | mc.flags("g", on="q")
    flags = np.random.default_rng(0).random((2, 200)) < [[0.05], [0.1]]
    live = torch.tensor(np.stack([mask.dense(200, g=own) for own in flags]))
    check(in_parts(mask), given(200, 200, batch=2), live[:, None], {"g": torch.tensor(flags)})


def test_the_same_bits(hopper):
    attn, made = in_parts(MASKS["both"]), given(210, 210)
    first = called(attn, *made, deterministic=True)
    hopper.seed = 1000
    again = called(attn, *made, deterministic=True)
    assert all(torch.equal(again[name], x) for name, x in first.items())
