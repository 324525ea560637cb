"""Inner attention of torchtitan, called as its GQAttention calls it, against PyTorch, and the order
of tokens for its context parallelism. With torchtitan installed, its own classes are used."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import maskc as mc
from maskc.core.errors import MaskcError
from tests.support import engine_stubs

VarlenMetadata = engine_stubs.classes(engine_stubs.torchtitan()).VarlenMetadata
B, L = 2, 20
ENDS = torch.tensor([0, 7, 20, 23, 40], dtype=torch.int32)
"""Documents of both rows one after another."""


@pytest.fixture(scope="module")
def module():
    stubs = engine_stubs.torchtitan()
    with engine_stubs.installed(stubs, "maskc.integrations.torchtitan") as loaded:
        yield loaded


def exact(q, k, v, keep, scale):
    """out [B, L, N, H] and lse [B, L, N]."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    out = sdpa(q, k, v, keep, scale=scale, enable_gqa=True)
    scores = q @ k.repeat_interleave(2, 1).mT * (scale or q.shape[-1] ** -0.5)
    lse = scores.masked_fill(~keep, -torch.inf).logsumexp(-1)
    return out.transpose(1, 2), lse.transpose(1, 2)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [(-1, 0), (4, 0), (-1, -1)])
@pytest.mark.parametrize("mask", [None, mc.strided(3)])
def test_documents_windows_and_masks(module, packed, window, mask):
    layer = module.InnerAttention.Config(window_size=window, mask=mask).build()
    tensors = q, k, v = [torch.randn(B, L, heads, 16, requires_grad=True) for heads in (4, 2, 2)]
    metadata = VarlenMetadata(ENDS, ENDS, 17, 17) if packed else None
    place = torch.arange(L)
    away = place[:, None] - place
    keep = torch.ones(B, 1, L, L, dtype=torch.bool)
    if window[1] == 0:
        keep = keep & (away >= 0)
    if window[0] > 0:
        keep = keep & (away <= window[0])
    if mask is not None:
        keep = keep & (packed_place(packed)[:, None, None] % 3 == 0)
    if packed:
        document = torch.searchsorted(ENDS[1:], torch.arange(B * L), right=True).view(B, 1, L)
        keep = keep & (document[..., None] == document[..., None, :])
    seen = keep.any(-1).transpose(1, 2)[..., None].expand(B, L, 4, 1)
    options = {"attention_masks": metadata, "scale": 0.3, "enable_gqa": True}
    out = layer(q, k, v, **options)
    want, lse = exact(q, k, v, keep, 0.3)
    want = torch.where(seen, want, 0)
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
    seed = torch.randn_like(out)
    for got, wanted in zip(
        torch.autograd.grad(out, tensors, seed), torch.autograd.grad(want, tensors, seed.double()),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(got, wanted.nan_to_num(), atol=1e-4, rtol=1e-4)
    pair = layer(q, k, v, **options, out_transform=lambda *x: x)
    torch.testing.assert_close(pair[0], out)
    torch.testing.assert_close(pair[1].double(), lse, atol=1e-5, rtol=1e-5)


def packed_place(packed):
    """The positions [B, L] by which a mask counts: rows one after another if packed."""
    places = torch.arange(B * L).view(B, L)
    return places if packed else places % L


def test_what_is_refused(module):
    layer = module.InnerAttention.Config().build()
    x = torch.zeros(1, 4, 2, 16)
    for options, why in (
        ({"attention_masks": {}}, "attention_masks of type dict"),
        ({"attention_masks": VarlenMetadata(ENDS, ENDS.clone(), 4, 4)}, "other documents of keys"),
        ({"score_mod": max}, r"the arguments \['score_mod'\]"),
    ):
        with pytest.raises(MaskcError, match=f"MC665.*{why}"):
            layer(x, x, x, **options)


@pytest.mark.skipif(engine_stubs.INSTALLED["torchtitan"], reason="has the class")
def test_older_versions():
    stubs = {"torchtitan.models.common.attention": {}}
    with (
        pytest.raises(MaskcError, match=r"MC613.*needs torchtitan 0\.3 or later"),
        engine_stubs.installed(stubs, "maskc.integrations.torchtitan"),
    ):
        pass


def test_the_order_of_tokens_for_context_parallelism():
    """Zigzag: rank r has chunk r from the front and chunk r from the back."""
    ranks, n = 4, 1024
    plan = mc.distributed.plan(mc.causal(), n, ranks, layout="zigzag")
    balancer = mc.distributed.load_balancer(plan)
    chunks = torch.arange(n).view(2 * ranks, -1)
    order = torch.cat([x for r in range(ranks) for x in (chunks[r], chunks[2 * ranks - 1 - r])])
    assert torch.equal(balancer.generate_permutation(), order[None])
    back = balancer.generate_permutation(restore=True)
    assert torch.equal(order[back[0]], torch.arange(n))
