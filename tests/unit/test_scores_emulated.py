"""Score formulas on CUDA cores, whole, where no GPU is: both passes in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.reference.attention import attention
from maskc.reference.scores import ScoreOf
from tests.support.emulated import emulated_module  # noqa: F401
from tests.support.scores import FORMULAS, judged_passes
from tests.support.thorough import more


def judged(name, n=70, deterministic=False, mask=None, **options):
    """Both passes in fp32 against the reference in fp64; the gradients."""
    mask = mask or mc.causal()
    score, data = FORMULAS[name](n, n, 2, 2)
    generator = torch.Generator().manual_seed(0)
    q, dout = (torch.randn((2, 2, n, 16), generator=generator) for _ in range(2))
    k, v = (torch.randn((2, 1, n, 16), generator=generator) for _ in range(2))
    attn = mask.compile(16, dtype="float32", target="simt", score=score)
    assert attn.target.name == "simt"
    _, results = judged_passes(
        attn, (q, k, v, dout), mask.dense(n, n), score=score, data=data,
        deterministic=deterministic, **options,
    )  # fmt: skip
    return results


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


# ------------------------------------------------------------------ integers of 64 bits

IDS = mc.score(lambda s, q, k: s + mc.table("bias")[mc.table("ids", integer=True)[k] % 4])


def asked(ids, count=1):
    """`count` calls with these ids: the last result, and how often the host read extremes."""
    attn = mc.causal().compile(16, dtype="float32", target="simt", score=IDS)
    torch.manual_seed(0)
    x, bias = torch.randn(1, 1, 40, 16), torch.arange(4.0)
    reads = []

    def reading(self, *args):
        reads.append(self)
        return aminmax(self, *args)

    aminmax = torch.Tensor.aminmax
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "aminmax", reading)
        out = [attn(x, x, x, ids=ids, bias=bias) for _ in range(count)][-1]
    return out, len(reads)


def test_integers_of_64_bits_are_read_once():
    ids = torch.arange(40) * 3 - 5
    right, never = asked(ids.int())
    out, once = asked(ids, count=3)
    assert torch.equal(out, right)
    assert (never, once) == (0, 1)


def test_integers_that_are_written_are_read_again():
    ids, bias = torch.arange(40), torch.arange(4.0)
    attn = mc.causal().compile(16, dtype="float32", target="simt", score=IDS)
    x = torch.randn(1, 1, 40, 16)
    before = attn(x, x, x, ids=ids, bias=bias)
    ids += 1
    assert torch.equal(attn(x, x, x, ids=ids, bias=bias), attn(x, x, x, ids=ids.int(), bias=bias))
    assert not torch.equal(attn(x, x, x, ids=ids, bias=bias), before)
    ids[7] = 2**32 + 1
    with pytest.raises(mc.MaskcError, match=r"MC305 ids .* reach from 1 to 4294967297"):
        attn(x, x, x, ids=ids, bias=bias)


def test_integers_that_nobody_counts():
    """Formulas read tensors of inference mode as they are now, and unsigned integers of 64 bits."""
    with torch.inference_mode():
        ids = torch.arange(40)
    for one in (ids, torch.arange(40).to(torch.uint64)):
        with pytest.raises(mc.MaskcError, match=r"MC443 ids  'ids' is u?int64 on"):
            asked(one)
    assert asked(ids.int())[1] == 0
