"""Formulas of the score on CUDA cores, whole, where no GPU is: both passes in the emulator."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskc as mc  # noqa: E402
from maskc.reference.attention import attention, gradients  # noqa: E402
from maskc.reference.scores import ScoreOf  # noqa: E402
from maskc.testing.emulator import machine  # noqa: E402
from tests.support.hopper import nan_memory  # noqa: E402
from tests.support.scores import FORMULAS, close  # noqa: E402
from tests.support.thorough import more  # noqa: E402


@pytest.fixture(scope="module")
def device():
    with pytest.MonkeyPatch.context() as patch, nan_memory():
        yield machine.install(patch)


pytestmark = pytest.mark.usefixtures("device")


def judged(name, n=70, deterministic=False, mask=None, **options):
    """Both passes in fp32 against the reference in fp64; the gradients."""
    mask = mask or mc.causal()
    score, data = FORMULAS[name](n, n, 2, 2)
    generator = torch.Generator().manual_seed(0)
    q, dout = (torch.randn((2, 2, n, 16), generator=generator) for _ in range(2))
    k, v = (torch.randn((2, 1, n, 16), generator=generator) for _ in range(2))
    tables = {key: torch.from_numpy(x) for key, x in data.items()}
    attn = mask.compile(16, dtype="float32", target="simt", score=score)
    assert attn.target.name == "simt"
    out, lse = attn(q, k, v, return_lse=True, **tables, **options)
    made, live = ScoreOf(score.inputs, data, n, n), mask.dense(n, n)
    given = [x.numpy() for x in (q, k, v)]
    wanted = {"alpha": 1.5} if "normalizer" in options else {}
    right, right_lse = attention(*given, live, score=made, **wanted)
    close(out, right)
    close(lse, right_lse)
    exact = gradients(*given, live, dout.numpy(), score=made, **wanted)
    found = attn.backward(
        q, k, v, out, lse, dout, deterministic=deterministic, **tables, **options
    )  # fmt: skip
    own = [f"d {key}" for key in attn.trainable if key in tables]
    for key, gradient in zip(["dq", "dk", "dv", *own], found, strict=True):
        close(gradient, exact[key], key)
    return found


@pytest.mark.parametrize(
    "name", ["relative table", more("bias"), "gate", more("twice"), "pieces", "waves", "hidden"]
)
def test_formulas(name):
    judged(name)


@pytest.mark.parametrize("name", [more("buckets"), "relative table"])
def test_the_same_bits(name):
    """Blocks run in another order every time; exact sums do not show it."""
    one, two = (judged(name, 130, deterministic=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_entmax():
    judged("relative table", normalizer="entmax")


def test_it_stands_in_where_a_family_has_no_formulas():
    """Tensor cores take 16-bit numbers, and rows of some lengths."""
    score, _ = FORMULAS["soft-cap"](8, 8, 2, 2)
    for target in ("sm_80", "sm_90a", "sm_120"):
        attn = mc.causal().compile(64, dtype="float32", target=target, score=score)
        assert attn.target.name == "simt"
        assert "sm_80 and sm_90a have no such kernel" in " ".join(attn.explain().split())


def test_dtypes_are_those_of_tensors():
    score, data = FORMULAS["relative table"](70, 70, 2, 2)
    attn = mc.causal().compile(16, dtype="bfloat16", target="simt", score=score)
    q, k, v = (torch.randn(1, 2, 70, 16).bfloat16() for _ in range(3))
    out = attn(q, k, v, bias=torch.from_numpy(data["bias"]).bfloat16())
    made = ScoreOf(
        score.inputs, {"bias": torch.from_numpy(data["bias"]).bfloat16().float()}, 70, 70
    )
    right, _ = attention(*(x.float().numpy() for x in (q, k, v)), mc.causal().dense(70), score=made)
    assert np.abs(out.float().numpy() - right).max() < 0.02
