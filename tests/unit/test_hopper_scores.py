"""Formulas of the score in Hopper's forward pass, which the emulator runs.

No call takes these kernels yet: formulas run on CUDA cores, as a backward pass has to have them,
too. So that the logits of Hopper can take a formula as well as features is tested here alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskc as mc  # noqa: E402
from maskc import driver  # noqa: E402
from maskc.core import target  # noqa: E402
from maskc.core.problem import Direction, Feature  # noqa: E402
from maskc.reference.attention import attention  # noqa: E402
from maskc.reference.scores import ScoreOf  # noqa: E402
from maskc.testing.emulator import machine  # noqa: E402
from tests.support.hopper import nan_memory  # noqa: E402
from tests.support.scores import FORMULAS  # noqa: E402

BAND = mc.causal() & (mc.sinks(3) | mc.window(40))


@pytest.fixture
def scored(monkeypatch):
    """Targets with tensor cores take formulas; sm_80 only goes along."""
    for name in ("sm_80", "sm_90a"):
        known = replace(target.TARGETS[name], scores=True)
        monkeypatch.setitem(target.TARGETS, name, known)


@pytest.mark.parametrize(
    ("mask", "name", "n"),
    [(BAND, "bias", 130), (mc.block_diagonal(4), "pieces", 70), (mc.causal(), "gate", 200)],
    ids=["band", "tiles of 16", "causal"],
)
def test_forward(mask, name, n, scored, monkeypatch):
    score, data = FORMULAS[name](n, n, 2, 2)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((2, 2, n, 64), generator=generator).bfloat16()
    k, v = (torch.randn((2, 1, n, 64), generator=generator).bfloat16() for _ in range(2))
    tables = {key: torch.from_numpy(x) for key, x in data.items()}
    with nan_memory():
        machine.install(monkeypatch)
        attn = mask.compile(64, dtype="bfloat16", target="sm_90a", score=score)
        assert attn.target.name == "sm_90a"
        out, lse = attn(q, k, v, return_lse=True, **tables)
    made = ScoreOf(score.inputs, data, n, n)
    right, right_lse = attention(*(x.float().numpy() for x in (q, k, v)), mask.dense(n), score=made)
    assert np.abs(out.float().numpy() - right).max() < 0.02
    assert np.abs(lse.numpy() - right_lse).max() < 1e-3


def test_sources_name_no_feature_but_in_the_logits(scored):
    """A formula takes the place of features; without one there is no word of it."""
    score, _ = FORMULAS["bias"](8, 8, 2, 2)
    for formula in (None, score.formula):
        problem = replace(driver.problem(64, None, 4, "bfloat16"), score=formula)
        plan = driver.plan_kernel(BAND, problem, target.Target.named("sm_90a"))
        (unit, *_) = driver.emit_bundle(plan).choice("sm_90a", Direction.forward)
        assert ("score_logit" in unit.text) == (formula is not None)
        assert "WITH_SCORE" not in unit.text
        assert ("packed" in dict(unit.modes)) == (formula is None)
        assert unit.offers(frozenset({Feature.entmax}))
