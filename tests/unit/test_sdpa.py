"""`mc.scaled_dot_product_attention` is PyTorch's, judged by the same formula in fp64."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import (
    BadOption,
    BadShape,
    HeadsDoNotDivide,
    NestedTensor,
    NotAnArray,
    NotAnAttnMask,
)

F = torch.nn.functional


def expected(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """The formula of PyTorch's documentation, in fp64, with 0 for a query that sees nothing."""
    q, k, v = (x.double() for x in (q, k, v))
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    n_q, n_kv = q.shape[-2], k.shape[-2]
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    kept = torch.ones(n_q, n_kv, dtype=torch.bool)
    if is_causal:
        kept = kept.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        kept = kept & attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask.double()
        kept = kept & (scores > -math.inf)
    scores = torch.where(kept, scores, -math.inf)
    top = scores.amax(-1, keepdim=True)
    weights = torch.where(kept, torch.exp(scores - torch.where(top > -math.inf, top, 0.0)), 0.0)
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0) @ v


def drawn(*shape: int, seed: int = 0, grad: bool = True):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_(grad)


def matrix(kind: str, shape: tuple[int, ...]):
    """A mask in which one query sees nothing."""
    x = drawn(*shape, seed=7, grad=False)
    if kind == "bool":
        return x > -0.5
    if kind == "hiding":
        return torch.where(x > -0.5, x, -math.inf).requires_grad_()
    return x.requires_grad_()


def compare(q, k, v, attn_mask=None, **options) -> None:
    """Results and all gradients."""
    trained = [q, k, v]
    if attn_mask is not None and attn_mask.requires_grad:
        trained.append(attn_mask)
    out = mc.scaled_dot_product_attention(q, k, v, attn_mask, **options)
    want = expected(q, k, v, attn_mask, **options)
    assert out.shape == want.shape
    assert out.dtype == q.dtype
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
    dout = drawn(*out.shape, seed=9, grad=False)
    gradients = torch.autograd.grad(out, trained, dout)
    for gradient, its in zip(gradients, torch.autograd.grad(want, trained, dout), strict=True):
        torch.testing.assert_close(gradient, its, atol=1e-4, rtol=1e-4)


def test_the_signature_is_pytorchs() -> None:
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    parameters = inspect.signature(mc.scaled_dot_product_attention).parameters
    assert list(parameters) == names
    kinds = [str(p.kind) for p in parameters.values()]
    assert kinds == ["POSITIONAL_OR_KEYWORD"] * 6 + ["KEYWORD_ONLY"] * 2
    text = (F.scaled_dot_product_attention.__doc__ or "").split("->")[0]
    places = [text.index(f"{name}{'=' if i > 2 else ''}") for i, name in enumerate(names)]
    assert places == sorted(places)


SHAPES = {
    "plain": [(2, 4, 9, 16), (2, 4, 13, 16), (2, 4, 13, 24)],
    "no batch": [(4, 9, 16), (4, 13, 16), (4, 13, 16)],
    "no heads": [(9, 16), (13, 16), (13, 8)],
    "two in front": [(2, 3, 4, 9, 16), (2, 3, 4, 13, 16), (2, 3, 4, 13, 16)],
    "front broadcasts": [(2, 1, 4, 9, 16), (3, 4, 13, 16), (3, 4, 13, 16)],
    "one sequence of keys": [(2, 4, 9, 16), (1, 4, 13, 16), (1, 4, 13, 16)],
    "one head of keys": [(2, 4, 9, 16), (2, 1, 13, 16), (2, 1, 13, 16)],
    "one head of values": [(2, 4, 9, 16), (2, 4, 13, 16), (2, 1, 13, 16)],
    "one head of queries": [(2, 1, 9, 16), (2, 4, 13, 16), (2, 4, 13, 16)],
    "no queries": [(2, 4, 0, 16), (2, 4, 13, 16), (2, 4, 13, 16)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_dimensions_in_front_are_as_torch_takes_them(name: str) -> None:
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(SHAPES[name]))
    theirs = F.scaled_dot_product_attention(q, k, v)
    assert mc.scaled_dot_product_attention(q, k, v).shape == theirs.shape
    compare(q, k, v)
    compare(q, k, v, is_causal=True, scale=0.3)
    compare(q, k, v, matrix("bool", (SHAPES[name][0][-2], 13)))


@pytest.mark.parametrize("heads", [(8, 2, 2), (8, 4, 2), (8, 1, 4), (8, 8, 8)])
def test_groups_of_heads(heads) -> None:
    q, k, v = (
        drawn(2, count, n, 16, seed=i)
        for i, (count, n) in enumerate(zip(heads, (9, 13, 13), strict=True))
    )
    compare(q, k, v, enable_gqa=True)
    compare(q, k, v, matrix("bias", (8, 9, 13)), enable_gqa=True)
    compare(q[0], k[0], v[0], is_causal=True, enable_gqa=True)


MASKS = [
    (9, 13), (1, 13), (9, 1), (1, 1), (4, 9, 13), (1, 1, 1, 13), (2, 1, 1, 13), (2, 4, 9, 13),
    (1, 4, 1, 13), (2, 1, 9, 13),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["bool", "bias", "hiding"])
@pytest.mark.parametrize("shape", MASKS)
def test_masks_broadcast(kind: str, shape) -> None:
    q, k, v = drawn(2, 4, 9, 16), drawn(2, 4, 13, 16), drawn(2, 4, 13, 16, seed=1)
    compare(q, k, v, matrix(kind, shape))
    compare(q, k, v, matrix(kind, shape), is_causal=True)


@pytest.mark.parametrize("kind", ["bool", "bias"])
@pytest.mark.parametrize("shape", [(2, 1, 1, 9, 13), (3, 1, 1, 13), (3, 4, 9, 13), (9, 13)])
def test_masks_of_five_dimensions(kind: str, shape) -> None:
    q, k, v = (drawn(2, 3, 4, n, 16, seed=n) for n in (9, 13, 13))
    compare(q, k, v, matrix(kind, shape))


def test_numbers_over_keys_alone() -> None:
    q, k, v = drawn(2, 4, 9, 16), drawn(2, 4, 13, 16), drawn(2, 4, 13, 16, seed=1)
    compare(q, k, v, matrix("bias", (13,)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["bool", "bias"])
def test_half_precision(dtype, kind: str) -> None:
    q, k, v = (drawn(1, 2, n, 16, seed=n).to(dtype) for n in (9, 13, 13))
    for mask in (matrix(kind, (9, 13)), matrix("bias", (9, 13)).to(dtype)):
        out = mc.scaled_dot_product_attention(q, k, v, mask)
        assert out.dtype == dtype
        want = expected(q, k, v, mask)
        torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)


def test_a_mask_is_read_at_every_call() -> None:
    q, k, v = (drawn(1, 2, 9, 16, seed=i) for i in range(3))
    for mask in (matrix("bool", (9, 9)), matrix("bias", (9, 9)).detach(), matrix("bool", (1, 9))):
        compare(q, k, v, mask)
        mask[..., 3] = ~mask[..., 3] if mask.dtype == torch.bool else 5.0
        compare(q, k, v, mask)


def test_masks_share_kernels() -> None:
    from maskc import api

    q = drawn(1, 2, 9, 16)
    shapes = (9, 9), (2, 9, 9), (1, 2, 9, 9)
    mc.scaled_dot_product_attention(q, q, q, matrix("bool", shapes[0]))
    made = api._remembered.cache_info().misses
    for shape in shapes:
        mc.scaled_dot_product_attention(q, q, q, ~matrix("bool", shape))
    assert api._remembered.cache_info().misses == made


def test_torchs_causal_biases() -> None:
    bias = pytest.importorskip("torch.nn.attention.bias")
    q, k, v = (drawn(2, 4, n, 16, seed=n) for n in (9, 13, 13))
    for mask in (bias.causal_upper_left(9, 13), bias.causal_lower_right(9, 13)):
        want = F.scaled_dot_product_attention(q, k, v, mask)
        out = mc.scaled_dot_product_attention(q, k, v, mask)
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
    with pytest.raises(BadShape, match=r"attn_mask has shape \(9, 12\)"):
        mc.scaled_dot_product_attention(q, k, v, bias.causal_upper_left(9, 12))


def test_rows_whose_elements_lie_apart() -> None:
    q, k, v = (drawn(2, 4, 16, n, seed=n).mT for n in (9, 13, 13))
    compare(q, k, v, matrix("bool", (9, 13)))
    compare(q[..., ::2], k[..., ::2], v)
    arrays = [x.detach().numpy() for x in (q, k, v)]
    out = mc.scaled_dot_product_attention(*arrays)
    np.testing.assert_allclose(out, expected(q, k, v).detach(), atol=1e-5)


def test_numpy() -> None:
    q, k, v = (drawn(3, 4, n, 16, seed=n, grad=False) for n in (9, 13, 13))
    for mask in (None, matrix("bool", (9, 13)), matrix("bool", (3, 1, 1, 13)),
                 matrix("hiding", (4, 9, 13)).detach()):  # fmt: skip
        arrays = [None if x is None else x.numpy() for x in (q, k, v, mask)]
        out = mc.scaled_dot_product_attention(*arrays)
        assert isinstance(out, np.ndarray)
        np.testing.assert_allclose(out, expected(q, k, v, mask), atol=1e-5)


def test_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    q, k, v = (drawn(2, 4, 9, 16, seed=n, grad=False) for n in range(3))
    k, v = k[:1], v[:1]
    for mask in (None, matrix("bool", (9, 9)), matrix("bias", (9, 9)).detach()):
        arrays = [None if x is None else jnp.asarray(x.numpy()) for x in (q, k, v, mask)]
        out = mc.scaled_dot_product_attention(*arrays)
        assert isinstance(out, jnp.ndarray)
        np.testing.assert_allclose(out, expected(q, k, v, mask), atol=1e-5)


# ------------------------------------------------------------------ torch


def test_dropout_takes_its_seed_from_torch() -> None:
    q, k, v = (drawn(2, 2, 9, 16, seed=i, grad=False) for i in range(3))
    for mask in (None, matrix("bool", (9, 9)), matrix("bias", (9, 9)).detach()):
        results = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(mc.scaled_dot_product_attention(q, k, v, mask, 0.5))
        assert torch.equal(results[0], results[1])
        assert not torch.equal(results[0], results[2])
        many = [mc.scaled_dot_product_attention(q, k, v, mask, 0.5) for _ in range(400)]
        mean, want = torch.stack(many).mean(0), expected(q, k, v, mask)
        torch.testing.assert_close(mean.double(), want, atol=0.35, rtol=0)
    assert not mc.scaled_dot_product_attention(q, k, v, None, 1.0).any()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "keys", "bias", "causal"])
def test_inside_of_torch_compile(kind: str, dynamic: bool) -> None:
    torch._dynamo.reset()

    def attend(q, k, v, mask):
        return 2 * mc.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for n_q, n_kv in ((9, 13), (20, 30)):
        q, k, v = (drawn(2, 2, n, 16, seed=n) for n in (n_q, n_kv, n_kv))
        shape = (2, 1, 1, n_kv) if kind == "keys" else (n_q, n_kv)
        mask = None
        if kind not in ("none", "causal"):
            mask = matrix("bias" if kind == "bias" else "bool", shape)
        out, want = compiled(q, k, v, mask), attend(q, k, v, mask)
        torch.testing.assert_close(out, want)
        trained = [q, k, v, mask] if kind == "bias" else [q, k, v]
        gradients = torch.autograd.grad(out.sum(), trained)
        for gradient, its in zip(gradients, torch.autograd.grad(want.sum(), trained), strict=True):
            torch.testing.assert_close(gradient, its, atol=1e-5, rtol=1e-5)


def test_under_autocast() -> None:
    q, k, v = (drawn(1, 2, n, 16, seed=n) for n in (9, 13, 13))
    with torch.autocast("cpu", torch.bfloat16):
        out = mc.scaled_dot_product_attention(q, k, v, matrix("bool", (9, 13)))
    assert out.dtype == torch.bfloat16
    want = expected(q, k, v, matrix("bool", (9, 13)))
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)


def test_a_layer_of_torch_runs_with_it(monkeypatch) -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).train()
    x, padding = drawn(2, 9, 32), torch.arange(9) >= torch.tensor([[9], [6]])
    want = layer(x, src_key_padding_mask=padding)
    monkeypatch.setattr(F, "scaled_dot_product_attention", mc.scaled_dot_product_attention)
    torch.testing.assert_close(layer(x, src_key_padding_mask=padding), want, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------ what is refused


def test_what_is_refused() -> None:
    q, k, v = drawn(2, 4, 9, 16), drawn(2, 4, 13, 16), drawn(2, 4, 13, 16)
    call = mc.scaled_dot_product_attention
    with pytest.raises(BadOption, match="True, because query has 4 heads, key 2 and value 2"):
        call(q, k[:, :2], v[:, :2])
    with pytest.raises(HeadsDoNotDivide):
        call(q, k[:, :3], v[:, :3], enable_gqa=True)
    with pytest.raises(BadShape, match=r"key has shape \(3, 4, 13, 16\)"):
        call(q, drawn(3, 4, 13, 16), v)
    with pytest.raises(BadShape, match=r"query has shape \(16,\)"):
        call(q[0, 0, 0], k, v)
    for shape in ((9, 12), (3, 9, 13), (1, 2, 4, 9, 13)):
        with pytest.raises(BadShape, match=r"one that broadcasts to \[2, 4, 9, 13\]"):
            call(q, k, v, matrix("bool", shape))
    for wrong, hint in (
        (matrix("bool", (9, 13)).int(), "attn_mask != 0"),
        (mc.causal(), "mc.attention(query, key, value, mask)"),
        ([[True]], "pass an array"),
        ("causal", "pass an array"),
        (lambda b, h, q, k: q >= k, "mc.from_mask_mod(f)"),
    ):
        with pytest.raises(NotAnAttnMask) as caught:
            call(q, k, v, wrong)
        assert hint in str(caught.value)
    for wrong in (None, [[1.0]]):
        with pytest.raises(NotAnArray, match="query is "):
            call(wrong, k, v)
    nested = torch.nested.nested_tensor([torch.randn(3, 16)], layout=torch.jagged)
    with pytest.raises(NestedTensor):
        call(nested, nested, nested)
