"""Attention in E4M3 on a card, against fp64, as accurate as docs/kernels.md says."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support import cases
from tests.support.fp8 import check, exact, tensors

DEVICE = "cuda"
E4M3 = "float8_e4m3fn"
BITS = 2**-7
"""Share of the sum of all terms' sizes that tensor cores lose: they add 1024 products with 14
bits."""
CAUSAL = mc.causal()
MASKS = cases.masks(cases.FP8, cases.CARD)


@pytest.fixture(autouse=True)
def hopper():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("E4M3 has kernels for Hopper alone")


def compiled(mask, dim):
    return mask.compile(dim, dtype=E4M3, target="sm_90a")


def live_of(mask, *n, **data):
    return torch.tensor(mask.dense(*n, **data), device=DEVICE)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, dim):
    n = (700, 1100) if dim == 128 else (900, 900)
    check(compiled(MASKS[name], dim), *n, dim, live_of(MASKS[name], *n), bits=BITS)


@pytest.mark.parametrize("features", [
    {"softcap": 5.0}, {"alibi_slopes": 4}, {"sink_logits": 4}, {"scale": -0.1},
], ids=lambda x: " ".join(x))  # fmt: skip
def test_features(features):
    given = {k: torch.rand(4, device=DEVICE) if x == 4 else x for k, x in features.items()}
    check(compiled(CAUSAL, 128), 700, 1100, 128, live_of(CAUSAL, 700, 1100), bits=BITS, **given)


def test_documents_of_a_batch():
    mask, n = CAUSAL & mc.documents("doc"), 1000
    doc = torch.stack([torch.arange(n) // 333, torch.arange(n) // 90]).int()
    live = live_of(mask, n, n, doc=doc.numpy())[:, None]
    check(compiled(mask, 128), n, n, 128, live, bits=BITS, data={"doc": doc.to(DEVICE)})


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_long_rows_lose_no_more_than_short_ones(dim):
    """Values that are alike: every product that is added drops bits in the same direction."""
    q, k = (torch.randn(1, 1, n, dim, device=DEVICE) for n in (128, 60_000))
    v = torch.ones_like(k)
    out = compiled(mc.full(), dim)(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)))
    assert (out - 1).abs().max() < BITS + 2**-8
    made = tensors(100, 30_000, dim, batch=1, heads=2, kv_heads=2, device=DEVICE)
    live = torch.ones(100, 30_000, dtype=torch.bool, device=DEVICE)
    check(compiled(mc.full(), dim), 100, 30_000, dim, live, bits=BITS, made=made)


def test_calls():
    """mc.attention, tensors [B, N, H, D], and a CUDA graph."""
    (q, k, v), factors = tensors(300, 300, 128, device=DEVICE)
    out = mc.attention(q, k, v, CAUSAL, **factors)
    right, _, bound, _ = exact(q, k, v, live_of(CAUSAL, 300, 300), factors)
    assert ((out - right).abs() <= bound + BITS * right.abs().amax()).all()
    moved = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    again = mc.attention(*moved, CAUSAL, layout="bshd", **factors)
    assert torch.equal(again.transpose(1, 2), out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = mc.attention(q, k, v, CAUSAL, **factors)
    graph.replay()
    assert torch.equal(replayed, out)
