"""Entmax over keys chosen one by one, all passes, on GPUs in emulation: against fp64."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.testing.emulator import machine
from tests.support.chosen_keys import PASSES, TARGETS, check_entmax
from tests.support.hopper import nan_memory
from tests.support.thorough import alternating, chiefly, more

SMALL = ["causal", "union", "union that is tested", "none", "less is more", "documents", "heads"]
LARGE = [name for name in PASSES if name not in SMALL and name != "logits"]


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    with nan_memory():
        yield machine.install(monkeypatch)


@pytest.mark.parametrize(
    ("name", "target"), alternating(chiefly([*SMALL, *LARGE], "union", "documents"), TARGETS)
)
def test_passes(name, target):
    check_entmax(name, target=target)


@pytest.mark.parametrize(
    ("alpha", "target"), alternating([1.001, 1.25, more(2.0), more(1.75)], TARGETS)
)
def test_alphas(alpha, target):
    check_entmax("causal", alpha, target=target)


@pytest.mark.parametrize("target", ["sm_90a", more("sm_80")])
def test_logits(target):
    slopes = torch.rand(4)
    check_entmax("union", target=target, softcap=3.0, alibi_slopes=slopes)


@pytest.mark.parametrize("target", TARGETS)
def test_the_chosen_keys_decide_not_entmax_over_all(target):
    """With scores so close that entmax would give weight to every key, `top` of them have one."""
    n, top = 130, 7
    q, k, v = (torch.randn(1, 1, n, 64, dtype=torch.bfloat16) for _ in range(3))
    q, k = ((x * 4).round() / 64 for x in (q, k))
    attn = mc.topk(top, mc.full()).compile(64, target=target)
    _, lse = attn(q, k, v, return_lse=True, normalizer="entmax", alpha=1.5)
    x = (1 + 0.5 * (q.float() @ k.float().mT / 8 - lse[..., None])).clamp(min=0)
    assert ((x > 0).sum(-1) > top).all()
    kept = (q.float() @ k.float().mT).topk(top).values[..., -1:]
    assert (x.square() * (q.float() @ k.float().mT >= kept)).sum(-1).min() > 0.99
