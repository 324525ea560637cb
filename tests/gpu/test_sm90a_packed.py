"""Few queries and many heads for each key/value head, on a Hopper: both are rows of one tile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from tests.support.exact_attention import DEVICE, called, live_pairs, tensors, vectors
from tests.support.hopper import check, compiled, half, modes

MASKS = {
    "causal": mc.causal(),
    "sinks and a window": mc.causal() & (mc.sinks(5) | mc.window(300)),
    "dilated": mc.dilated(60, stride=4),
    "blocks": mc.where(lambda q, k: (k // 64 + q) % 3 != 1),
    "pairs": mc.causal() & mc.strided(7, 2),
    "nothing for some": mc.where(lambda q, k: (q % 2 == 0) & (k % 5 > 1)),
}
SHAPES = [
    (1, 1, 2),
    (1, 700, 8),
    (1, 9000, 3),
    (5, 333, 4),
    (16, 5000, 4),
    (16, 16, 8),
    (1, 64, 64),
]


def packed(attn) -> bool:
    return any(mode == "pack_gqa" for _, mode in modes(attn))


@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("name", MASKS)
def test_packed(name, dim):
    attn = compiled(MASKS[name], dim)
    for n_q, n_kv, group in SHAPES:
        made = tensors(n_q, n_kv, dim, torch.bfloat16, heads=2 * group, kv_heads=2)
        check(attn, made, live_pairs(MASKS[name], n_q, n_kv))
    assert packed(attn)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("n_kv", [300, 9000])
def test_features(dtype, n_kv):
    attn = compiled(mc.causal(), 128, dtype=dtype)
    made = tensors(4, n_kv, 128, half(dtype), heads=12, kv_heads=2)
    live = live_pairs(mc.causal(), 4, n_kv)
    sinks = vectors(["sink_logits"], 12)
    check(attn, made, live, **sinks)
    check(attn, made, live, softcap=5.0, **sinks)
    check(attn, made, live, scale=-0.2)
    assert packed(attn)


def test_every_sequence_has_a_table_of_its_own():
    mask = mc.block_table("t", 64)
    attn = compiled(mask, 128)
    table = np.random.default_rng(0).random((2, 1, 1, 40)) < 0.4
    table[0] = False
    made = tensors(3, 2500, 128, torch.bfloat16, heads=8, kv_heads=2)
    live = torch.from_numpy(table.repeat(64, -1)[..., :2500]).to(DEVICE).expand(2, 1, 3, 2500)
    check(attn, made, live, data={"t": table})
    assert packed(attn)


def test_tokens_before_heads():
    """One query of every head, stored token by token."""
    attn = compiled(mc.causal(), 128)
    q, k, v, dout = tensors(1, 600, 128, torch.bfloat16, heads=8, kv_heads=2)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    check(attn, (q, k, v, dout), live_pairs(mc.causal(), 1, 600))
    assert packed(attn)


def test_batch_changes_no_bits():
    attn = compiled(mc.causal(), 128)
    q, k, v, _ = tensors(2, 7000, 128, torch.bfloat16, batch=3, heads=16, kv_heads=4)
    whole = called(attn, q, k, v)
    alone = called(attn, q[1:2], k[1:2], v[1:2])
    assert all(torch.equal(whole[name][1:2], x) for name, x in alone.items())
