"""Calls in float64 on a CPU: the reference in double precision, both passes, with one warning."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import DTypesDiffer, MaskcError, WrongDType
from maskc.double import ReferenceWarning

pytestmark = pytest.mark.filterwarnings("ignore::maskc.double.ReferenceWarning")
N, DIM = 5, 4
CAUSAL = mc.causal()


def doubles(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def qkv(heads=2, kv_heads=2, batch=1):
    return doubles((batch, heads, N, DIM), *[(batch, kv_heads, N, DIM)] * 2)


CALLS = {
    "plain": (CAUSAL, {}, ()),
    "with lse": (CAUSAL, {"return_lse": True}, ()),
    "sinks": (CAUSAL, {"return_lse": True}, ("sink_logits",)),
    "ALiBi": (CAUSAL, {"return_lse": True}, ("alibi_slopes",)),
    "soft-cap": (CAUSAL, {"softcap": 2.0, "scale": 0.7}, ()),
    "entmax": (CAUSAL, {"normalizer": "entmax", "alpha": 1.7}, ()),
    "dropout": (CAUSAL, {"dropout_p": 0.3, "dropout_seed": 5}, ()),
    "a bias": (CAUSAL, {"score": mc.scores.bias(), "return_lse": True}, ("bias",)),
    "documents": (mc.documents("doc"), {"doc": torch.tensor([0, 0, 1, 1, 1])}, ()),
    "chosen keys": (mc.topk(2, of=CAUSAL), {}, ()),
    "an empty row": (CAUSAL - mc.prefix(1), {}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_gradcheck(name):
    mask, options, learned = CALLS[name]
    inputs = [*qkv(), *doubles(*((2, N, N) if each == "bias" else (2,) for each in learned))]

    def call(q, k, v, *others):
        return mc.attention(q, k, v, mask, **options, **dict(zip(learned, others, strict=True)))

    assert torch.autograd.gradcheck(call, inputs)


def test_grouped_heads_and_keys_of_one_sequence():
    q, k, v = qkv(4, 2, 2)
    assert torch.autograd.gradcheck(
        lambda q, k, v: mc.attention(q, k[:1], v[:1], CAUSAL), (q, k, v)
    )


def test_digits_of_double_precision():
    q, k, v = qkv()
    out, lse = mc.attention(q, k, v, CAUSAL, return_lse=True)
    live = torch.ones(N, N).tril().bool()
    s = (q @ k.mT * DIM**-0.5).masked_fill(~live, -torch.inf)
    torch.testing.assert_close(out, s.softmax(-1) @ v, atol=1e-14, rtol=0)
    torch.testing.assert_close(lse, s.logsumexp(-1), atol=1e-14, rtol=0)
    merged, _ = mc.merge([out, torch.zeros_like(out)], [lse, torch.full_like(lse, -torch.inf)])
    torch.testing.assert_close(merged, out, atol=1e-14, rtol=0)


def test_every_way_to_call_it():
    q, k, v = inputs = qkv()
    want = mc.attention(*inputs, CAUSAL)
    fixed = CAUSAL.compile(DIM, dtype=torch.float64, target="cpu")
    for attn in (CAUSAL.compile(DIM), fixed, pickle.loads(pickle.dumps(fixed))):
        assert torch.equal(attn(*inputs), want)
        arrays = [x.detach().numpy() for x in inputs]
        out, lse = attn(*arrays, return_lse=True)
        np.testing.assert_array_equal(out, want.detach().numpy())
        gradients = attn.backward(*arrays, out, lse, np.ones_like(out))
        right = torch.autograd.grad(want.sum(), inputs, retain_graph=True)
        for gradient, wanted in zip(gradients, right, strict=True):
            np.testing.assert_allclose(gradient, wanted.numpy(), atol=1e-14)
    table = torch.nn.Parameter(torch.randn(2, N, N, dtype=torch.float64))
    flex = mc.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[h, i, j])
    torch.testing.assert_close(flex, (q @ k.mT / 2 + table).softmax(-1) @ v)
    (of_table,) = torch.autograd.grad(flex.sum(), table)
    assert of_table.dtype == torch.float64


def test_results_lie_as_q_does():
    q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in qkv())
    assert mc.attention(q, k, v, CAUSAL).stride() == q.stride()


def test_one_warning():
    inputs = doubles((1, 1, 3, 3), (1, 1, 3, 3), (1, 1, 3, 3))
    attn = mc.window(1).compile(3)
    with pytest.warns(ReferenceWarning, match="float64 runs by the reference") as caught:
        attn(*inputs)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attn(*inputs).sum().backward()


def test_dtypes_that_differ_are_refused():
    q, k, v = qkv()
    with pytest.raises(DTypesDiffer, match="q is float64, and k is float32"):
        mc.attention(q, k.float(), v, CAUSAL)
    with pytest.raises(WrongDType, match="q is float64, but this kernel was compiled for float32"):
        CAUSAL.compile(DIM, dtype="float32")(q, k, v)
    with pytest.raises(MaskcError, match="float64"):
        CAUSAL.compile(DIM, dtype="float64", target="sm_80")
