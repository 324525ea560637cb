"""Keys and values of one sequence for the queries of many, and the order of `out` in memory."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import BadShape
from maskc.reference.attention import attention, gradients

N, DIM = 9, 16
MASK = mc.causal() & mc.window(5)


def arrays(batch: int = 3, shared=("k", "v")):
    rng = np.random.default_rng(2)
    of = {name: 1 if name in shared else batch for name in "kv"}
    q, dout = (rng.standard_normal((batch, 4, N, DIM)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((of[name], 2, N, DIM)).astype(np.float32) for name in "kv")
    return q, k, v, dout


def whole(x, batch: int = 3):
    return np.broadcast_to(x, (batch, *x.shape[1:]))


# ------------------------------------------------------------------ one sequence of keys


@pytest.mark.parametrize("shared", ["kv", "k", "v"])
def test_both_passes(shared):
    q, k, v, dout = arrays(shared=shared)
    attn = MASK.compile(DIM, dtype="float32", target="cpu")
    out, lse = attn(q, k, v, return_lse=True)
    want, want_lse = attention(q, whole(k), whole(v), MASK.dense(N))
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    results = attn.backward(q, k, v, out, lse, dout)
    exact = gradients(q, whole(k), whole(v), MASK.dense(N), dout)
    for name, x, gradient in zip("qkv", (q, k, v), results, strict=True):
        right = exact[f"d{name}"]
        right = right.sum(0, keepdims=True) if x.shape[0] == 1 else right
        assert gradient.shape == x.shape
        np.testing.assert_allclose(gradient, right, atol=1e-5)


CASES = {
    "lse": (MASK, {"return_lse": True}),
    "documents": (mc.documents("doc"), {"doc": torch.arange(3 * N).reshape(3, N) // 4}),
    "topk": (mc.topk(2, of=mc.causal()), {}),
    "a bias": (MASK, {"score": mc.scores.bias(), "bias": torch.randn(3, 4, N, N)}),
    "sinks": (MASK, {"sink_logits": torch.rand(4)}),
    "alpha by head": (MASK, {"normalizer": "entmax", "alpha": torch.tensor([1.5, 1.5, 2, 1])}),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_on_torch_tensors(name):
    mask, options = CASES[name]
    inputs = [torch.from_numpy(x).requires_grad_() for x in arrays()[:3]]
    q, k, v = inputs
    out = mc.attention(q, k, v, mask, **options)
    want = mc.attention(q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1), mask, **options)
    torch.testing.assert_close(out, want)
    losses = (
        sum(x.square().sum() for x in (results if isinstance(results, tuple) else (results,)))
        for results in (out, want)
    )
    found, wanted = (torch.autograd.grad(loss, inputs) for loss in losses)
    for gradient, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-5)


def test_on_the_meta_device_and_as_an_operator():
    q, k, v = (torch.from_numpy(x) for x in arrays()[:3])
    meta = mc.attention(q.to("meta"), k.to("meta"), v.to("meta"), MASK)
    assert meta.shape == q.shape

    class Watched(torch.Tensor):
        pass

    out = mc.attention(*(x.as_subclass(Watched) for x in (q, k, v)), MASK)
    assert torch.equal(out.as_subclass(torch.Tensor), mc.attention(q, k, v, MASK))


def test_two_sequences_of_keys_for_three_are_refused():
    q, k, v, _ = arrays()
    with pytest.raises(BadShape, match="batch of q or 1"):
        mc.attention(q, k[[0, 0]], v[[0, 0]], MASK)


# ------------------------------------------------------------------ the order of out


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_out_is_stored_as_q_is(order, grad):
    back = (*(order.index(axis) for axis in range(3)), 3)
    sizes = (2, 4, N)
    made = [torch.randn(*(sizes[axis] for axis in order), DIM) for _ in range(3)]
    q, k, v = (x.permute(back).requires_grad_(grad) for x in made)
    out = mc.attention(q, k, v, MASK)
    assert out.stride() == q.stride()
    assert torch.equal(out, mc.attention(*(x.contiguous() for x in (q, k, v)), MASK))
    assert mc.attention(q, k, torch.cat([v, v], -1), MASK).permute(*order, 3).is_contiguous()
    arrays = [x.detach().numpy() for x in (q, k, v)]
    assert mc.attention(*arrays, MASK).strides == arrays[0].strides
    watched = torch.ops.maskc.attention.default if grad else None
    if watched is not None:
        for x, gradient in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
            assert gradient.stride() == x.stride()


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_operators_promise_the_same_order(order):
    from torch._subclasses.fake_tensor import FakeTensorMode

    back = (*(order.index(axis) for axis in range(3)), 3)
    made = torch.randn(*((2, 4, N)[axis] for axis in order), DIM)
    q = made.permute(back)
    out = mc.attention(q, q, q, MASK)
    with FakeTensorMode() as mode:
        x = mode.from_tensor(q)
        assert mc.attention(x, x, x, MASK).stride() == out.stride()
