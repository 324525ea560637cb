"""Cases of other files on all targets that the card has: against fp64, both passes."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.runtime.launch.sequence import PartedPlan
from tests.support.exact_attention import (
    DEVICE,
    called,
    exact_and_rough,
    live_pairs,
    tensors,
    wrong,
)
from tests.support.residues import run_in_classes

CAUSAL, BF16 = mc.causal(), torch.bfloat16
SLASHES = CAUSAL & (mc.window(40) | mc.where(lambda q, k: (q - k) % 16 == 0))
RESIDUES = {
    "dilated": mc.dilated(60, stride=4),
    "slashes": SLASHES,
    "exponential": mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4),
}


@pytest.fixture(params=["sm_90a", "sm_80", "simt"])
def target(request):
    if request.param == "sm_90a" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU")
    return request.param


def judged(attn, made, live, data=None, **options):
    """At most twice the error of the unfused computation."""
    exact, rough = exact_and_rough(*made, live)
    assert not wrong(called(attn, *made, data=data, **options), exact, rough)


@pytest.mark.parametrize("name", RESIDUES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_residue_classes(name, deterministic, target, monkeypatch):
    """Dilated masks as dense bands, each launch joining its rows with those before."""
    run_in_classes(monkeypatch)
    attn = RESIDUES[name].compile(64, target=target)
    for n in (512, 387):
        made, live = tensors(n, n, 64, BF16, n), live_pairs(RESIDUES[name], n, n)
        judged(attn, made, live, deterministic=deterministic)
    assert isinstance(attn._last[1], PartedPlan)


@pytest.mark.parametrize("block", [1, 16, 64])
def test_chosen_keys(block, target):
    scores = torch.rand((1, 1, 300, 300 if block == 1 else -(-300 // block)), device=DEVICE)
    mask = mc.topk(8 if block == 1 else 3, CAUSAL, score="given", share="all", block=block)
    data = {"scores": scores}
    live = live_pairs(mask, 300, 300, {"scores": scores.cpu().numpy()})
    judged(mask.compile(64, target=target), tensors(300, 300, 64, BF16, batch=1), live, data)


@pytest.mark.parametrize(("dim", "dim_v"), [(192, 128), (72, 40), (320, 512)])
def test_widths(dim, dim_v, target):
    q, k, v, dout = tensors(200, 270, max(dim, dim_v), BF16)
    made = [x[..., :n].contiguous() for x, n in ((q, dim), (k, dim), (v, dim_v), (dout, dim_v))]
    attn = CAUSAL.compile(dim, dim_v, target=target)
    judged(attn, made, live_pairs(CAUSAL, 200, 270))


@pytest.mark.parametrize("number", [0, 1])
def test_tiles_of_ones_own(number, target):
    tiles = {"sm_90a": [(192, 64, 3), (128, 96, None)], "sm_80": [(64, 32, None), (128, 64, None)]}
    if target not in tiles:
        pytest.skip("it has one tile")
    *tile, stages = tiles[target][number]
    mask = CAUSAL & (mc.window(90) | mc.sinks(3))
    attn = mask.compile(64, target=target, tile=tuple(tile), stages=stages)
    judged(attn, tensors(300, 333, 64, BF16), live_pairs(mask, 300, 333))


@pytest.mark.parametrize("tables", ["relative", "bias"])
def test_formulas_with_tables(tables, target):
    n, most = 300, 299
    score = mc.scores.relative(furthest=most) if tables == "relative" else mc.scores.bias()
    shape = (4, 2 * most + 1) if tables == "relative" else (2, 4, n, n)
    bias = torch.randn(shape, device=DEVICE, requires_grad=True)
    made = tensors(n, n, 64, BF16)
    q, k, v = (x.requires_grad_() for x in made[:3])
    attn = CAUSAL.compile(64, target=target, score=score)
    out = attn(q, k, v, bias=bias)
    gradients = torch.autograd.grad(out, (q, k, v, bias), made[3])
    far = torch.arange(n, device=DEVICE)[:, None] - torch.arange(n, device=DEVICE)
    added = bias[:, far + most][None] if tables == "relative" else bias
    keys, values = (x.double().repeat_interleave(2, 1) for x in (k, v))
    s = q.double() @ keys.mT / 8 + added.double()
    weights = s.masked_fill(far < 0, -torch.inf).softmax(-1)
    right = weights @ values
    exact = torch.autograd.grad(right, (q, k, v, bias), made[3].double())
    for name, one, two in zip(
        ("out", "dq", "dk", "dv", "bias"), (out, *gradients), (right, *exact), strict=True
    ):
        assert (one - two).abs().max() <= 0.02 * max(1.0, two.abs().max().item()), name


def test_in_one_graph(target):
    attn = CAUSAL.compile(64, target=target)
    made, live = tensors(200, 200, 64, BF16), live_pairs(CAUSAL, 200, 200)
    leaves = [x.requires_grad_() for x in made[:3]]
    out = torch.compile(lambda *x: attn(*x), backend="aot_eager", fullgraph=True)(*leaves)
    gradients = torch.autograd.grad(out, leaves, made[3])
    found = {"out": out, **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}
    exact, rough = exact_and_rough(*made, live)
    assert not wrong(found, exact, rough)
