"""Entmax with an alpha for each head, and the gradient of alpha: against autograd in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core import errors
from maskc.runtime import CompiledMask
from tests.support.exact_attention import tensors
from tests.support.thorough import chiefly, more

CAUSAL = mc.causal()
ALPHAS = [1.3, 1.0, 1.5, 1.5, 1.5, 2.0, 1.75, 1.02]
"""Runs that begin and end inside of groups, softmax and sparsemax among them."""


class Entmax(torch.autograd.Function):
    """p [.., n] of scores and alpha - 1, [.., 1], fp64; gradients by implicit differentiation."""

    @staticmethod
    def forward(ctx, s, a):
        low = s.amax(-1, keepdim=True)
        empty = low == -torch.inf
        low = torch.where(empty, 0.0, low)
        high = low + 60
        for _ in range(80):
            middle = (low + high) / 2
            more = Entmax.power(s, middle, a).sum(-1, keepdim=True) >= 1
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        p = torch.where(empty, 0.0, Entmax.power(s, low, a))
        ctx.save_for_backward(s, low, a, p)
        return p

    @staticmethod
    def power(s, lse, a):
        x = (1 + a * (s - lse)).clamp(min=0)
        b = torch.where(a == 0, 1.0, a)
        return torch.where(a != 0, torch.where(x > 0, x ** (1 / b), 0.0), (s - lse).exp())

    @staticmethod
    def backward(ctx, g):
        s, lse, a, p = ctx.saved_tensors
        live = p > 0
        safe = torch.where(live, p, 1.0)
        u = torch.where(live, safe ** (1 - a), 0.0)
        mean = (u * g).sum(-1, keepdim=True) / u.sum(-1, keepdim=True).clamp(min=1e-300)
        step = 1e-6  # a central difference: another way than a formula
        up, down = (Entmax.of(s, lse, a + x) for x in (step, -step))
        return u * (g - mean), ((up - down) / (2 * step) * g).sum(-1, keepdim=True)

    @staticmethod
    def of(s, near, a):
        low, high = near - 5, near + 5
        for _ in range(60):
            middle = (low + high) / 2
            more = Entmax.power(s, middle, a).sum(-1, keepdim=True) >= 1
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        return torch.where((s > -torch.inf).any(-1, keepdim=True), Entmax.power(s, low, a), 0.0)


def dense(q, k, v, alpha, live, scale=None, softcap=None, alibi_slopes=None):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if alibi_slopes is not None:
        place = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        s = s - alibi_slopes[:, None, None] * (place - torch.arange(k.shape[2])).abs()
    a = alpha.expand(q.shape[1])[:, None, None] - 1
    return Entmax.apply(s.masked_fill(~live, -torch.inf), a.expand(*s.shape[:3], 1)) @ v


def check(mask, alpha, data=None, heads=8, kv_heads=2, deterministic=False, **options):
    """All results of a call, and its gradients."""
    q, k, v, dout = tensors(
        60, 70, 16, torch.float32, batch=2, heads=heads, kv_heads=kv_heads, device="cpu"
    )
    given = {"q": q * 2, "k": k, "v": v, "alpha": alpha}
    if "alibi_slopes" in options:
        given["alibi_slopes"] = options.pop("alibi_slopes")
    ours = {name: x.clone().requires_grad_() for name, x in given.items()}
    exact = {name: x.double().requires_grad_() for name, x in given.items()}
    data = data or {}
    ranked = {"q": given["q"], "k": k, "heads_kv": kv_heads} if "topk" in str(mask) else {}
    keep = mask.dense(60, 70, n_heads=heads, **ranked, **data)
    live = torch.from_numpy(keep.copy())
    if live.ndim == 3 and len(live) == 2:
        live = live[:, None]
    out = mc.attention(
        mask=mask, **ours, normalizer="entmax", deterministic=deterministic, **data, **options
    )
    wanted = dense(**exact, live=live, **options)
    assert (out - wanted).abs().max() < 2e-5
    out.backward(dout)
    wanted.backward(dout.double())
    for name, x in ours.items():
        size = exact[name].grad.abs().max().clamp(min=1)
        bound = 1e-3 if name == "alpha" else 3e-5
        assert (x.grad - exact[name].grad).abs().max() < bound * size, name


MASKS = {
    "causal": (CAUSAL, {}),
    "rows without keys": (CAUSAL - mc.prefix(20), {}),
    "chosen keys": (mc.topk(9, CAUSAL) | mc.sinks(2), {}),
    "chosen by groups": (mc.topk(9, CAUSAL, share="group"), {}),
    "heads": (mc.per_head([CAUSAL, mc.window(9), mc.full(), mc.strided(3)] * 2), {}),
    "data": (CAUSAL & mc.flags("f"), {"f": np.arange(70) % 5 > 0}),
}


@pytest.mark.parametrize(
    "name", chiefly(list(MASKS), "rows without keys", "chosen by groups", "heads")
)
def test_masks(name):
    mask, data = MASKS[name]
    check(mask, torch.tensor(ALPHAS), data)


@pytest.mark.parametrize(
    "options",
    [
        more({"scale": 0.4}),
        {"softcap": 2.0},
        {"alibi_slopes": torch.rand(8)},
        {"deterministic": True},
    ],
    ids=lambda x: " ".join(x),
)
def test_options(options):
    check(CAUSAL, torch.tensor(ALPHAS), **options)


def test_one_alpha_for_all_heads_is_learned_too():
    check(CAUSAL, torch.tensor(1.4))


def test_one_head_a_key():
    check(CAUSAL, torch.tensor(ALPHAS[:4]), heads=4, kv_heads=4)


def test_equal_alphas_run_together(monkeypatch):
    """A call is as many launches as there are runs of equal numbers that groups of heads allow."""
    q, k, v, _ = tensors(20, 20, 16, torch.float32, batch=1, heads=8, kv_heads=2, device="cpu")
    calls = []
    run = CompiledMask.run

    def counted(self, call):
        calls.append(call.q.shape[1])
        return run(self, call)

    monkeypatch.setattr(CompiledMask, "run", counted)
    for alphas, wanted in (
        ([1.5] * 8, [8]),
        ([1.5] * 4 + [1.2] * 4, [4, 4]),
        ([1.2] + [1.5] * 7, [1, 3, 4]),
        ([1.5] * 6 + [1.2] * 2, [4, 2, 2]),
    ):
        calls.clear()
        mc.attention(q, k, v, CAUSAL, normalizer="entmax", alpha=torch.tensor(alphas))
        assert calls == wanted


def test_numpy_and_lse():
    q, k, v, _ = (x.numpy() for x in tensors(
        40, 40, 16, torch.float32, batch=1, heads=4, kv_heads=2, device="cpu"))  # fmt: skip
    alpha = np.array([1.5, 2, 2, 1.2], np.float32)
    out, lse = mc.attention(q, k, v, CAUSAL, normalizer="entmax", alpha=alpha, return_lse=True)
    for head, own in enumerate(alpha.tolist()):
        one, wanted = mc.attention(
            q[:, head : head + 1], k[:, head // 2 : head // 2 + 1],
            v[:, head // 2 : head // 2 + 1], CAUSAL, normalizer="entmax", alpha=own,
            return_lse=True,
        )  # fmt: skip
        assert np.array_equal(out[:, head : head + 1], one)
        assert np.array_equal(lse[:, head : head + 1], wanted)


def test_modules_learn_it():
    alpha = torch.nn.Parameter(torch.tensor([1.2, 1.8]))
    module = mc.nn.SplashAttention(16, alpha=alpha, k_keep=8)
    assert [name for name, _ in module.named_parameters()] == ["alpha"]
    assert "alpha=(2,)" in repr(module)
    q, k, v, _ = tensors(40, 40, 16, torch.float32, batch=1, heads=2, kv_heads=2, device="cpu")
    module(q, k, v).square().sum().backward()
    assert alpha.grad.abs().min() > 0
    other = mc.nn.Attention(
        CAUSAL, normalizer="entmax", alpha=torch.nn.Parameter(torch.tensor(1.5))
    )
    other(q, k, v).square().sum().backward()
    assert other.alpha.grad != 0


@pytest.mark.parametrize("target", ["sm_90a", more("sm_80"), "simt"])
def test_on_gpus(target, monkeypatch):
    from maskc.testing.emulator import machine

    q, k, v, dout = tensors(
        100, 100, 64, torch.bfloat16, batch=1, heads=2, kv_heads=1, device="cpu"
    )
    alpha = torch.tensor([1.5, 2.0])
    call = {"normalizer": "entmax", "alpha": alpha}
    wanted = [x.clone().requires_grad_() for x in (q, k, v, alpha)]
    mask = CAUSAL & mc.window(40)
    mask.compile(64, target="cpu")(*wanted[:3], normalizer="entmax", alpha=wanted[3]).backward(dout)
    machine.install(monkeypatch)
    found = [x.clone().requires_grad_() for x in (q, k, v, alpha)]
    mask.compile(64, target=target)(*found[:3], normalizer="entmax", alpha=found[3]).backward(dout)
    for x, y in zip(found, wanted, strict=True):
        assert (x.grad.float() - y.grad.float()).norm() < 1e-2 * y.grad.float().norm()
    if target == "simt":
        return
    chosen = mc.topk(5, CAUSAL) | mc.sinks(2)
    on_grid = [(x * 16).round() / 16 for x in (q, k)]  # scores that are exact in fp32
    grads = []
    for attn in (chosen.compile(64, target=each) for each in ("simt", target)):
        given = [x.clone().requires_grad_() for x in (*on_grid, v, alpha)]
        attn(*given[:3], normalizer="entmax", alpha=given[3]).backward(dout)
        grads.append([x.grad.float() for x in given])
    assert attn.target.name == target
    for x, y in zip(*grads, strict=True):
        assert (x - y).norm() < 1e-2 * y.norm()
    module = CompiledMask(attn.bundle, target)  # as a generated one, which nothing compiles anew
    assert module(q, k, v, **call).isfinite().all()
    with pytest.raises(errors.AlphaWithoutGradient, match="generated"):
        module(q, k, v, normalizer="entmax", alpha=alpha.clone().requires_grad_())


@pytest.mark.parametrize(
    ("alpha", "error", "text"),
    [(torch.tensor([1.5, 1.5]), errors.BadShape, r"\[\] or \[4\]"),
     (torch.tensor([1.5, 1.5, 2.5, 1.0]), errors.BadOption, "2.5"),
     (torch.tensor(float("nan")), errors.BadOption, "nan")],
)  # fmt: skip
def test_refused(alpha, error, text):
    q, k, v, _ = tensors(9, 9, 16, torch.float32, batch=1, heads=4, kv_heads=2, device="cpu")
    with pytest.raises(error, match=text):
        mc.attention(q, k, v, CAUSAL, normalizer="entmax", alpha=alpha)
    with pytest.raises(errors.BadOption, match="softmax"):
        mc.attention(q, k, v, CAUSAL, alpha=torch.tensor(1.5))


@pytest.mark.parametrize("as_given", [np.asarray, torch.as_tensor], ids=["NumPy", "torch"])
def test_sink_logits_are_refused(as_given):
    """Entmax has no denominator that they could join."""
    q, k, v = (as_given(np.ones((1, 2, 5, 16), np.float32)) for _ in "qkv")
    alpha, sinks = as_given(np.float32([1.3, 1.7])), as_given(np.zeros(2, np.float32))
    with pytest.raises(errors.BadOption, match="sink_logits"):
        mc.attention(q, k, v, CAUSAL, normalizer="entmax", alpha=alpha, sink_logits=sinks)


def test_documents_of_every_head_beside_an_alpha_of_every_head():
    """Heads with one alpha run alone elsewhere; here the rows of all heads come with the call."""
    ids = torch.randint(0, 3, (2, 4, 20), generator=torch.Generator().manual_seed(0)).sort().values
    q, k, v = (torch.randn(2, heads, 20, 16) for heads in (4, 2, 2))
    alpha, mask = torch.tensor([1.0, 1.5, 1.5, 2.0]), mc.documents("d") & mc.causal()
    for found in (
        mc.attention(q, k, v, mask, normalizer="entmax", alpha=alpha, d=ids),
        torch.from_numpy(mc.attention(
            *(x.numpy() for x in (q, k, v)), mask, normalizer="entmax", alpha=alpha.numpy(), d=ids
        )),
    ):  # fmt: skip
        for head in range(4):
            own = q[:, [head]], k[:, [head // 2]], v[:, [head // 2]]
            one = mc.attention(
                *own, mask, normalizer="entmax", alpha=float(alpha[head]), d=ids[:, head]
            )
            torch.testing.assert_close(found[:, [head]], one)
