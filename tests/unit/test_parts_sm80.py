"""Masks in parts on sm_80, in the emulator: each launch joins its rows with those before."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.runtime.launch.sequence import PartedPlan
from maskc.testing.emulator import machine
from tests.support.exact_attention import called, live_pairs, results, tensors, vectors, wrong
from tests.support.hopper import nan_memory
from tests.support.residues import run_in_classes
from tests.support.thorough import alternating, chiefly, more

CAUSAL = mc.causal()
MASKS = {
    "bands": mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4),
    "strided": CAUSAL & (mc.window(40) | mc.where(lambda q, k: (q - k) % 16 == 0)),
    "tiles without keys in one part": CAUSAL & (mc.window(20) | mc.strided(100, 99)),
    "keys of residues": CAUSAL & (mc.window(20) | mc.strided(16, 15) | mc.strided(16, 14)),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    run_in_classes(monkeypatch)
    with nan_memory():
        yield machine.install(monkeypatch)


def check(mask, n_q, n_kv, dim=64, dtype=torch.bfloat16, deterministic=False, **options):
    made = tensors(n_q, n_kv, dim, dtype, batch=2, heads=4, kv_heads=2)
    attn = mask.compile(head_dim=dim, n_heads=4, dtype=dtype, target="sm_80")
    live = live_pairs(mask, n_q, n_kv)
    sides = [results(*made, live, kind, **options) for kind in (torch.float64, dtype)]
    assert not wrong(called(attn, *made, deterministic=deterministic, **options), *sides)
    return attn


@pytest.mark.parametrize(
    ("name", "n"), alternating(chiefly(list(MASKS), *list(MASKS)[1:]), [130, 201])
)
def test_parts(name, n):
    attn = check(MASKS[name], n, n, deterministic=n == 201)
    assert isinstance(attn._last[1], PartedPlan)


@pytest.mark.parametrize("dim", [32, more(128), more(256)])
def test_head_dimensions(dim):
    check(MASKS["bands"], 150, 150, dim, torch.float16)


def test_other_lengths_and_features():
    check(MASKS["keys of residues"], 130, 260, **vectors(["sink_logits"], 4))
    check(MASKS["bands"], 140, 140, softcap=3.0, scale=-0.3)
    check(MASKS["bands"], 140, 140, **vectors(["alibi_slopes", "sink_logits"], 4))


def test_values_that_are_no_numbers_stay_where_they_are_seen():
    mask, n = MASKS["strided"], 200
    q, k, v, _ = tensors(n, n, 64, torch.bfloat16, batch=1, heads=1, kv_heads=1)
    v[0, 0, 77] = torch.inf
    attn = mask.compile(head_dim=64, target="sm_80")
    out = attn(q, k, v, nan_safe=True)
    seen = live_pairs(mask, n, n)[0, :, 77]
    assert (out[0, 0, seen] == torch.inf).all()
    assert out[0, 0, ~seen].isfinite().all()
