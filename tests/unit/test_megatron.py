"""Core attention of Megatron's layers, called as Megatron-Core 0.14 calls it, against PyTorch."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

import pytest

import maskc as mc
from maskc.core.errors import MaskcError

torch = pytest.importorskip("torch")
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

from maskc.integrations.megatron import DotProductAttention  # noqa: E402


class AttnMaskType(Enum):  # as Megatron's
    padding, causal, no_mask, padding_causal, arbitrary = range(1, 6)


def layer(kind=AttnMaskType.causal, cls=DotProductAttention, **config):
    layer_config = SimpleNamespace(
        **{"attention_dropout": 0.1, "context_parallel_size": 1, **config}
    )
    return cls(layer_config, 1, kind, "self", softmax_scale=0.3, cp_comm_type=None).eval()


def drawn(*shape):
    return (torch.randn(*shape, heads, 16, requires_grad=True) for heads in (4, 2, 2))


def exact(q, k, v, keep):
    """[n_q, B, H * D] of [n, B, H, D]."""
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    out = sdpa(q, k, v, keep, scale=0.3, enable_gqa=True).nan_to_num()
    return out.permute(2, 0, 1, 3).flatten(2)


def same(got, want, tensors):
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    seed = torch.randn_like(want)
    for x, y in zip(*(torch.autograd.grad(o, tensors, seed) for o in (got, want)), strict=True):
        torch.testing.assert_close(x, y.nan_to_num(), atol=1e-4, rtol=1e-4)


def test_types_of_masks():
    tensors = q, k, v = tuple(drawn(40, 2))
    place = torch.arange(40)
    causal = place[:, None] >= place
    hidden = torch.rand(2, 1, 40, 40) < 0.4
    for kind, keep in (
        (AttnMaskType.causal, causal), (AttnMaskType.no_mask, causal | True),
        (AttnMaskType.arbitrary, ~hidden),
    ):  # fmt: skip
        got = layer(kind)(q, k, v, hidden, attn_mask_type=None)
        assert got.shape == (40, 2, 64)
        same(got, exact(q, k, v, keep), tensors)
    windowed = type("Windowed", (DotProductAttention,), {"mask": mc.window(5)})
    near = causal & (place[:, None] - place <= 5)
    same(layer(cls=windowed)(q, k, v, None), exact(q, k, v, near), tensors)


@pytest.mark.parametrize("padded", [False, True])
def test_packed_sequences(padded):
    ends = torch.tensor([0, 7, 8, 30], dtype=torch.int32)
    stored = torch.tensor([0, 8, 16, 40], dtype=torch.int32) if padded else None
    tokens = 44 if padded else 30  # some belong to nobody
    tensors = q, k, v = tuple(drawn(tokens))
    keep = torch.zeros(tokens, tokens, dtype=torch.bool)
    for number in range(3):
        first = int((stored if padded else ends)[number])
        own = slice(first, first + int(ends[number + 1] - ends[number]))
        n = own.stop - own.start
        keep[own, own] = torch.ones(n, n, dtype=torch.bool).tril()
    params = SimpleNamespace(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, cu_seqlens_q_padded=stored,
        cu_seqlens_kv_padded=stored,
    )  # fmt: skip
    got = layer(AttnMaskType.padding_causal)(q, k, v, None, packed_seq_params=params)
    want = exact(*(x[:, None] for x in tensors), keep)[:, 0]
    assert got.shape == (tokens, 64)
    same(got, want, tensors)
    other = SimpleNamespace(cu_seqlens_q=ends, cu_seqlens_kv=ends.clone())
    with pytest.raises(MaskcError, match="cu_seqlens_kv must be the tensor of queries"):
        layer()(q, k, v, None, packed_seq_params=other)


def test_what_is_refused():
    q, k, v = drawn(4, 1)
    with pytest.raises(MaskcError, match="context_parallel_size must be 1"):
        layer(context_parallel_size=2)
    with pytest.raises(MaskcError, match="attention_bias must be None"):
        layer()(q, k, v, None, attention_bias=q)
    with pytest.raises(MaskcError, match="attn_mask_type must be causal or"):
        layer()(q, k, v, None, attn_mask_type="other")
