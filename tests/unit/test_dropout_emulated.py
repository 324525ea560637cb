"""Dropout on GPUs, whole, where there is none: kernels in the emulator."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskc as mc  # noqa: E402
from maskc.reference.attention import attention, gradients  # noqa: E402
from maskc.reference.dropout import factors  # noqa: E402
from maskc.testing.emulator import machine  # noqa: E402
from tests.support.hopper import nan_memory  # noqa: E402
from tests.support.scores import close  # noqa: E402


@pytest.fixture(scope="module")
def device():
    with pytest.MonkeyPatch.context() as patch, nan_memory():
        yield machine.install(patch)


pytestmark = pytest.mark.usefixtures("device")
SEED = 0x123456789ABCDEF


def judged(target, dtype, dim, n_q, n_kv, mask=None, tolerance=2e-5, p=0.3, deterministic=False,
           **options):  # fmt: skip
    """Both passes against the reference in fp64 with the factors of the definition."""
    mask = mask or mc.causal()
    generator = torch.Generator().manual_seed(0)
    to = getattr(torch, dtype)
    q, dout = (torch.randn((2, 2, n_q, dim), generator=generator).to(to) for _ in range(2))
    k, v = (torch.randn((2, 1, n_kv, dim), generator=generator).to(to) for _ in range(2))
    attn = mask.compile(dim, dtype=dtype, target=target)
    seed = torch.tensor([SEED])  # lies where the kernel reads it
    drops = {"dropout_p": p, "dropout_seed": seed}
    out, lse = attn(q, k, v, return_lse=True, **drops, **options)
    found = attn.backward(
        q, k, v, out, lse, dout, deterministic=deterministic, **drops, **options
    )  # fmt: skip
    again = attn(q, k, v, dropout_p=p, dropout_seed=SEED, **options)
    assert torch.equal(out, again)
    given, live = [x.float().numpy() for x in (q, k, v)], mask.dense(n_q, n_kv)
    wanted = {**options, "dropout": factors(p, SEED, 2, 2, n_q, n_kv)}
    if wanted.pop("normalizer", None):
        wanted["alpha"] = 1.5
    right, right_lse = attention(*given, live, **wanted)
    close(out.float().numpy(), right, "out", tolerance)
    close(lse, right_lse, "lse", tolerance)
    exact = gradients(*given, live, dout.float().numpy(), **wanted)
    for key, gradient in zip(["dq", "dk", "dv"], found, strict=True):
        close(gradient.float().numpy(), exact[key], key, tolerance)
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


@pytest.mark.parametrize("dim", [64, 128])
def test_hopper(dim):
    attn = judged("sm_90a", "bfloat16", dim, 200, 200, tolerance=0.01)
    assert attn.dropping.target.name == "sm_90a"


# ------------------------------------------------------------------ sm_80


@pytest.mark.parametrize("dim", [64, 128])
def test_sm_80(dim):
    attn = judged("sm_80", "bfloat16", dim, 130, 150, tolerance=0.01)
    assert attn.dropping.target.name == "sm_80"


def test_sm_80_entmax_and_the_same_bits():
    judged("sm_80", "bfloat16", 64, 100, 100, tolerance=0.01, normalizer="entmax")
    judged("sm_80", "bfloat16", 64, 100, 100, tolerance=0.01, deterministic=True)
