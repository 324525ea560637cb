"""The named score formulas, each against its paper's own words in PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

import maskc as mc

B, H, N, D = 2, 3, 36, 16
ROW, COL = torch.arange(N)[:, None], torch.arange(N)


def swin_table():
    """Swin's own index: coordinates of a window, their differences, shifted and flattened."""
    side = 6
    grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    flat = grid.flatten(1)
    relative = (flat[:, :, None] - flat[:, None, :]).permute(1, 2, 0)
    return (relative[..., 0] + side - 1) * (2 * side - 1) + relative[..., 1] + side - 1


def t5_bias(table, bidirectional):
    """The buckets of the T5 in transformers."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    bucket = t5.T5Attention._relative_position_bucket(COL - ROW, bidirectional, 32, 128)
    return table[bucket].permute(2, 0, 1)


def tables(**shapes):
    """Learned tables."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(shape, generator=generator).requires_grad_()
        for name, shape in shapes.items()
    }


DISTANCE = (ROW - COL).abs()
CASES = {
    "soft_cap": (lambda: mc.scores.soft_cap(3.0), {}, lambda s: 3 * torch.tanh(s / 3)),
    "tanh_clip": (mc.scores.tanh_clip, {}, lambda s: 10 * torch.tanh(s)),
    "alibi": (
        mc.scores.alibi, {"slopes": (H,)},
        lambda s, slopes: s - slopes[:, None, None] * DISTANCE,
    ),
    "alibi of the paper": (
        lambda: mc.scores.alibi(n_heads=H), {},
        lambda s: s - torch.exp2(-8 * torch.arange(1, H + 1) / H)[:, None, None] * DISTANCE,
    ),
    "bias": (mc.scores.bias, {"bias": (H, N, N)}, lambda s, bias: s + bias),
    "relative": (
        lambda: mc.scores.relative(furthest=5), {"bias": (H, 11)},
        lambda s, bias: s + bias[:, (ROW - COL).clamp(-5, 5) + 5],
    ),
    "t5 decoder": (mc.scores.t5, {"bias": (32, H)}, lambda s, bias: s + t5_bias(bias, False)),
    "t5 encoder": (
        lambda: mc.scores.t5(bidirectional=True), {"bias": (32, H)},
        lambda s, bias: s + t5_bias(bias, True),
    ),
    "distance_decay": (
        mc.scores.distance_decay, {"decay": (H,)},
        lambda s, decay: s + DISTANCE * decay.log()[:, None, None],
    ),
    "kerple": (
        mc.scores.kerple, {"strength": (H,), "rate": (H,)},
        lambda s, strength, rate: (
            s - strength[:, None, None] * torch.log1p(rate[:, None, None] * DISTANCE)
        ),
    ),
    "swin": (
        lambda: mc.scores.swin((6, 6)), {"bias": (121, H)},
        lambda s, bias: s + bias[swin_table()].permute(2, 0, 1),
    ),
    "cosine": (
        mc.scores.cosine, {"logit_scale": (H,)},
        lambda s, logit_scale: s * logit_scale.clamp(max=math.log(100))[:, None, None].exp(),
    ),
    "gated_bias": (
        lambda: mc.scores.gated_bias(furthest=4), {"bias": (H, 9), "gate": (B, H, N)},
        lambda s, bias, gate: s + gate.sigmoid()[..., None] * bias[:, (ROW - COL).clamp(-4, 4) + 4],
    ),
    "forget_gate": (
        mc.scores.forget_gate, {"log_forget": (B, H, N)},
        lambda s, log_forget: s + log_forget[..., None] - log_forget[:, :, None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_passes(name):
    make, shapes, formula = CASES[name]
    learned = tables(**shapes)
    if name in ("distance_decay", "kerple"):
        learned = {key: x.detach().sigmoid().requires_grad_() for key, x in learned.items()}
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn((B, H, N, D), generator=generator) for _ in range(4))
    own = [x.requires_grad_() for x in (q, k, v)]
    out = mc.attention(q, k, v, mc.causal(), score=make(), **learned)
    gradients = torch.autograd.grad(out, [*own, *learned.values()], dout)
    doubles = {key: x.double() for key, x in learned.items()}
    s = formula(q.double() @ k.double().mT / D**0.5, **doubles).masked_fill(ROW < COL, -torch.inf)
    exact = torch.softmax(s, -1) @ v.double()
    right = torch.autograd.grad(exact, [*own, *learned.values()], dout.double())
    for one, two in zip((out, *gradients), (exact, *right), strict=True):
        size = max(1.0, two.abs().max().item())
        assert (one.double() - two.double()).abs().max() <= 3e-5 * size


def test_last_queries_meet_last_keys():
    """Distances are those of positions: one new token sees what the whole sequence saw last."""
    score = mc.scores.alibi(n_heads=H)
    q, k, v = (torch.randn(1, H, N, D) for _ in range(3))
    whole = mc.attention(q, k, v, mc.causal(), score=score)
    last = mc.attention(q[:, :, -1:], k, v, mc.causal(), score=score)
    torch.testing.assert_close(last, whole[:, :, -1:])


def test_numbers_are_checked():
    for make in (
        lambda: mc.scores.t5(buckets=1), lambda: mc.scores.swin((0, 4)),
        lambda: mc.scores.relative(furthest=0),
    ):  # fmt: skip
        with pytest.raises(mc.MaskcError, match="MC102"):
            make()
    for make in (
        lambda: mc.scores.soft_cap(0), lambda: mc.scores.tanh_clip(-1.0),
        lambda: mc.scores.cosine(most=0.0),
    ):  # fmt: skip
        with pytest.raises(mc.MaskcError, match="MC136"):
            make()
