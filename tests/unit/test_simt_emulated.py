"""The kernels on CUDA cores, whole, where no GPU is: both passes against fp64, in the emulator.

Memory is full of NaN before a kernel writes, and the order of threads is drawn for every launch.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.runtime.launch.sequence import PartedPlan
from tests.support import exact_entmax
from tests.support.emulated import emulated_module  # noqa: F401
from tests.support.exact_attention import called, live_pairs, results, vectors
from tests.support.residues import run_in_classes
from tests.support.simt import TABLE, judged, made, values_that_are_no_numbers
from tests.support.thorough import examples, more

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FEATURES = {"softcap": 2.0, **vectors(["alibi_slopes", "sink_logits"], 2, device="cpu")}


def simt(mask, dim, dim_v=None, dtype=F32, n_heads=None):
    attn = mask.compile(dim, head_dim_v=dim_v, dtype=dtype, n_heads=n_heads, target="simt")
    assert attn.target.name == "simt"
    return attn


# ------------------------------------------------------------------ any mask, any size

CASES = [
    (1, 1, F32, {}), more(7, 33, F32, {}), (33, 7, BF16, {}), (64, 64, F16, FEATURES),
    more(80, 80, F32, FEATURES), (192, 128, F32, {}), more(512, 512, F32, {}),
]  # fmt: skip


@pytest.mark.parametrize(("dim", "dim_v", "dtype", "features"), CASES)
def test_random_masks(dim, dim_v, dtype, features):
    attn = simt(TABLE, dim, dim_v, dtype)
    lengths = st.sampled_from([1, 2, 63, 64, 65, 100, 129])

    @settings(max_examples=examples(4))
    @given(
        lengths, lengths, st.sampled_from([0.02, 0.5, 1.0]), st.integers(0, 99), st.integers(1, 2)
    )
    def check(n_q, n_kv, share, seed, batch):
        table = torch.rand((n_q, n_kv), generator=torch.Generator().manual_seed(seed)) < share
        tensors = made(n_q, n_kv, dim, dim_v, dtype, batch=batch, seed=seed)
        judged(attn, tensors, table[None], {"t": table}, **features)

    check()


def test_rows_of_few_keys():
    """Their gradients are small differences of dout . v and delta, each a long sum."""
    tensors = made(3, 3, 128, batch=8, heads=16, kv_heads=16)
    live = live_pairs(mc.causal(), 3, 3, device="cpu")
    computed = called(simt(mc.causal(), 128), *tensors)
    exact = results(*tensors, live, torch.float64)
    assert not computed["dq"][:, :, 0].any()
    error = (computed["dq"].double() - exact["dq"]).norm(dim=-1)
    assert (error <= 1e-5 * 0.66).all()  # of a row among 4096, on the average


# ------------------------------------------------------------------ kinds of masks and lists

HEADS = mc.per_head([mc.causal(), mc.window(9, 3)])
MASKS = {
    "ranges": (mc.causal() & mc.window(70), {}),
    "per head": (HEADS, {}),
    "empty rows": (mc.causal() & mc.where(lambda q, k: q % 3 > 0) - mc.prefix(20), {}),
    "documents": (mc.documents("doc") & mc.causal(), {"doc": torch.arange(150) // 40}),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mask, data = MASKS[name]
    n_heads = 2 if name == "per head" else None
    live = live_pairs(mask, 150, 150, data, heads=n_heads, device="cpu")
    judged(simt(mask, 16, n_heads=n_heads), made(150, 150, 16), live, data)


def test_queries_and_keys_apart():
    attn = simt(MASKS["ranges"][0], 16)
    for n_q, n_kv in ((70, 130), (130, 70), (1, 200), (200, 1)):
        live = live_pairs(attn._report.mask, n_q, n_kv, device="cpu")
        judged(attn, made(n_q, n_kv, 16, heads=4, kv_heads=2), live)
    out, lse = attn(*made(70, 0, 16)[:3], return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()
    tensors = made(70, 0, 16)
    dq, dk, dv = attn.backward(*tensors[:3], out, lse, tensors[3])
    assert not dq.any()
    assert dk.numel() == dv.numel() == 0
    assert attn(*made(70, 70, 16, batch=0)[:3]).shape == (0, 2, 70, 16)
    assert attn(*made(0, 70, 16)[:3]).shape == (1, 2, 0, 16)


def test_views_that_no_vector_fits():
    """Rows begin anywhere, and tokens lie before heads."""
    attn = simt(MASKS["ranges"][0], 16)
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn((1, 90, 2, 17), generator=generator) for _ in range(4)]
    tensors = [x[..., 1:].transpose(1, 2) for x in wide]
    judged(attn, tensors, live_pairs(attn._report.mask, 90, 90, device="cpu"))


def test_residue_classes(monkeypatch):
    """Parts of a mask join their results, also with what a head has of its own."""
    run_in_classes(monkeypatch)
    mask = mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4)
    attn, live = simt(mask, 16), live_pairs(mask, 150, 150, device="cpu")
    for features in ({}, {name: FEATURES[name] for name in ("alibi_slopes", "sink_logits")}):
        judged(attn, made(150, 150, 16), live, **features)
        assert isinstance(attn._last[1], PartedPlan)
    halves = simt(mask, 16, dtype=BF16)  # so few pairs that delta is summed over a part's own
    judged(halves, made(88, 88, 16, dtype=BF16), live_pairs(mask, 88, 88, device="cpu"))
    assert isinstance(halves._last[1], PartedPlan)


@pytest.mark.parametrize("block", [1, 16])
def test_chosen_keys(block):
    """Chosen by the host, one by one as well; out is that of a table with the same pairs."""
    mask = mc.topk(3, of=mc.causal(), block=block, score="given")
    scores = torch.rand((1, 1, 90, 90 // block + (90 % block > 0)))
    attn, tensors = simt(mask, 16), made(90, 90, 16)
    pairs = live_pairs(mask, 90, 90, {"scores": scores.numpy()}, device="cpu")
    judged(attn, tensors, pairs, {"scores": scores})


# ------------------------------------------------------------------ features


@pytest.mark.parametrize("alpha", [1.001, 1.25, 1.5, 2.0])
def test_entmax(alpha):
    attn, tensors = simt(TABLE, 24), made(100, 90, 24)
    table = torch.rand((100, 90), generator=torch.Generator().manual_seed(1)) < 0.3
    table[5] = False
    slopes = FEATURES["alibi_slopes"]
    exact_entmax.check(attn, tensors, table[None], alpha, {"t": table}, alibi_slopes=slopes)


def test_the_same_bits_on_every_run():
    """Threads run in another order; sums do not. Gradients per head are no exception."""
    attn, tensors = simt(TABLE, 80), made(129, 129, 80, batch=2)
    table = torch.rand((129, 129)) < 0.5
    runs = [called(attn, *tensors, data={"t": table}, **FEATURES) for _ in range(2)]
    for name, x in runs[0].items():
        assert torch.equal(x, runs[1][name]), name


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_no_numbers(value):
    attn, (q, k, v), sees = values_that_are_no_numbers(value, 24)
    v[:, :, 20] = 0
    k[:, :, 20] = torch.nan
    for nan_safe in (False, True):
        out = attn(q, k, v, nan_safe=nan_safe)
        assert out[:, :, sees].isnan().all()
        assert out[:, :, ~sees].isfinite().all()


def test_a_scale_of_any_sign():
    attn, tensors = simt(MASKS["ranges"][0], 16), made(70, 70, 16)
    live = live_pairs(attn._report.mask, 70, 70, device="cpu")
    for scale in (0.0, -0.4, 3.0):
        judged(attn, tensors, live, scale=scale)
