"""Scattered global tokens on a Hopper: both passes over packed copies of their rows, and whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import DataRange
from maskc.runtime import CompiledMask
from maskc.runtime.launch.listed import ListedRowsPlan
from tests.support.exact_attention import DEVICE, called, live_pairs, tensors, vectors
from tests.support.hopper import TARGET, check, half, in_parts, no_waiting, same_bits

IDS = sorted(np.random.default_rng(0).choice(1500, 40, replace=False).tolist())
MASKS = {
    "both": mc.window(30, 30) | mc.global_tokens(IDS),
    "columns": mc.causal() & (mc.window(50) | mc.global_tokens(IDS).columns),
    "rows": mc.window(30, 30) | mc.global_tokens(IDS).rows,
}
SIZES = [(1024, 1024), (1500, 1111), (700, 1500), (65, 129), (1, 300)]


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", MASKS)
def test_both_passes(name, dim):
    attn = in_parts(MASKS[name], dim)
    for n_q, n_kv in SIZES:
        given = tensors(n_q, n_kv, dim, half("bfloat16"), n_q)
        check(attn, given, live_pairs(MASKS[name], n_q, n_kv))
        assert isinstance(attn._last[1], ListedRowsPlan)
        check(attn, given, live_pairs(MASKS[name], n_q, n_kv), deterministic=True)


@pytest.mark.parametrize("lengths", [(900, 1000), (1024, 1024), (1000, 600)], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", MASKS)
def test_features(name, dim, lengths):
    """Distances are between the tokens of a list and others."""
    attn, live = in_parts(MASKS[name], dim), live_pairs(MASKS[name], *lengths)
    made = tensors(*lengths, dim, half("bfloat16"))
    heads = made[0].shape[1]
    check(attn, made, live, **vectors(["alibi_slopes"], heads))
    assert isinstance(attn._last[1], ListedRowsPlan)
    check(attn, made, live, softcap=3.0, deterministic=True,
          **vectors(["sink_logits", "alibi_slopes"], heads))  # fmt: skip


def test_whole_and_in_parts_agree():
    """At lengths where the tiles decide."""
    mask, made = MASKS["both"], tensors(8192, 8192, 64, half("bfloat16"))
    attn = mask.compile(head_dim=64, target=TARGET)
    whole = CompiledMask(attn.bundle, TARGET, in_parts=False)
    one, other = called(attn, *made), called(whole, *made)
    assert isinstance(attn._last[1], ListedRowsPlan)
    for name, x in one.items():
        torch.testing.assert_close(x.float(), other[name].float(), atol=3e-2, rtol=3e-2)


def test_the_same_bits_on_every_run():
    attn, made = in_parts(MASKS["both"]), tensors(1024, 1024, 64, half("bfloat16"))
    same_bits(attn, made, 20, deterministic=True)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
def test_flags_that_stay_on_the_device(dtype, shared):
    mask, n = mc.window(30, 30) | mc.global_tokens("g", at_most=64), 5000
    flags = np.random.default_rng(0).random((2, n)) < 0.01
    flags = flags[:1].repeat(2, 0) if shared else flags
    attn, made = in_parts(mask), tensors(n, n, 64, half("bfloat16"), batch=2)
    live = torch.tensor(np.stack([mask.dense(n, g=flag) for flag in flags]), device=DEVICE)[:, None]
    given = torch.tensor(flags[0] if shared else flags, device=DEVICE).to(dtype)
    check(attn, made, live, {"g": given})
    check(attn, made, live, {"g": given}, **vectors(["alibi_slopes"], made[0].shape[1]))
    with no_waiting():
        attn(*made[:3], g=given)


def test_flags_that_change_between_replays():
    mask, n = mc.window(30, 30) | mc.global_tokens("g", at_most=64), 2000
    attn, (q, k, v, _) = in_parts(mask), tensors(n, n, 64, half("bfloat16"))
    draws = [torch.rand(n, device=DEVICE) < 0.01 for _ in range(3)]
    flags = draws[0].clone()
    attn(q, k, v, g=flags)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attn(q, k, v, g=flags)
    for draw in draws:
        flags.copy_(draw)
        graph.replay()
        assert torch.equal(out, attn(q, k, v, g=draw))


def test_more_flags_than_promised():
    mask = mc.causal() & (mc.window(8) | mc.flags("g", at_most=3))
    attn, (q, k, v, _) = in_parts(mask), tensors(700, 700, 64, half("bfloat16"))
    few, many = (torch.arange(700, device=DEVICE) < count for count in (3, 4))
    assert not attn(q, k, v, g=few).isnan().any()
    assert attn(q, k, v, g=many).isnan().all()
    with pytest.raises(DataRange, match="more tokens were flagged than promised"):
        attn(q, k, v, g=few)
    assert not attn(q, k, v, g=few).isnan().any()
