"""Attention in E4M3 where nothing is compiled for it, and the helper that rounds to it."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core import errors
from maskc.core.dtypes import DType
from maskc.integrations.torch.fp8 import to_e4m3
from tests.support.fp8 import exact, tensors

CAUSAL = mc.causal()
LIVE = torch.tensor(CAUSAL.dense(40, 60))


@pytest.mark.parametrize("dim", [5, 64])
def test_on_the_cpu_numbers_are_multiplied_out(dim):
    (q, k, v), factors = tensors(40, 60, dim)
    sinks = torch.randn(4)
    out, lse = mc.attention(q, k, v, CAUSAL, return_lse=True, sink_logits=sinks, **factors)
    right, level, *_ = exact(q, k, v, LIVE, factors, sink_logits=sinks)
    assert out.dtype == torch.bfloat16
    assert ((out - right).abs() <= 2**-8 * right.abs() + 1e-5).all()
    assert ((lse - level).abs() < 1e-5).all()
    again = mc.attention(*(x.transpose(1, 2) for x in (q, k, v)), CAUSAL, layout="bshd",
                         sink_logits=sinks, **factors)  # fmt: skip
    assert torch.equal(again.transpose(1, 2), out)


def test_numbers_for_factors():
    (q, k, v), _ = tensors(40, 60, 64)
    out = mc.attention(q, k, v, CAUSAL, q_descale=0.5, k_descale=torch.tensor(2.0), v_descale=0.25)
    plain = mc.attention(q.float(), k.float(), v.float() / 4, CAUSAL)
    assert torch.equal(out, plain.to(torch.bfloat16))


def test_rounding_fills_the_range():
    x = torch.randn(2, 6, 50, 16) * torch.logspace(-3, 3, 6)[:, None, None]
    x[1, 2:4] = 0.0
    small, factors = to_e4m3(x)
    assert (small.dtype, factors.shape) == (torch.float8_e4m3fn, (2, 6))
    most = small.float().abs().amax((2, 3))
    assert (most[x.abs().amax((2, 3)) > 0] == 448).all()
    off = (small.float() * factors[..., None, None] - x).abs()
    assert (off <= 2**-4 * x.abs() + 2**-10 * factors[..., None, None]).all()
    _, shared = to_e4m3(x, 3)
    assert torch.equal(shared, factors.unflatten(1, (3, 2)).amax(2))


@pytest.mark.parametrize("heads", [0, 4])
def test_heads_that_do_not_divide(heads):
    with pytest.raises(errors.BadShape):
        to_e4m3(torch.randn(1, 6, 5, 16), heads)


def test_a_dtype_of_its_own():
    kind = DType.parse(torch.float8_e4m3fn)
    assert (kind.itemsize, kind.short, kind.of_out) == (1, "e4m3", DType.bfloat16)
    assert DType.parse("e4m3") is kind
    assert DType.float16.of_out is DType.float16


def test_gradients_of_numbers_multiplied_out_are_refused():
    (q, k, v), _ = tensors(40, 60, 64)
    with pytest.raises(errors.TargetNotBuilt, match="requires grad"):
        mc.attention(q, k, v.requires_grad_(), CAUSAL)
