"""Dropout on GPUs, whole, where there is none: kernels in the emulator."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.reference.attention import attention
from maskc.reference.dropout import factors
from tests.support.emulated import emulated_module  # noqa: F401
from tests.support.scores import FORMULAS, close, judged_passes
from tests.support.thorough import more

SEED = 0x123456789ABCDEF


def judged(target, dtype, dim, n_q, n_kv, mask=None, tolerance=2e-5, p=0.3, deterministic=False,
           **options):  # fmt: skip
    """Both passes against the reference in fp64 with the factors of the definition."""
    mask = mc.causal() if mask is None else mask
    generator = torch.Generator().manual_seed(0)
    to = getattr(torch, dtype)
    q, dout = (torch.randn((2, 2, n_q, dim), generator=generator).to(to) for _ in range(2))
    k, v = (torch.randn((2, 1, n_kv, dim), generator=generator).to(to) for _ in range(2))
    attn = mask.compile(dim, dtype=dtype, target=target)
    seed = torch.tensor([SEED])  # lies where the kernel reads it
    out, _ = judged_passes(
        attn, (q, k, v, dout), mask.dense(n_q, n_kv), call={"dropout_p": p, "dropout_seed": seed},
        dropout=factors(p, SEED, 2, 2, n_q, n_kv), deterministic=deterministic,
        compare=partial(close, tolerance=tolerance), **options,
    )  # fmt: skip
    assert torch.equal(out, attn(q, k, v, dropout_p=p, dropout_seed=SEED, **options))
    return attn


@pytest.mark.parametrize("lengths", [(70, 70), (33, 150)])
def test_simt(lengths):
    assert judged("simt", "float32", 16, *lengths).dropping.target.name == "simt"


def test_simt_entmax_and_halves():
    judged("simt", "float32", 24, 70, 70, normalizer="entmax")
    judged("simt", "bfloat16", 16, 70, 70, tolerance=0.01)


@pytest.mark.parametrize("target", ["simt", "sm_80", "sm_90a"])
def test_bits_are_those_of_the_definition(target):
    """With uniform weights and one-hot values rows of out, and columns of dv, show them."""
    n, dtype = 128, torch.float32 if target == "simt" else torch.bfloat16
    zeros, values = torch.zeros(1, 2, n, n, dtype=dtype), torch.eye(n, dtype=dtype)
    values = values.expand(1, 2, n, n).contiguous()
    attn = mc.full().compile(n, dtype=str(dtype).removeprefix("torch."), target=target)
    drops = {"dropout_p": 0.25, "dropout_seed": -5}
    out, lse = attn(zeros, zeros, values, return_lse=True, **drops)
    kept = factors(0.25, -5, 1, 2, n, n)
    assert ((out.float().numpy() != 0) == (kept != 0)).all()
    np.testing.assert_allclose(n * out.float().numpy(), kept, rtol=0.01)
    dv = attn.backward(zeros, zeros, values, out, lse, values, **drops)[2]
    assert ((dv.float().numpy() != 0) == (kept != 0).swapaxes(2, 3)).all()


# ------------------------------------------------------------------ Hopper


@pytest.mark.parametrize("dim", [more(64), 128])
def test_hopper(dim):
    attn = judged("sm_90a", "bfloat16", dim, 200, 200, tolerance=0.01)
    assert attn.dropping.target.name == "sm_90a"


# ------------------------------------------------------------------ sm_80


@pytest.mark.parametrize("dim", [64, more(128)])
def test_sm_80(dim):
    attn = judged("sm_80", "bfloat16", dim, 130, 150, tolerance=0.01)
    assert attn.dropping.target.name == "sm_80"


def test_sm_80_entmax_and_the_same_bits():
    judged("sm_80", "bfloat16", 64, 100, 100, tolerance=0.01, normalizer="entmax")
    judged("sm_80", "bfloat16", 64, 100, 100, tolerance=0.01, deterministic=True)


# ------------------------------------------------------------------ with everything else


@pytest.mark.parametrize("alpha", [more(1.25), 1.5])
def test_hopper_entmax(alpha):
    """Rows of few keys are summed key by key, others tile by tile."""
    judged("sm_90a", "bfloat16", 64, 150, 300, tolerance=0.01, normalizer="entmax", alpha=alpha)


@pytest.mark.parametrize("target", [more("simt"), "sm_80", "sm_90a"])
def test_features(target):
    given = {"softcap": 3.0, "alibi_slopes": torch.tensor([0.1, 0.3])}
    judged(target, "bfloat16", 64, 100, 100, tolerance=0.01, **given)
    judged(target, "bfloat16", 64, 100, 100, tolerance=0.01, sink_logits=torch.tensor([0.5, -1.0]))


@pytest.mark.parametrize("target", ["simt", "sm_80"])
def test_what_is_hidden_stays_hidden(target):
    """With nan_safe no row meets a value that it does not see, dropped or not."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((1, 1, 80, 64), generator=generator).bfloat16() for _ in range(3))
    attn = mc.causal().compile(64, dtype="bfloat16", target=target)
    drops = {"dropout_p": 0.5, "dropout_seed": 1, "nan_safe": True}
    right = attn(q, k, v, **drops)
    v[:, :, 70:] = torch.inf
    assert torch.equal(attn(q, k, v, **drops)[:, :, :70], right[:, :, :70])


def test_hopper_in_small_tiles_streams_and_parts():
    """Other tiles, other orders, rows cut along the keys: the same bits of dropout."""
    for mask, n in ((mc.window(9), 260), (mc.sinks(2) | mc.window(40), 200)):
        judged("sm_90a", "bfloat16", 64, n, n, mask=mask, tolerance=0.01)
        judged("sm_90a", "bfloat16", 64, n, n, mask=mask, tolerance=0.01, deterministic=True)


def of_torch(mask, n, data, **options):
    """A call through torch on Hopper against the definition."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((2, 2, n, 64), generator=generator).bfloat16() for _ in range(3))
    attn = mask.compile(64, dtype="bfloat16", target="sm_90a")
    out = attn(q, k, v, dropout_p=0.3, dropout_seed=SEED, **data)
    live = mask.dense(n, **{name: x.numpy() for name, x in data.items()})
    kept = factors(0.3, SEED, 2, 2, n, n)
    right, _ = attention(*(x.float().numpy() for x in (q, k, v)), live, dropout=kept)
    close(out.float().numpy(), right, "out", 0.01)
    return attn.dropping


def test_masks_that_hopper_runs_otherwise():
    """Boxes of a grid, strides, documents and data: their usual kernels see other places."""
    box = mc.where(lambda q, k: (abs(q // 12 - k // 12) <= 2) & (abs(q % 12 - k % 12) <= 2))
    for mask in (box, mc.dilated(40, stride=3)):
        judged("sm_90a", "bfloat16", 64, 144, 144, mask=mask, tolerance=0.01)
    ids = torch.arange(150) // 37
    of_torch(mc.documents("doc") & mc.causal(), 150, {"doc": ids})
    of_torch(mc.flags("g") | mc.window(20), 150, {"g": ids == 1})


def test_chosen_keys():
    """Blocks run on Hopper; single keys, which other kernels gather, on CUDA cores."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((1, 2, 200, 64), generator=generator).bfloat16() for _ in range(3))
    drops = {"dropout_p": 0.3, "dropout_seed": SEED}
    for block, target in ((64, "sm_90a"), (1, "simt")):
        mask = mc.topk(2 if block > 1 else 20, mc.causal(), block=block,
                       score="block_mean" if block > 1 else "qk")  # fmt: skip
        attn = mask.compile(64, dtype="bfloat16", target="sm_90a")
        out, lse = attn(q, k, v, return_lse=True, **drops)
        assert attn.dropping.target.name == target
        given = [x.float().numpy() for x in (q, k, v)]
        live = mask.dense(200, n_heads=2, q=given[0], k=given[1])
        right, right_lse = attention(*given, live, dropout=factors(0.3, SEED, 1, 2, 200, 200))
        close(out.float().numpy(), right, "out", 0.01)
        close(lse, right_lse, "lse", 0.01)


def test_memory_of_arguments_is_used_again():
    """A new seed costs no tensor map: the block of a call goes where that of the last one was."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((1, 2, 64, 64), generator=generator).bfloat16() for _ in range(3))
    attn = mc.causal().compile(64, dtype="bfloat16", target="sm_90a")
    found = [attn(q, k, v, dropout_p=0.5, dropout_seed=seed) for seed in (1, 2, 1)]
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("target", [more("simt"), "sm_80", "sm_90a"])
def test_tables_of_a_score(target):
    """Their gradients see the same pairs dropped as those of q, k and v."""
    n = 100
    score, data = FORMULAS["relative table"](n, n, 2, 1)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn((1, 2, n, 64), generator=generator).bfloat16() for _ in range(4)]
    attn = mc.causal().compile(64, dtype="bfloat16", target=target, score=score)
    judged_passes(
        attn, given, mc.causal().dense(n), score=score, data=data,
        call={"dropout_p": 0.3, "dropout_seed": SEED}, dropout=factors(0.3, SEED, 1, 2, n, n),
        compare=partial(close, tolerance=0.01),
    )  # fmt: skip
    assert attn.dropping.target.name == target


def test_rows_that_two_warps_share():
    attn = judged("sm_80", "bfloat16", 512, 40, 70, tolerance=0.02)
    assert attn.dropping.target.name == "sm_80"
