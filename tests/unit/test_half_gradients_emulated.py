"""dq and dk on Hopper where there are few rows: within twice the error of PyTorch's unfused
computation in the same dtype, whichever source runs.
"""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import by_autograd, called, dense, tensors, vectors
from tests.support.hopper import compiled, half, modes
from tests.support.thorough import alternating, more, pairwise

EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
FEW = mc.window(2) | mc.sinks(1) & mc.where(lambda q, k: q % 3 == 0)
SHORT = mc.block_diagonal(4) & mc.where(lambda q, k: (q + k) % 3 > 0)


def judge(attn, made, live, dtype, **features):
    """The worst error of dq and dk over what is allowed."""
    results = called(attn, *made, **features)
    exact = by_autograd(made, live, torch.float64, **features)
    rough = by_autograd(made, live, half(dtype), **features)
    worst = 0.0
    for name, wanted, peer in zip(("dq", "dk"), exact, rough, strict=False):
        allowed = 2 * (peer - wanted).abs().max() + EPS[dtype] * wanted.abs().max() + 1e-4
        worst = max(worst, float((results[name].double() - wanted).abs().max() / allowed))
    return worst


CASES = [
    (FEW, "large", {}), (FEW, "small", {}), (FEW, "small", {"softcap": 2.0}),
    (FEW, "large", {"scale": -0.6}), (FEW, None, {"deterministic": True}),
    (SHORT, "tiny", {}), (SHORT, "tiny", {"softcap": 2.0}), (SHORT, "small", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "dtype"),
    alternating(
        [case if place in (0, 2, 5, 7) else more(case) for place, case in enumerate(CASES)],
        list(EPS),
    ),
)
def test_few_rows(hopper, case, dtype):
    mask, mode, features = case
    features, ordered = dict(features), "deterministic" in features
    features.pop("deterministic", None)
    attn = compiled(mask, 64, dtype, mode=mode)
    for seed in range(8):
        n_q, n_kv = (1, 9, 3, 20)[seed % 4], (40, 9, 70, 20)[seed % 4]
        made = tensors(n_q, n_kv, 64, half(dtype), seed, batch=1, heads=1, kv_heads=1)
        live = torch.tensor(mask.dense(n_q, n_kv))[None]
        if ordered:
            called(attn, *made, deterministic=True)
        worst = judge(attn, made, live, dtype, **features)
        assert worst <= 1, (seed, n_q, n_kv, worst)
    found = {name for name, mode in modes(attn) if "backward" in name}
    if mode == "tiny":
        assert any("tiny" in name for name in found)
    else:
        assert "attention_backward_few" in {entry for entry, _ in hopper.launches}


def test_alibi(hopper):
    attn = compiled(FEW, 64, mode="small")
    made = tensors(3, 30, 64, torch.bfloat16, 4, batch=1, heads=2, kv_heads=1)
    live = torch.tensor(FEW.dense(3, 30))[None]
    assert judge(attn, made, live, "bfloat16", **vectors(["alibi_slopes"], 2)) <= 1


def test_many_rows_take_delta_from_out(hopper):
    attn = compiled(FEW, 64, mode="small")
    made = tensors(140, 140, 64, torch.bfloat16, 4, batch=1, heads=2, kv_heads=1)
    assert judge(attn, made, torch.tensor(FEW.dense(140))[None], "bfloat16") <= 1
    assert "attention_backward_few" not in {entry for entry, _ in hopper.launches}


@pytest.mark.parametrize(("mask", "mode"), [(FEW, "small"), (SHORT, "tiny")])
def test_an_out_that_is_not_of_these_keys_decides(mask, mode):
    """Gradients of lse come from a pass in which out is said to be 0."""
    attn = compiled(mask, 64, mode=mode)
    q, k, v, dout = tensors(20, 20, 64, torch.bfloat16, 5, batch=1, heads=1, kv_heads=1)
    out, lse = attn(q, k, v, return_lse=True)
    dq = attn.backward(q, k, v, torch.zeros_like(out), lse, dout)[0]
    live = torch.tensor(mask.dense(20))
    scores = (q.double() @ k.double().transpose(-1, -2) / 8).masked_fill(~live, -torch.inf)
    p = torch.softmax(scores, -1)
    wanted = (p * (dout.double() @ v.double().transpose(-1, -2))).nan_to_num(0) @ k.double() / 8
    assert (dq.double() - wanted).abs().max() < 2**-6 * wanted.abs().max()


def rounded_once(made, live, **features):
    """dq and dk of fp64 arithmetic that rounds out, gradients of scores, dq and dk."""
    kind, scale = made[0].dtype, made[0].shape[-1] ** -0.5
    q, k, v, dout = (x.double() for x in made)
    out, _, weights = dense(q, k, v, live, **features)
    delta = (dout * out.to(kind).double()).sum(-1, keepdim=True)
    ds = (weights[..., :-1] * (dout @ v.mT - delta)).to(kind).double()
    return [(scale * x).to(kind).double() for x in (ds @ k, ds.mT @ q)]


@pytest.mark.parametrize(
    ("dim", "dtype"), pairwise([32, 64, 128], list(EPS), tried=[(64, "bfloat16")])
)
def test_weights_are_not_rounded_before_gradients_of_scores(dim, dtype):
    """Rounded weights would make these errors 1.08 to 1.28 times as large as those of
    `rounded_once`."""
    attn, live = compiled(mc.causal(), dim, dtype, mode="large"), torch.ones(250, 250).tril() > 0
    made = tensors(250, 250, dim, half(dtype), batch=1, heads=1, kv_heads=1)
    for features in ({}, vectors(["alibi_slopes"], 1)):
        computed = called(attn, *made, **features)
        exact = by_autograd(made, live, torch.float64, **features)
        ideals = rounded_once(made, live, **features)
        for name, wanted, ideal in zip(("dq", "dk"), exact, ideals, strict=False):
            error, least = ((x - wanted).norm() for x in (computed[name].double(), ideal))
            assert error < 1.06 * least, (name, float(error / least))
