"""Kernels on CUDA cores on a card: every dtype, head dimension and feature against fp64.

Run with `make test-gpu`. fp32 is held to 1e-5 of the largest value or term, both passes.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import Phase, assume, given, seed, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.testing.strategies import masks
from maskc.verify.samples import sample_data
from tests.support import exact_entmax, simt
from tests.support.exact_attention import (
    DEVICE,
    called,
    fits,
    heads_of,
    live_pairs,
    results,
    vectors,
)

HEADS = 4
DIMS = [(1, 1), (7, 33), (16, 16), (33, 7), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256),
        (320, 64), (512, 512)]  # fmt: skip
SIZES = [(1, 1), (63, 64), (65, 65), (129, 128), (40, 300), (300, 40), (1, 257), (257, 1)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FEATURES = [{}, {"softcap": 3.0}, {"alibi_slopes": True}, {"sink_logits": True},
            {"softcap": 3.0, "alibi_slopes": True, "sink_logits": True}]  # fmt: skip


made = partial(simt.made, batch=2, heads=HEADS, kv_heads=HEADS // 2, device=DEVICE)


def judged(attn, tensors, live, data=None, **features):
    """Call simt.judged; features of heads are named."""
    names = [name for name in ("alibi_slopes", "sink_logits") if name in features]
    return simt.judged(attn, tensors, live, data, **{**features, **vectors(names, HEADS)})


def table(n_q, n_kv, share, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.rand((n_q, n_kv), generator=generator, device=DEVICE) < share


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_head_dimensions(dims, dtype):
    attn = simt.TABLE.compile(dims[0], head_dim_v=dims[1], dtype=dtype, target="simt")
    for number, (n_q, n_kv) in enumerate(SIZES):
        live = table(n_q, n_kv, (0.02, 0.5, 1.0)[number % 3], number)
        judged(attn, made(n_q, n_kv, *dims, dtype, number), live[None], {"t": live})


@pytest.mark.parametrize("features", FEATURES, ids=lambda x: "+".join(x) or "none")
@pytest.mark.parametrize("dim", [64, 128])
def test_features(dim, features):
    mask = mc.causal() & (mc.window(90) | mc.sinks(3))
    attn = mask.compile(dim, dtype="float32", target="simt")
    for n_q, n_kv in SIZES:
        live = live_pairs(mask, n_q, n_kv)
        judged(attn, made(n_q, n_kv, dim, dim, torch.float32), live, **features)


@pytest.mark.parametrize("part", range(12))
def test_random_masks(part):
    @seed(part)
    @settings(max_examples=5, database=None, phases=[Phase.generate])
    @given(masks(), st.sampled_from(SIZES), st.sampled_from([16, 80]), st.integers(0, 2**31))
    def run(mask, sizes, dim, number):
        heads = heads_of(mask, HEADS)
        assume(heads == HEADS and fits(mask, heads))
        data = sample_data(mask, *sizes, number)
        live = live_pairs(mask, *sizes, data, heads=heads)
        attn = mask.compile(dim, dtype="float32", n_heads=heads, target="simt")
        judged(attn, made(*sizes, dim, dim, torch.float32, number), live, data)

    run()


def test_fp32_tensors_find_it_and_have_gradients():
    q, k, v, dout = made(200, 200, 80, 80, torch.float32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mc.attention(*leaves, mc.causal()).backward(dout)
    found = [x.grad for x in leaves]
    exact = results(*(x.detach() for x in leaves), dout, live_pairs(mc.causal(), 200, 200),
                    torch.float64)  # fmt: skip
    for x, name in zip(found, ("dq", "dk", "dv"), strict=True):
        assert (x.double() - exact[name]).abs().max() <= 1e-5 * exact[name].abs().max()
    for target in ("sm_80", "sm_90a", None):
        assert mc.causal().compile(80, dtype="float32", target=target).target.name == "simt"


@pytest.mark.parametrize("alpha", [1.001, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("dim", [64, 192])
def test_entmax(dim, alpha):
    attn = simt.TABLE.compile(dim, dtype="float32", target="simt")
    live = table(300, 280, 0.3)
    live[7] = False
    tensors = made(300, 280, dim, dim, torch.float32)
    exact_entmax.check(attn, tensors, live[None], alpha, {"t": live})


def test_chosen_keys_with_entmax():
    """Single keys, chosen by the host, which waits; both passes."""
    mask = mc.topk(8, of=mc.causal(), score="given", share="all")
    scores = torch.rand((1, 1, 150, 150), device=DEVICE)
    attn = mask.compile(64, dtype="float32", target="simt")
    live = live_pairs(mask, 150, 150, {"scores": scores.cpu().numpy()})
    tensors = made(150, 150, 64, 64, torch.float32, batch=1)
    judged(attn, tensors, live, {"scores": scores})
    exact_entmax.check(attn, tensors, live, 1.5, {"scores": scores})


def test_the_same_bits_on_every_run():
    attn = simt.TABLE.compile(128, dtype="float32", target="simt")
    tensors, live = made(500, 500, 128, 128, torch.float32), table(500, 500, 0.3)
    features = {"softcap": 2.0, **vectors(["alibi_slopes", "sink_logits"], HEADS)}
    runs = [called(attn, *tensors, data={"t": live}, **features) for _ in range(3)]
    for name, x in runs[0].items():
        assert all(torch.equal(x, run[name]) for run in runs), name


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_no_numbers(value):
    heads = {"batch": 2, "heads": HEADS, "kv_heads": HEADS // 2}
    simt.values_that_are_no_numbers(value, 64, DEVICE, **heads)


def test_lengths_that_need_more_than_16_or_31_bits():
    """65537 tokens; and views whose last rows lie beyond 2^31 elements."""
    mask = mc.causal() & mc.window(20)
    attn = mask.compile(8, dtype="float32", target="simt")
    for n in (65535, 65536, 65537):
        q, k, v, _ = made(n, n, 8, 8, torch.float32, batch=1)
        out = attn(q, k, v)
        last = attn(q[:, :, -30:], k[:, :, -60:], v[:, :, -60:])
        torch.testing.assert_close(out[:, :, -30:], last, rtol=1e-5, atol=1e-6)
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("not enough memory")
    step = (1 << 31) // 64 + 8
    wide = torch.zeros(64 * step + 64, device=DEVICE)
    q, k, v, _ = made(65, 65, 8, 8, torch.float32, batch=1, kv_heads=HEADS)
    want = attn(q, k, v)
    for number in range(3):
        given = [q, k, v]
        given[number] = wide.as_strided(given[number].shape, (64, 16, step, 1))
        given[number].copy_((q, k, v)[number])
        assert torch.equal(attn(*given), want)


def test_a_graph_and_no_waiting():
    mask = mc.causal() & mc.window(100)
    attn = mask.compile(64, dtype="float32", target="simt")
    tensors = made(300, 300, 64, 64, torch.float32)
    want = called(attn, *tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        computed = called(attn, *tensors)
    graph.replay()
    for name, x in want.items():
        assert torch.equal(x, computed[name]), name
