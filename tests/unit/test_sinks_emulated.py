"""Sinks that weigh nothing, -inf, and rows without a key: every form of every target."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import maskc as mc
from maskc.reference.attention import attention, gradients
from maskc.runtime import CompiledMask
from maskc.testing.emulator import machine
from tests.support import gathered
from tests.support.exact_attention import called, exact_and_rough, live_pairs, tensors, wrong
from tests.support.hopper import WAYS, check, compiled, modes
from tests.support.residues import run_in_classes
from tests.support.thorough import chiefly, more

NONE = -torch.inf
SINKS = torch.tensor([NONE, 0.5, NONE, NONE])
BLIND = mc.causal() & (mc.window(30) | mc.sinks(2)) & mc.where(lambda q, k: q % 3 > 0)
"""Every third query has no key, in tiles that are live."""


@pytest.fixture
def hopper(monkeypatch):
    return machine.install(monkeypatch)


def given(n_q, n_kv, dim=64, batch=1, heads=4, kv_heads=2):
    return tensors(n_q, n_kv, dim, torch.bfloat16, 3, batch=batch, heads=heads, kv_heads=kv_heads)


def judged(attn, made, live, **features):
    """`check`, and what empty rows must be, said once more."""
    computed = check(attn, made, live, sink_logits=SINKS, **features)
    empty = (~live).all(-1).expand(SINKS.shape[0], -1) & (SINKS == NONE)[:, None]
    assert empty.any()
    assert (computed["lse"][:, empty] == NONE).all()
    assert (computed["out"][:, empty] == 0).all()
    assert (computed["dq"][:, empty] == 0).all()
    assert (computed["dsink_logits"][SINKS == NONE] == 0).all()
    return computed


@pytest.mark.parametrize("mode", chiefly(WAYS, "persistent", "small default"))
def test_forms(hopper, mode):
    attn = compiled(BLIND, 64, heads=4, mode=mode)
    judged(attn, given(140, 200), live_pairs(BLIND, 140, 200))


@pytest.mark.parametrize("deterministic", [more(False), True])
def test_rows_in_parts(hopper, deterministic):
    attn = compiled(BLIND, 64, heads=4, mode="large", row_tiles=1, most_tiles=1)
    judged(attn, given(300, 300), live_pairs(BLIND, 300, 300), deterministic=deterministic)
    assert "attention_merge" in {entry for entry, _ in hopper.launches}


@pytest.mark.parametrize(
    "mask",
    [mc.block_diagonal(8) & mc.where(lambda q, k: q % 3 > 0), mc.window(20, 9) & BLIND],
    ids=["one tile a row", "several"],
)
def test_small_tiles(hopper, mask):
    attn = compiled(mask, 64, heads=4, mode="tiny")
    judged(attn, given(70, 70), live_pairs(mask, 70, 70))


def test_packed_heads(hopper):
    mask = mc.causal() & mc.where(lambda q, k: q % 3 > 0)
    attn = compiled(mask, 64, heads=4)
    judged(attn, given(4, 700, kv_heads=1), live_pairs(mask, 4, 700))
    assert "pack_gqa" in {mode for _, mode in modes(attn)}


def test_boxes_of_a_grid(hopper):
    mask = mc.where(
        lambda q, k: (q % 20 - k % 20 <= 3) & (k % 20 - q % 20 < 4) & (q // 20 > k // 20)
    )
    attn = compiled(mask, 64, heads=4, mode="grid")
    judged(attn, given(260, 260), live_pairs(mask, 260, 260))


def test_residue_classes(hopper, monkeypatch):
    run_in_classes(monkeypatch)
    mask = (mc.window(20) | mc.dilated(20, stride=4)) - mc.where(lambda q, k: q - k < 50)
    judged(compiled(mask, 64, heads=4), given(201, 201), live_pairs(mask, 201, 201))


def test_documents(hopper):
    mask = mc.documents("doc") & mc.where(lambda q, k: q < k)
    doc = torch.arange(300) // 70
    live = torch.tensor(mask.dense(300, doc=doc.numpy()))[None]
    attn = compiled(mask, 64, heads=4)
    judged(attn, given(300, 300), live, data={"doc": doc})


@pytest.mark.parametrize("target", ["sm_80", more("sm_90a")])
def test_single_keys(hopper, target):
    mask = mc.topk(20, mc.causal() & mc.where(lambda q, k: q % 3 > 0), score="given", share="group")
    scores = gathered.grid((1, 6, 40, 40))
    sinks = torch.tensor([NONE, 1.0, NONE, NONE, 0.0, NONE])
    gathered.check(mask, gathered.few(40, 40, heads=6, kv_heads=2), {"scores": scores},
                   target=target, sink_logits=sinks)  # fmt: skip


def test_sm80(hopper):
    attn = BLIND.compile(64, n_heads=4, target="sm_80")
    q, k, v, _ = made = given(140, 200)
    live = live_pairs(BLIND, 140, 200)
    sides = exact_and_rough(*made, live, backward=False, sink_logits=SINKS)
    assert not wrong(called(attn, q, k, v, sink_logits=SINKS), *sides)


@pytest.mark.filterwarnings("ignore::maskc.runtime.FallbackWarning")
@pytest.mark.parametrize("compiler", ["cc", "none"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_cpu(monkeypatch, tmp_path, compiler, in_parts):
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path))
    if compiler == "none":
        monkeypatch.setenv("CC", "/nowhere/cc")
    mask = (mc.window(20) | mc.dilated(20, stride=4)) & mc.where(lambda q, k: q % 3 > 0)
    attn = mask.compile(16, n_heads=4, dtype="float32", target="cpu")
    attn = CompiledMask(attn.bundle, "cpu", in_parts=in_parts)
    q, k, v, dout = (x.float().numpy() for x in given(90, 90, 16))
    keep, sinks = mask.dense(90), SINKS.numpy()
    out, lse = attn(q, k, v, return_lse=True, sink_logits=sinks)
    want, want_lse = attention(q, k, v, keep, sink_logits=sinks)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-5)
    assert np.isneginf(lse[:, [0, 2, 3], ::3]).all()
    wanted = gradients(q, k, v, keep, dout, sink_logits=sinks)
    computed = attn.backward(q, k, v, out, lse, dout, sink_logits=sinks)
    for x, y in zip(computed, wanted.values(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_merging_rows_without_a_key(kind):
    lses = [np.float32([-np.inf, -np.inf, 1]), np.float32([-np.inf, 2, -np.inf])]
    outs = [np.ones((1, 1, 3, 8), ml_dtypes.bfloat16) * x[:, None].clip(0, 1) for x in lses]
    if kind == "torch":
        made = [torch.tensor(x.astype(np.float32)).bfloat16() for x in outs]
        out, lse = mc.merge(made, [torch.tensor(x)[None, None] for x in lses])
    else:
        out, lse = mc.merge(outs, [x[None, None] for x in lses])
    assert np.asarray(lse.tolist()).tolist() == [[[-np.inf, 2, 1]]]
    assert np.asarray(out.tolist())[0, 0, :, 0].tolist() == [0, 1, 1]
