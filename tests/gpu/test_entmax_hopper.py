"""Entmax on a Hopper against fp64: out within the rounding of its dtype, lse to 2e-6."""

from __future__ import annotations

import pytest

import maskc as mc

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.support.exact_attention import DEVICE, distances, live_pairs, tensors  # noqa: E402
from tests.support.hopper import HOPPER, freed, nan_memory  # noqa: E402, F401

if not HOPPER:
    pytest.skip("no Hopper GPU", allow_module_level=True)

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


def exact(q, k, v, live, alpha, scale=None, softcap=None, alibi_slopes=None):
    """(out, lse) by bisection in fp64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    s = q.double() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if alibi_slopes is not None:
        s = s - alibi_slopes.double()[:, None, None] * distances(q, k)
    a = alpha - 1
    s = s.masked_fill(~live, -torch.inf)
    low = s.amax(-1, keepdim=True)
    empty = low == -torch.inf
    low = low.masked_fill(empty, 0)
    high = low + (1 - live.sum(-1, keepdim=True).clamp(min=1).double() ** -a) / a
    for _ in range(60):
        middle = (low + high) / 2
        more = (1 + a * (s - middle)).clamp(min=0).pow(1 / a).sum(-1, keepdim=True) >= 1
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    weights = (1 + a * (s - low)).clamp(min=0).pow(1 / a)
    return weights @ v, low.masked_fill(empty, -torch.inf).squeeze(-1)


def check(mask, n_q, n_kv, dim=64, alpha=1.5, dtype=torch.bfloat16, spread=1.0, **options):
    q, k, v, _ = tensors(n_q, n_kv, dim, dtype)
    q = q * spread
    attn = mask.compile(head_dim=dim, n_heads=4, dtype=dtype, target="sm_90a")
    call = {"normalizer": "entmax", "alpha": alpha, **options}
    with nan_memory():
        out, lse = attn(q, k, v, return_lse=True, **call)
    want, want_lse = exact(q, k, v, live_pairs(mask, n_q, n_kv, heads=4), alpha, **options)
    empty = want_lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty)
    assert not out[empty].any()
    error = (lse.double() - want_lse)[~empty].abs() / want_lse[~empty].abs().clamp(min=1)
    assert error.max() <= 2e-6
    assert (out.double() - want).abs().max() <= ROUNDING[dtype] * want.abs().max()
    assert torch.equal(attn(q, k, v, **call), out)


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
