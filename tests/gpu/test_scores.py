"""Score formulas on a card: gradients by autograd compared with fp64, tables wherever they lie.

Run with `make test-gpu`. Tensor cores serve 16-bit tensors; fp32 ones run on CUDA cores.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.runtime import CompiledMask
from tests.support.exact_attention import eager
from tests.support.hopper import needs_hopper, no_waiting
from tests.support.pair_tables import ADDED, CAPPED, KINDS, TURNED
from tests.support.pair_tables import judged as pairs_judged
from tests.support.scores import FORMULAS

DEVICE = "cuda"
B, H, HKV = 2, 4, 2
TOLERANCES = {torch.float32: 3e-5, torch.bfloat16: 0.03, torch.float16: 0.005}
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
"""Relative to stored numbers."""


def tensors(n_q, n_kv, dim, dtype, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    sizes = ((H, n_q), (HKV, n_kv), (HKV, n_kv), (H, n_q))
    found = [
        torch.randn((B, *size, dim), generator=generator, device=DEVICE).to(dtype) for size in sizes
    ]
    return [x.requires_grad_() for x in found[:3]], found[3]


def terms(score_mod, live, given, dout):
    """The sum of the pairs' shares of a table's gradient where none cancels another.

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
    out = mc.attention(q, k, v, mask, score=mc.from_score_mod(score_mod))
    judged(out, [q, k, v, *own], dout, score_mod, live)


def judged(out, given, dout, score_mod, live):
    """Compare out and all gradients with fp64."""
    q, k, v, *_ = given
    dtype = q.dtype
    found = out, *torch.autograd.grad(out, given, dout)
    right = eager(score_mod, live, q, k, v)
    exact = right, *torch.autograd.grad(right, given, dout.double())
    # Each share of a table's gradient has the rounding of out, from which delta is made. They are
    # added up in fp32 in any order, 36,000 to one entry: where many cancel, the roundings of sums
    # on the way were measured at as much again as those of the shares.
    rounded = (ROUNDING[dtype] + 2.0**-23) * terms(score_mod, live, given, dout)
    for which, one, two in zip(("out", "dq", "dk", "dv", "table"), found, exact, strict=True):
        bound = TOLERANCES[dtype] * max(1.0, two.abs().max().item())
        bound = bound + rounded if which == "table" else bound
        assert ((one.double() - two).abs() <= bound).all(), which


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_pairs(kind, dtype):
    """Tables with an entry for each pair, in several layouts, and tiles with and without an end."""
    needs_hopper()
    for n_q, n_kv, dim in ((130, 200, 64), (384, 512, 128), (300, 700, 256), (257, 333, 96)):
        for deterministic in (False, True):
            pairs_judged(
                ADDED, mc.causal(), kind, n_q, n_kv, dtype, dim, deterministic, device=DEVICE
            )
    for score in (TURNED, CAPPED):
        if kind == "contiguous":
            pairs_judged(score, mc.full(), kind, 200, 200, dtype, device=DEVICE)


LISTED = {
    "both": mc.window(30, 30) | mc.global_tokens([3, 70, 71, 150, 222]),
    "columns": mc.causal() & (mc.window(30) | mc.global_tokens([3, 70, 71, 150, 222]).columns),
}


@pytest.mark.parametrize("mask", LISTED)
@pytest.mark.parametrize("name", ["slopes", "relative", "bias", "gate", "cap"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "simt"])
def test_parts_over_listed_tokens(target, name, mask):
    """A formula is given the tokens of lists, and tables get gradients from all parts."""
    n_q, n_kv, dtype = 270, 300, torch.bfloat16
    live = torch.from_numpy(LISTED[mask].dense(n_q, n_kv)).to(DEVICE)
    score_mod, own = learned(name, n_q, n_kv)
    (q, k, v), dout = tensors(n_q, n_kv, 64, dtype)
    score = mc.from_score_mod(score_mod)
    made = LISTED[mask].compile(64, dtype="bfloat16", target=target, score=score)
    attn = CompiledMask(made.bundle, target, in_parts=True, held=made.held, inputs=score.inputs)
    judged(attn(q, k, v), [q, k, v, *own], dout, score_mod, live)
    assert any(name.startswith("part2" if mask == "both" else "part1")
               for name, _, _ in attn.all_reports)  # fmt: skip


@pytest.mark.parametrize("name", ["slopes", "relative", "bias", "gate", "cap"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("block", [1, 64])
def test_chosen_keys(name, target, block):
    """Keys that heads choose together are gathered, blocks are listed on the device."""
    needs_hopper(target)
    n = 500
    mask = mc.topk(max(3, 70 // block), mc.causal(), block=block, score="given", share="all")
    mask |= mc.window(5)
    scores = torch.rand(n, -(-n // block), device=DEVICE)
    live = torch.from_numpy(mask.dense(n, n, scores=scores.cpu().numpy())).to(DEVICE)
    score_mod, own = learned(name, n, n)
    (q, k, v), dout = tensors(n, n, 128, torch.bfloat16)
    attn = mask.compile(128, target=target, score=mc.from_score_mod(score_mod))
    assert attn.target.name == target
    judged(attn(q, k, v, scores=scores), [q, k, v, *own], dout, score_mod, live)
    assert all(source.startswith(target) for source, _, _ in attn.all_reports)


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
            out = attn(q, k, v, rows=rows)
        rows.mul_(-1)
        right = attn(q, k, v, rows=rows)
        graph.replay()
        assert torch.equal(out, right)


# ------------------------------------------------------------------ decoding


def t5_slow(s, b, h, i, j, n_q, n_kv, bias):
    distance = i + n_kv - n_q - j
    large = 16 + (torch.log(distance.clamp(min=1).double() / 16) / np.log(8) * 16).long()
    return s + bias[torch.where(distance < 16, distance, large.clamp(max=31)).clamp(min=0), h]


def decoded(name, heads, n_q, n_kv):
    """(formula, what it reads, score_mod in PyTorch)."""
    slopes = torch.exp2(-torch.arange(1, heads + 1, device=DEVICE) * 8.0 / heads)
    bias = torch.randn(32, heads, device=DEVICE)
    pairs = torch.randn(B, heads, n_q, n_kv, device=DEVICE)
    return {
        "alibi": (
            mc.scores.alibi(), {"slopes": slopes},
            lambda s, b, h, i, j: s - slopes[h] * (i + n_kv - n_q - j).abs(),
        ),
        "t5": (
            mc.scores.t5(), {"bias": bias},
            lambda s, b, h, i, j: t5_slow(s, b, h, i, j, n_q, n_kv, bias),
        ),
        "bias": (mc.scores.bias(), {"bias": pairs}, lambda s, b, h, i, j: s + pairs[b, h, i, j]),
        "soft-cap": (mc.scores.soft_cap(5.0), {}, lambda s, b, h, i, j: 5 * torch.tanh(s / 5)),
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", ["alibi", "t5", "bias", "soft-cap"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("n_q", "n_kv", "group"), [(1, 700, 8), (4, 5000, 4), (16, 333, 4)])
def test_few_queries(name, target, dim, n_q, n_kv, group):
    """Rows of one tile are of several heads, and know their query, head and distance."""
    needs_hopper(target)
    score, tables, score_mod = decoded(name, 2 * group, n_q, n_kv)
    attn = mc.causal().compile(dim, dtype="bfloat16", target=target, score=score)
    q = torch.randn(B, 2 * group, n_q, dim, device=DEVICE).bfloat16()
    k, v = (torch.randn(B, 2, n_kv, dim, device=DEVICE).bfloat16() for _ in range(2))
    live = torch.from_numpy(mc.causal().dense(n_q, n_kv)).to(DEVICE)
    out = attn(q, k, v, **tables)
    right = eager(score_mod, live, q, k, v)
    assert (out - right).abs().max() <= 0.02 * max(1.0, right.abs().max().item())
    if target == "sm_90a":
        assert any(mode == "pack_gqa" for _, mode, _ in attn.all_reports)


# ------------------------------------------------------------------ data on the device


N = 900


def data_masks():
    generator = torch.Generator(DEVICE).manual_seed(3)
    ids = (torch.rand(B, N, generator=generator, device=DEVICE) < 0.01).cumsum(1)
    pad = torch.arange(N, device=DEVICE) < torch.tensor([[700], [N]], device=DEVICE)
    same = ids[:, :, None] == ids[:, None]
    table = torch.rand(15, 15, generator=generator, device=DEVICE) < 0.4
    table |= torch.eye(15, dtype=torch.bool, device=DEVICE)
    causal = torch.ones(N, N, dtype=torch.bool, device=DEVICE).tril()
    blocks = table.repeat_interleave(64, 0).repeat_interleave(64, 1)[:N, :N]
    return {
        "documents": (mc.documents("x") & mc.causal(), ids, same & causal),
        "padding": (mc.flags("x") & mc.causal(), pad, pad[:, None] & causal),
        "blocks": (mc.block_table("x", 64) & mc.causal(), table, (blocks & causal)[None]),
    }


@pytest.mark.parametrize("name", ["documents", "padding", "blocks"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "simt"])
@pytest.mark.parametrize("kind", ["formula", "dropout", "both"])
def test_data_on_the_device(name, target, kind):
    """Both passes wait for nothing, and a graph reads what arrays hold when it is replayed."""
    needs_hopper(target)
    mask, data, live = data_masks()[name]
    rows = torch.randn(H, 2 * N, device=DEVICE)
    score = None if kind == "dropout" else mc.scores.relative(furthest=N - 1)
    tables = {} if score is None else {"bias": rows[:, : 2 * N - 1].contiguous()}
    options = {} if kind == "formula" else {"dropout_p": 0.2, "dropout_seed": 11}
    attn = mask.compile(64, dtype="bfloat16", target=target, score=score)
    (q, k, v), dout = tensors(N, N, 64, torch.bfloat16)

    def both(x):
        results = attn(q, k, v, return_lse=True, x=x, **tables, **options)
        return *results, *attn.backward(q, k, v, *results, dout, x=x, **tables, **options)

    with torch.no_grad():
        first = both(data)
        torch.cuda.synchronize()
        with no_waiting():
            again = both(data.clone())
        host = both(data.cpu().numpy())
        for number, (one, two, three) in enumerate(zip(first, again, host, strict=True)):
            largest = max(1.0, three.abs().nan_to_num(0, 0).max().item())
            assert torch.isfinite(one).any()
            torch.testing.assert_close(one, three, atol=0.03 * largest, rtol=0.03)
            if number < 2:
                assert torch.equal(one, two)
        if kind == "formula":
            bias = tables["bias"]

            def score_mod(s, b, h, i, j):
                return s + bias[h, i - j + N - 1]

            right = eager(score_mod, live[:, None], q, k, v).nan_to_num(0)
            assert (first[0] - right).abs().max() <= 0.03
        kept = data.clone()
        graph = torch.cuda.CUDAGraph()
        both(kept)
        with torch.cuda.graph(graph):
            results = both(kept)
        kept.copy_(torch.ones_like(kept))
        graph.replay()
        right = both(torch.ones_like(kept))
        for one, two in zip(results, right, strict=True):
            largest = max(1.0, two.abs().nan_to_num(0, 0).max().item())
            torch.testing.assert_close(one, two, atol=0.03 * largest, rtol=0.03)


# ------------------------------------------------------------------ torch.compile


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_in_one_graph(backend, monkeypatch):
    torch._dynamo.reset()
    # Inductor would start a pool of compiling processes in each test worker.
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    rows = torch.randn(H, 2 * 300, device=DEVICE, requires_grad=True)
    score = mc.score(lambda s, q, k, h: s * mc.param("rate", 0.5) + mc.table("rows")[h, q - k])
    mask = mc.causal()

    def call(q, k, v):
        return mc.attention(q, k, v, mask, score=score, rows=rows, rate=0.25)

    found = []
    for run in (call, torch.compile(call, fullgraph=True, backend=backend)):
        (q, k, v), dout = tensors(300, 300, 64, torch.bfloat16)
        rows.grad = None
        out = run(q, k, v)
        out.backward(dout)
        found.append([out, q.grad, k.grad, v.grad, rows.grad.clone()])
    for one, two in zip(*found, strict=True):
        largest = max(1.0, one.abs().max().item())
        assert (one - two).abs().max() <= 0.01 * largest
