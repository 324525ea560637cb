"""Formulas of the score on a card: gradients by autograd beside fp64, tables wherever they lie.

Run with `make test-gpu`. Tensor cores serve 16-bit tensors; fp32 ones run on CUDA cores.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import maskc as mc  # noqa: E402
from tests.support.hopper import GPU  # noqa: E402
from tests.support.scores import FORMULAS  # noqa: E402

if not GPU:
    pytest.skip("no CUDA device", allow_module_level=True)

DEVICE = "cuda"
B, H, HKV = 2, 4, 2
TOLERANCES = {torch.float32: 3e-5, torch.bfloat16: 0.03, torch.float16: 0.005}
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
"""Of stored numbers, relative."""


def tensors(n_q, n_kv, dim, dtype, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    sizes = ((H, n_q), (HKV, n_kv), (HKV, n_kv), (H, n_q))
    found = [
        torch.randn((B, *size, dim), generator=generator, device=DEVICE).to(dtype) for size in sizes
    ]
    return [x.requires_grad_() for x in found[:3]], found[3]


def eager(score_mod, live, q, k, v, logits_too=False):
    """What FlexAttention means, in float64: the score_mod on all pairs at once."""
    q, k, v = (x.double() for x in (q, k, v))
    batch, heads, n, dim = q.shape
    axes = [torch.arange(size, device=DEVICE) for size in (batch, heads, n, k.shape[2])]
    b, h, i, j = torch.meshgrid(*axes, indexing="ij")
    scores = q @ k.repeat_interleave(heads // k.shape[1], 1).mT / dim**0.5
    logits = score_mod(scores, b, h, i, j).double().masked_fill(~live, -torch.inf)
    out = torch.softmax(logits, -1) @ v.repeat_interleave(heads // v.shape[1], 1)
    return (out, logits) if logits_too else out


def terms(score_mod, live, given, dout):
    """How much the pairs' shares of a table's gradient add up to where none cancels another.

    They cancel where an entry is shared by whole rows, whose slopes of the logits add up to 0: of
    the sum of 25,000 that a head's pairs make, 17 are left.
    """
    q, k, v, *own = given
    out, logits = eager(score_mod, live, q, k, v, logits_too=True)
    (slopes,) = torch.autograd.grad(out, logits, dout.double(), retain_graph=True)
    shares = torch.autograd.grad(logits, own, slopes.abs())
    return shares[0].double().abs()


def learned(name, n_q, n_kv):
    """(score_mod, the tensors that it learns)."""

    def table(*shape):
        made = torch.randn(shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1))
        return made.requires_grad_()

    one, rows, pairs = table(H), table(H, n_q + n_kv), table(B, 1, n_q, n_kv)
    gate, cap = table(B, n_kv), torch.tensor(4.0, device=DEVICE, requires_grad=True)
    return {
        "slopes": (lambda s, b, h, i, j: s - one[h] * (i - j).abs() / 16, [one]),
        "relative": (lambda s, b, h, i, j: s + rows[h, i - j], [rows]),
        "bias": (lambda s, b, h, i, j: s + pairs[b, 0, i, j], [pairs]),
        "gate": (lambda s, b, h, i, j: s * torch.sigmoid(gate[b, j]), [gate]),
        "cap": (lambda s, b, h, i, j: cap * torch.tanh(s / cap), [cap]),
    }[name]


@pytest.mark.parametrize("name", ["slopes", "relative", "bias", "gate", "cap"])
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("n_q", "n_kv", "dim"), [(300, 300, 64), (130, 513, 128), (257, 70, 96)])
def test_gradients(name, dtype, n_q, n_kv, dim):
    mask = mc.full() if n_q > n_kv else mc.causal()
    live = torch.from_numpy(mask.dense(n_q, n_kv)).to(DEVICE)
    score_mod, own = learned(name, n_q, n_kv)
    (q, k, v), dout = tensors(n_q, n_kv, dim, dtype)
    given = [q, k, v, *own]
    out = mc.attention(q, k, v, mask, score=mc.from_score_mod(score_mod))
    found = out, *torch.autograd.grad(out, given, dout)
    right = eager(score_mod, live, q, k, v)
    exact = right, *torch.autograd.grad(right, given, dout.double())
    # each share of a table's gradient has the rounding of out, from which delta is made
    rounded = ROUNDING[dtype] * terms(score_mod, live, given, dout)
    for which, one, two in zip(("out", "dq", "dk", "dv", "table"), found, exact, strict=True):
        bound = TOLERANCES[dtype] * max(1.0, two.abs().max().item())
        bound = bound + rounded if which == "table" else bound
        assert ((one.double() - two).abs() <= bound).all(), which


@pytest.mark.parametrize("name", list(FORMULAS))
def test_numpy_tables(name):
    """Arrays that calls give lie on the device; those that formulas hold come from anywhere."""
    score, data = FORMULAS[name](96, 96, H, B)
    (q, k, v), _ = tensors(96, 96, 64, torch.bfloat16)
    cpu = mc.causal().compile(64, dtype="bfloat16", target="cpu", score=score)
    card = mc.causal().compile(64, dtype="bfloat16", score=score)
    with torch.no_grad():
        right = cpu(q.cpu(), k.cpu(), v.cpu(), **data)
        there = {key: torch.from_numpy(x).to(DEVICE) for key, x in data.items()}
        assert (card(q, k, v, **there).cpu() - right).abs().max() < 0.03


def test_a_captured_array_moves_to_the_card():
    table = np.random.default_rng(0).normal(size=(H, 200)).astype(np.float32)
    there = torch.from_numpy(table).to(DEVICE)
    score = mc.score(lambda s, q, k, h: s + table[h, q - k])
    same = mc.from_score_mod(lambda s, b, h, i, j: s + there[h, i - j])
    (q, k, v), _ = tensors(100, 100, 64, torch.bfloat16)
    with torch.no_grad():
        for _ in range(2):
            right = mc.attention(q, k, v, mc.causal(), score=same)
            assert torch.equal(mc.attention(q, k, v, mc.causal(), score=score), right)
            table *= 2  # what a formula holds is read anew by every call
            there *= 2


def test_the_same_bits():
    rows = torch.randn(H, 1400, device=DEVICE, requires_grad=True)
    (q, k, v), dout = tensors(700, 700, 64, torch.bfloat16)
    score = mc.from_score_mod(lambda s, b, h, i, j: s + rows[h, i - j])
    runs = []
    for _ in range(3):
        out = mc.attention(q, k, v, mc.causal(), score=score, deterministic=True)
        runs.append((out, *torch.autograd.grad(out, [q, k, v, rows], dout)))
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))


def test_graphs():
    """A graph reads tables where they lay when it was captured."""
    rows = torch.randn(H, 1400, device=DEVICE)
    (q, k, v), _ = tensors(700, 700, 64, torch.bfloat16)
    score = mc.score(lambda s, q, k, h: s + mc.table("rows")[h, q - k])
    attn = mc.causal().compile(64, dtype="bfloat16", score=score)
    with torch.no_grad():
        attn(q, k, v, rows=rows)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = attn(q, k, v, rows=rows)
        rows.mul_(-1)
        right = attn(q, k, v, rows=rows)
        graph.replay()
        assert torch.equal(found, right)
