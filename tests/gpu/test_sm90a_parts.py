"""Masks in parts over residue classes on a Hopper: both passes against fp64."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support.exact_attention import live_pairs, tensors, vectors
from tests.support.hopper import check, compiled, half, replayed_alike
from tests.support.residues import run_in_classes

SLASHES = mc.causal() & (mc.window(40) | mc.where(lambda q, k: (q - k) % 16 == 0))
MASKS = {
    "dilated": mc.dilated(60, stride=4),
    "both sides": mc.dilated(9, 14, stride=3) | mc.window(1),
    "slashes": SLASHES,
    "exponential": mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4),
}
SIZES = [(512, 512), (513, 513), (387, 387), (130, 131), (300, 555), (555, 300), (70, 70)]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Whatever can run in parts does."""
    run_in_classes(monkeypatch)


def aligned(name, n_q, n_kv):
    """Distances of slashes are multiples of the stride at some lengths only."""
    return name != "slashes" or (n_kv - n_q) % 16 == 0


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", MASKS)
def test_both_passes(name, dim):
    attn = compiled(MASKS[name], dim)
    for n_q, n_kv in SIZES:
        if not aligned(name, n_q, n_kv):
            continue
        given = tensors(n_q, n_kv, dim, half("bfloat16"), n_q)
        check(attn, given, live_pairs(MASKS[name], n_q, n_kv))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MASKS)
def test_features(name, dtype):
    attn = compiled(MASKS[name], 64, dtype)
    given = tensors(277, 277, 64, half(dtype), 1)
    live = live_pairs(MASKS[name], 277, 277)
    both = vectors(("alibi_slopes", "sink_logits"), 4)
    slopes, sinks = both["alibi_slopes"], both["sink_logits"]
    check(attn, given, live, alibi_slopes=slopes, deterministic=True)
    check(attn, given, live, sink_logits=sinks)
    check(attn, given, live, softcap=2.0, scale=-0.3)
    check(attn, given, live, alibi_slopes=slopes, sink_logits=sinks, softcap=3.0)


@pytest.mark.parametrize("name", MASKS)
def test_tokens_before_heads(name):
    """Sequences whose heads are not equally far apart are launched one by one."""
    attn = compiled(MASKS[name], 128)
    given = tensors(260, 260, 128, half("bfloat16"), 5, batch=3)
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    check(attn, swapped, live_pairs(MASKS[name], 260, 260))


def test_a_graph():
    attn = compiled(MASKS["exponential"], 64)
    q, k, v, _ = tensors(640, 640, 64, half("bfloat16"), 3, batch=1)
    replayed_alike(attn, q, k, v)


def test_every_token_of_a_long_sequence():
    """Views of far tokens: nothing outside a class is touched, and none is missed."""
    mask = mc.dilated(300, stride=4)
    attn = compiled(mask, 128)
    q, k, v, dout = tensors(32771, 32771, 128, half("bfloat16"), 4, batch=1, heads=1, kv_heads=1)
    out, lse = attn(q, k, v, return_lse=True)
    gradients = attn.backward(q, k, v, out, lse, dout)
    for first in range(4):
        own = [x[:, :, first::4].contiguous() for x in (q, k, v, dout, out)]
        inner = compiled(mc.window(300), 128)
        want, lse_want = inner(*own[:3], return_lse=True)
        assert torch.equal(out[:, :, first::4], want)
        assert torch.equal(lse[:, :, first::4], lse_want)
        again = inner.backward(*own[:3], want, lse_want, own[3], deterministic=True)
        for x, y in zip(gradients, again, strict=True):
            far = (x[:, :, first::4].float() - y.float()).abs().max()
            assert far <= 2**-7 * y.float().abs().max()
