"""A mask that is compiled without a dtype serves the dtype of each call."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import WrongDType
from tests.unit.test_runtime_arrays import Exporter

N, DIM = 20, 32
MASK = mc.causal() & mc.window(7)
DTYPES = ("float32", "float16", "bfloat16")


def qkv(dtype="float32", **options):
    torch.manual_seed(0)
    made = (torch.randn(1, 2, N, DIM).to(getattr(torch, dtype)) for _ in range(3))
    return [x.requires_grad_(**options) if options else x for x in made]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_way_to_call_it(dtype):
    attn, inputs = MASK.compile(DIM), qkv(dtype, requires_grad=True)
    plain = [x.detach() for x in inputs]
    want = mc.attention(*inputs, MASK)
    out = attn(*inputs)
    assert out.dtype == inputs[0].dtype
    assert torch.equal(out, want)
    assert torch.equal(attn.launch(*plain), want)
    found, wanted = (torch.autograd.grad(x.float().sum(), inputs) for x in (out, want))
    assert all(map(torch.equal, found, wanted))
    out, lse = attn(*plain, return_lse=True)
    by_hand = attn.backward(*plain, out, lse, torch.ones_like(out))
    for gradient, right in zip(by_hand, wanted, strict=True):
        assert torch.equal(gradient, right)


def test_numpy_arrays_and_arrays_of_others():
    attn, inputs = MASK.compile(DIM), qkv()
    arrays = [x.numpy() for x in inputs]
    want = mc.attention(*arrays, MASK)
    np.testing.assert_array_equal(attn(*arrays), want)
    np.testing.assert_array_equal(attn(*map(Exporter, inputs)), want)


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ({"score": mc.scores.bias()}, {"bias": torch.randn(N, N)}),
        ({}, {"dropout_p": 0.5, "dropout_seed": 4}),
        ({"score": mc.scores.bias()}, {"bias": torch.randn(N, N), "dropout_p": 0.5,
                                       "dropout_seed": 4}),
        ({}, {"normalizer": "entmax", "alpha": torch.tensor([1.5, 2.0])}),
        ({}, {"sink_logits": torch.rand(2), "softcap": 3.0}),
    ],
)  # fmt: skip
def test_every_kind_of_call(options, data):
    attn = MASK.compile(DIM, **options)
    fixed = MASK.compile(DIM, dtype="float32", **options)
    for dtype in ("bfloat16", "float32", "bfloat16", "float32"):
        inputs = qkv(dtype)
        out = attn(*inputs, **data)
        assert out.dtype == inputs[0].dtype
    assert torch.equal(out, fixed(*inputs, **data))


def test_captured_arrays_are_those_of_the_moment():
    table = torch.zeros(N, dtype=torch.bool)
    attn = (mc.causal() & mc.from_mask_mod(lambda b, h, q, k: table[k])).compile(DIM)
    for ones in (3, 9):
        table[:ones] = True
        want = mc.attention(*qkv(), mc.causal() & mc.prefix(ones))
        torch.testing.assert_close(attn(*qkv()), want)


def test_autocast_decides():
    attn, inputs = MASK.compile(DIM), qkv()
    with torch.autocast("cpu", torch.bfloat16):
        out = attn(*inputs)
    assert torch.equal(out, attn(*(x.bfloat16() for x in inputs)))


def test_a_compiled_graph():
    attn = MASK.compile(DIM)
    run = torch.compile(lambda q, k, v: attn(q, k, v) * 2, fullgraph=True, backend="eager")
    for dtype in ("float32", "bfloat16"):
        inputs = qkv(dtype)
        assert torch.equal(run(*inputs), attn(*inputs) * 2)


def test_copies_serve_any_dtype():
    attn, inputs = MASK.compile(DIM), qkv()
    for other in (pickle.loads(pickle.dumps(attn)), copy.deepcopy(attn)):
        assert torch.equal(other(*inputs), attn(*inputs))
    scored = MASK.compile(DIM, score=mc.scores.soft_cap(3.0))
    other = pickle.loads(pickle.dumps(scored))
    assert torch.equal(other(*inputs), scored(*inputs))


def test_a_dtype_is_fixed():
    attn, inputs = MASK.compile(DIM, dtype="bfloat16"), qkv()
    with pytest.raises(WrongDType, match="compiled for bfloat16"):
        attn(*inputs)
    assert "bfloat16" in repr(attn)
    assert "any dtype" in repr(MASK.compile(DIM))


def test_dtypes_without_kernels_are_refused():
    attn = MASK.compile(DIM)
    with pytest.raises(WrongDType, match="q is int32"):
        attn(*(x.int() for x in qkv()))
    q, k, v = qkv()
    with pytest.raises(WrongDType, match="k is bfloat16"):
        attn(q, k.bfloat16(), v)


def test_kernels_are_made_once():
    attn, inputs = MASK.compile(DIM), qkv()
    attn(*inputs)
    first = attn.serving(inputs[0])
    attn(*qkv("bfloat16"))
    assert attn.serving(inputs[0]) is first
    assert attn.serving(qkv("bfloat16")[0]) is attn
