"""The backward pass of sm_80 against fp64, in the emulator: both modes, every form of tile."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core.errors import TargetNotBuilt
from maskc.testing.emulator import machine
from tests.support.exact_attention import called, live_pairs, results, tensors, vectors, wrong
from tests.support.hopper import nan_memory
from tests.support.thorough import alternating, more

CAUSAL = mc.causal()
BAND = mc.window(90, 40)
SPARSE = CAUSAL & (mc.strided(7) | mc.window(20)) - mc.global_tokens([60]).rows
HEADS = mc.per_head([CAUSAL, mc.window(9), mc.full() - mc.prefix(80), mc.sinks(2)])


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    with nan_memory():
        yield machine.install(monkeypatch)


def before_nan(x):
    """The tensor, in memory that has a row of NaN behind the last one of each head."""
    rows = torch.full((*x.shape[:2], x.shape[2] + 1, x.shape[3]), torch.nan, dtype=x.dtype)
    rows[:, :, :-1] = x
    return rows[:, :, :-1]


def check(mask, n_q, n_kv, dim=64, dtype=torch.bfloat16, heads=2, kv_heads=1, batch=1, **options):
    made = tensors(n_q, n_kv, dim, dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    made = tuple(map(before_nan, made))
    attn = mask.compile(head_dim=dim, n_heads=heads, dtype=dtype, target="sm_80")
    live = live_pairs(mask, n_q, n_kv, heads=heads)
    asked = {name: x for name, x in options.items() if name != "deterministic"}
    sides = [results(*made, live, kind, **asked) for kind in (torch.float64, dtype)]
    computed = called(attn, *made, **options)
    assert not wrong(computed, *sides)
    return attn, made, computed


@pytest.mark.parametrize(
    ("dim", "deterministic"),
    alternating([32, more(64), 96, 128, more(192), more(256), 288], [False, True]),
)
def test_head_dimensions(dim, deterministic):
    check(BAND, 150, 130, dim, torch.float16, deterministic=deterministic)


@pytest.mark.parametrize("deterministic", [more(False), True])
def test_masks_of_heads_and_shared_keys(deterministic):
    check(HEADS, 150, 150, heads=4, kv_heads=2, batch=2, deterministic=deterministic)
    check(SPARSE, 130, 200, heads=4, kv_heads=2, deterministic=deterministic)


@pytest.mark.parametrize(("dim", "deterministic"), alternating([64, more(256)], [False, True]))
def test_features(dim, deterministic):
    both = vectors(["sink_logits", "alibi_slopes"], 2)
    check(BAND, 140, 140, dim, deterministic=deterministic, softcap=3.0, **both)
    check(BAND, 140, 140, dim, deterministic=deterministic, scale=-0.2)
    check(BAND, 140, 140, dim, deterministic=deterministic, **vectors(["alibi_slopes"], 2))


def test_the_same_bits_in_any_order(emulated):
    _, _, first = check(mc.full(), 140, 200, heads=4, deterministic=True)
    for seed in (1000, 2000):
        emulated.seed = seed
        _, _, again = check(mc.full(), 140, 200, heads=4, deterministic=True)
        assert all(torch.equal(again[name], x) for name, x in first.items())


def test_documents_and_flags():
    """Data give every sequence lists of its own."""
    mask = CAUSAL & mc.documents("doc") & mc.flags("pad")
    doc = torch.sort(torch.randint(0, 5, (2, 150)), dim=1).values.int()
    pad = torch.rand(2, 150) > 0.2
    data = {"doc": doc, "pad": pad}
    made = tensors(150, 150, 64, torch.bfloat16, batch=2, heads=2, kv_heads=1)
    attn = mask.compile(head_dim=64, n_heads=2, dtype=torch.bfloat16, target="sm_80")
    live = torch.stack([
        torch.as_tensor(mask.dense(150, doc=doc[i].numpy(), pad=pad[i].numpy())) for i in range(2)
    ])[:, None]  # fmt: skip
    sides = [results(*made, live, kind) for kind in (torch.float64, torch.bfloat16)]
    for deterministic in (False, True):
        computed = called(attn, *made, deterministic=deterministic, **data)
        assert not wrong(computed, *sides)


def test_masked_values_that_are_no_numbers_are_refused():
    made = tensors(64, 64, 64, torch.bfloat16, batch=1, heads=1, kv_heads=1)
    attn = CAUSAL.compile(head_dim=64, target="sm_80")
    out, lse = attn(*made[:3], return_lse=True, nan_safe=True)
    with pytest.raises(TargetNotBuilt, match="masked values of a tile by zero"):
        attn.backward(*made[:3], out, lse, made[3], nan_safe=True)
