"""Which tensors of torch a call takes, for each of its arguments: views with the negative bit,
parameters, buffers, subclasses; and which derivatives it refuses instead of losing them.
"""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward

import maskc as mc
from maskc.core.errors import BadOption, ShardedTensor

N, DIM = 10, 16
CAUSAL = mc.causal()
CHOSEN = mc.topk(3, of=CAUSAL, score="given")


BIAS = mc.scores.bias()


def qkv(heads: int = 2):
    torch.manual_seed(0)
    return [torch.randn(1, heads, N, DIM) for _ in range(3)]


def with_bias(bias, q=None, k=None, v=None):
    q, k, v = (a if b is None else b for a, b in zip(qkv(), (q, k, v), strict=True))
    return mc.attention(q, k, v, CAUSAL, score=mc.scores.bias(), bias=bias)


def dense(bias):
    """Compute dense attention with this bias in torch."""
    q, k, v = qkv()
    s = q @ k.mT * DIM**-0.5 + bias
    return torch.softmax(s.masked_fill(~torch.ones(N, N).tril().bool(), -torch.inf), -1) @ v


ARGUMENTS = {
    "q": (lambda x: mc.attention(x, *qkv()[1:], CAUSAL), (1, 2, N, DIM)),
    "k": (lambda x: mc.attention(qkv()[0], x, qkv()[2], CAUSAL), (1, 2, N, DIM)),
    "v": (lambda x: mc.attention(*qkv()[:2], x, CAUSAL), (1, 2, N, DIM)),
    "bias": (with_bias, (2, N, N)),
    "a captured table": (
        lambda x: mc.attention(*qkv(), CAUSAL, score=mc.score(lambda s, q, k, h: s + x[h, q, k])),
        (2, N, N),
    ),
    "sink_logits": (lambda x: mc.attention(*qkv(), CAUSAL, sink_logits=x), (2,)),
    "alibi_slopes": (lambda x: mc.attention(*qkv(), CAUSAL, alibi_slopes=x), (2,)),
    "scores": (lambda x: mc.attention(*qkv(), CHOSEN, scores=x), (1, N, N)),
    "alpha": (
        lambda x: mc.attention(*qkv(), CAUSAL, normalizer="entmax", alpha=1.4 + 0.05 * x.tanh()),
        (2,),
    ),
}
"""By argument a call that reads it, and its shape."""
DIFFERENTIABLE = {name: case for name, case in ARGUMENTS.items() if name != "scores"}


# ------------------------------------------------------------------ the negative bit


def negative(values):
    """A view of these values in whose memory their signs are turned."""
    turned = torch._neg_view((-values).contiguous())
    assert turned.is_neg()
    return turned


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_negative_bit_is_read(name):
    call, shape = ARGUMENTS[name]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(call(negative(values)), call(values))
    assert torch.equal(call(values), call(negative(values)))  # nor is the first one taken for it


def test_imaginary_parts_of_conjugates_are_read():
    for name in ("bias", "sink_logits", "alibi_slopes", "scores"):
        call, shape = ARGUMENTS[name]
        x = torch.randn(shape, dtype=torch.complex64).conj().imag
        assert x.is_neg()
        assert torch.equal(call(x), call(x.clone()))


def test_data_with_the_negative_bit():
    ids = negative(torch.arange(N) // 4)
    q, k, v = qkv()
    want = mc.attention(q, k, v, mc.documents("doc"), doc=ids.clone())
    assert torch.equal(mc.attention(q, k, v, mc.documents("doc"), doc=ids), want)
    captured = [mc.from_mask_mod(lambda b, h, q, k, x=x: x[q] == x[k]) for x in (ids, -ids)]
    for mask in captured:
        assert torch.equal(mc.attention(q, k, v, mask), want)
    both = mc.from_mask_mod(lambda b, h, q, k: ids._neg_view()[q] != ids[k] * 0 + ids[q])
    live = (-ids[:, None] != ids[:, None]).expand(N, N)
    assert torch.equal(torch.from_numpy(both.dense(N)), live)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_through_the_negative_bit(name):
    call, shape = ARGUMENTS[name]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    plain = values.clone().requires_grad_()
    (want,) = torch.autograd.grad(call(plain).square().sum(), plain)
    turned = negative(values).requires_grad_()
    (found,) = torch.autograd.grad(call(turned).square().sum(), turned)
    assert torch.equal(found, want)


# ------------------------------------------------------------------ kinds of tensors


class Plain(torch.Tensor):
    """A subclass with memory of its own."""


class Wrapped(torch.Tensor):
    """A subclass without memory: operators see what it holds."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        opened = torch.utils._pytree.tree_map_only(cls, lambda x: x.inner, (args, kwargs or {}))
        return operator(*opened[0], **opened[1])


class Layer(torch.nn.Module):
    def __init__(self, values):
        super().__init__()
        self.register_buffer("bias", values.clone())


KINDS = {
    "a parameter": torch.nn.Parameter,
    "a frozen parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "an embedding's weight": lambda x: torch.nn.Embedding.from_pretrained(
        x.reshape(2 * N, N), freeze=False
    ).weight.view(2, N, N),
    "a buffer": lambda x: Layer(x).bias,
    "a non-leaf": lambda x: 2 * torch.nn.Parameter(x / 2),
    "a subclass": lambda x: x.as_subclass(Plain),
    "a subclass that requires grad": lambda x: x.as_subclass(Plain).requires_grad_(),
    "a wrapper": Wrapped,
}


@pytest.mark.parametrize("captured", [False, True], ids=["given", "captured"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors_as_a_bias(kind, captured):
    values = torch.randn(2, N, N)
    bias = KINDS[kind](values)
    if not captured:
        out = with_bias(bias)
    else:
        score = mc.score(lambda s, q, k, h: s + bias[h, q, k])
        out = mc.attention(*qkv(), CAUSAL, score=score)
    torch.testing.assert_close(out, dense(values))
    assert out.requires_grad == bias.requires_grad
    if bias.requires_grad:
        mine = values.clone().requires_grad_()
        (want,) = torch.autograd.grad(dense(mine).square().sum(), mine)
        (found,) = torch.autograd.grad(out.square().sum(), bias)
        torch.testing.assert_close(found.as_subclass(torch.Tensor), want, atol=1e-5, rtol=1e-4)


def test_parameters_and_tensors_meet():
    q, k, v = qkv()
    bias = torch.randn(2, N, N)
    held = torch.nn.Parameter(q)
    for given in (bias, bias.clone().requires_grad_(), torch.nn.Parameter(bias)):
        torch.testing.assert_close(with_bias(given, held, k, v), dense(bias))


def test_sinks_and_slopes_that_are_parameters():
    for name in ("sink_logits", "alibi_slopes"):
        call, shape = ARGUMENTS[name]
        held = torch.nn.Parameter(torch.rand(shape))
        (found,) = torch.autograd.grad(call(held).sum(), held)
        same = held.detach().clone().requires_grad_()
        (want,) = torch.autograd.grad(call(same).sum(), same)
        assert torch.equal(found, want)


@pytest.mark.parametrize("name", ["q", "bias", "a captured table", "sink_logits"])
def test_a_dtensor_is_refused(name):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    call, shape = ARGUMENTS[name]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        x = DTensor.from_local(torch.randn(shape), mesh, [Replicate()])
        with pytest.raises(ShardedTensor, match=r"DTensor[\s\S]*full_tensor"):
            call(x)
    finally:
        dist.destroy_process_group()


# ------------------------------------------------------------------ derivatives


@pytest.mark.parametrize("name", ARGUMENTS)
def test_forward_mode_is_refused(name):
    call, shape = ARGUMENTS[name]
    with forward.dual_level():
        dual = forward.make_dual(torch.rand(shape), torch.ones(shape))
        with pytest.raises(BadOption, match="forward-mode"):
            call(dual)


@pytest.mark.parametrize("name", ["q", "bias", "sink_logits"])
def test_forward_mode_is_refused_in_a_compiled_graph(name):
    """A graph is traced without tangents, so only its operator can see them."""
    q, k, v = qkv()
    call = {
        "q": lambda x: mc.attention(x, k, v, CAUSAL),
        "bias": lambda x: mc.attention(q, k, v, CAUSAL, score=BIAS, bias=x),
        "sink_logits": lambda x: mc.attention(q, k, v, CAUSAL, sink_logits=x),
    }[name]
    graph = torch.compile(call, backend="aot_eager", fullgraph=True)
    x = torch.rand(ARGUMENTS[name][1])
    with forward.dual_level():
        torch.testing.assert_close(graph(x), call(x))
        with pytest.raises(BadOption, match="forward-mode"):
            graph(forward.make_dual(x, torch.ones_like(x)))


@pytest.mark.parametrize("way", ["hessian", "hvp", "vhp", "jvp"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_derivatives_are_refused(name, way):
    """torch asks with allow_unused=True, so that a missing path would be a derivative of 0."""
    call, shape = ARGUMENTS[name]
    x = torch.rand(shape)
    derivative = getattr(torch.autograd.functional, way)
    with pytest.raises(BadOption, match="differentiated once"):
        derivative(lambda x: call(x).sum(), *((x,) if way == "hessian" else (x, x)))


def test_a_graph_of_gradients_changes_no_gradient():
    call, shape = ARGUMENTS["q"]
    x = torch.rand(shape, requires_grad=True)
    (plain,) = torch.autograd.grad(call(x).square().sum(), x)
    (made,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    assert made.requires_grad
    assert torch.equal(made, plain)


def test_a_checkpoint_is_unpacked_once():
    call, shape = ARGUMENTS["q"]
    x = torch.rand(shape, requires_grad=True)
    run = torch.utils.checkpoint.checkpoint
    out = run(lambda x: call(x).square(), x, use_reentrant=False)
    (found,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (want,) = torch.autograd.grad(call(x).square().sum(), x)
    assert torch.equal(found, want)
