"""Entmax on sm_80, forward, in the emulator: against fp64, in memory full of NaN."""

from __future__ import annotations

import pytest

import maskc as mc
from maskc.core.errors import TargetNotBuilt
from tests.emulator import machine

torch = pytest.importorskip("torch")

from tests.support.exact_attention import tensors  # noqa: E402
from tests.support.exact_entmax import check_mask  # noqa: E402
from tests.support.hopper import nan_memory  # noqa: E402

CAUSAL = mc.causal()
MASKS = {
    "full": mc.full(),
    "window": CAUSAL & mc.window(100),
    "empty rows": CAUSAL - mc.prefix(140),
    "empty tiles": mc.block_diagonal(64) - mc.prefix(64),
    "global": (CAUSAL & mc.window(9)) | mc.global_tokens([200]),
    "dilated": mc.dilated(40, stride=5),
    "per head": mc.per_head([CAUSAL, mc.window(9), mc.full(), CAUSAL]),
}
HALF = torch.float16
SMALL = {"heads": (2, 1), "batch": 1, "target": "sm_80"}


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    with nan_memory():
        yield machine.install(monkeypatch)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check_mask(MASKS[name], 230, 230, batch=1, target="sm_80")


@pytest.mark.parametrize("lengths", [(1, 1), (1, 200), (64, 64), (193, 129), (130, 260)], ids=str)
def test_lengths(lengths):
    check_mask(mc.full(), *lengths, **SMALL)
    check_mask(CAUSAL, *lengths, **SMALL)


@pytest.mark.parametrize("alpha", [1.0001, 1.001, 1.05, 1.25, 1.5, 1.75, 2.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_alphas(alpha, spread):
    """Scores that are alike, so that all keys have a weight, and scores far apart."""
    check_mask(CAUSAL, 150, 150, alpha=alpha, spread=spread, dtype=HALF, **SMALL)


@pytest.mark.parametrize("dim", [32, 96, 128, 192, 256])
def test_head_dimensions(dim):
    check_mask(CAUSAL, 150, 200, dim, dtype=HALF, **SMALL)


@pytest.mark.parametrize("dim", [64, 128])
def test_options(dim):
    slopes = torch.rand(2)
    check_mask(CAUSAL, 140, 140, dim, scale=-0.2, **SMALL)
    check_mask(CAUSAL, 140, 140, dim, softcap=3.0, **SMALL)
    check_mask(CAUSAL, 140, 140, dim, alibi_slopes=slopes, **SMALL)
    check_mask(CAUSAL, 140, 140, dim, softcap=3.0, alibi_slopes=slopes, alpha=1.25, **SMALL)


@pytest.mark.parametrize("name", ["k", "q"])
def test_a_score_that_is_no_number_makes_its_rows_none(name):
    attn = mc.full().compile(head_dim=64, target="sm_80")
    for at in (3, 300):
        q, k, v, _ = tensors(400, 400, 64, torch.bfloat16, batch=1, heads=1, kv_heads=1)
        {"q": q, "k": k}[name][0, 0, at] = torch.nan
        out, lse = attn(q, k, v, return_lse=True, normalizer="entmax")
        hit = slice(None) if name == "k" else slice(at, at + 1)
        assert out[0, 0, hit].isnan().all()
        assert lse[0, 0, hit].isnan().all()
        assert lse.isnan().sum() == (400 if name == "k" else 1)


def test_data():
    ids = torch.tensor([0] * 70 + [1] * 90 + [2] * 40).numpy()
    check_mask(CAUSAL & mc.documents("doc"), 200, 200, data={"doc": ids}, target="sm_80")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_not_with_masked_values_that_are_no_numbers(target):
    attn = CAUSAL.compile(head_dim=64, target=target)
    q, k, v, _ = tensors(70, 70, 64, torch.bfloat16, batch=1, heads=1, kv_heads=1)
    with pytest.raises(TargetNotBuilt, match="has no nan_safe forward kernels"):
        attn(q, k, v, normalizer="entmax", nan_safe=True)
