"""Entmax on a Hopper against fp64: out and gradients as softmax's are judged, lse to 2e-6."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support.exact_attention import DEVICE, called, tensors
from tests.support.exact_entmax import check_mask
from tests.support.hopper import nan_memory


def check(mask, n_q, n_kv, *rest, **options):
    """Both passes against fp64, and the same bits of the forward pass again."""
    with nan_memory():
        found, again = (check_mask(mask, n_q, n_kv, *rest, **options) for _ in range(2))
    assert torch.equal(found["out"], again["out"])


CAUSAL = mc.causal()
MASKS = {
    "full": mc.full(),
    "window": CAUSAL & mc.window(300),
    "sinks and window": CAUSAL & (mc.sinks(5) | mc.window(100)),
    "empty rows": CAUSAL - mc.prefix(70),
    "long rows": CAUSAL | mc.global_tokens([700]),
    "dilated": mc.dilated(40, stride=5),
    "per head": mc.per_head([CAUSAL, mc.window(9), mc.full(), CAUSAL]),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check(MASKS[name], 1000, 1000)


@pytest.mark.parametrize("alpha", [1.001, 1.25, 2.0])
def test_rows_without_keys(alpha):
    check(MASKS["empty rows"], 1000, 1000, alpha=alpha)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 500), (64, 64), (193, 129), (130, 700)], ids=str)
def test_lengths(lengths):
    check(mc.full(), *lengths)
    check(CAUSAL, *lengths)


@pytest.mark.parametrize("alpha", [1.0001, 1.001, 1.05, 1.25, 1.5, 1.75, 2.0])
@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0, 4.0])
def test_alphas(alpha, spread):
    """Scores that are alike, where all keys have a weight, and scores far apart."""
    check(CAUSAL, 900, 900, alpha=alpha, spread=spread, dtype=torch.float16)


@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_head_dimensions(dim, dtype):
    check(CAUSAL, 600, 700, dim, dtype=dtype)


def test_options():
    slopes = torch.rand(4, device=DEVICE)
    check(CAUSAL, 500, 500, scale=-0.2)
    check(CAUSAL, 500, 500, softcap=3.0, alibi_slopes=slopes)


def test_the_same_bits_in_deterministic_mode():
    attn = (CAUSAL & mc.window(700)).compile(head_dim=64, n_heads=4, target="sm_90a")
    given = tensors(3000, 3000, 64, torch.bfloat16)
    options = {"deterministic": True, "normalizer": "entmax"}
    once = called(attn, *given, **options)
    for _ in range(20):
        again = called(attn, *given, **options)
        assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_poisoned_key_reaches_only_who_sees_it(value):
    attn = CAUSAL.compile(head_dim=64, target="sm_90a")
    q, k, v, _ = tensors(500, 500, 64, torch.bfloat16)
    before = attn(q, k, v, normalizer="entmax")
    k[0, 1, 300, 3] = value
    after, lse = attn(q, k, v, normalizer="entmax", return_lse=True)
    blind = torch.ones_like(lse, dtype=torch.bool)
    blind[0, 2:, 300:] = False
    assert torch.equal(before[blind], after[blind])
    if value != value:
        assert after[~blind].isnan().all()
        assert lse[~blind].isnan().all()
