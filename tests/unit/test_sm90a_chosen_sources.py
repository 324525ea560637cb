"""Sources for keys chosen one by one compile under NVRTC without a spill; no GPU is needed."""

from __future__ import annotations

import pytest

import maskc as mc
from maskc.core.problem import Feature
from tests.support import sass
from tests.support.ledger import build

TOP = mc.topk(5, of=mc.causal())
MASKS = {
    "intervals": TOP | mc.window(7),
    "tested": mc.topk(5, of=mc.causal() & mc.documents("d")) | mc.sinks(3),
}
NONE, LOGITS = frozenset(), frozenset({Feature.softcap, Feature.alibi, Feature.sinks})
ENTMAX = frozenset({Feature.entmax})


def sources(mask, head_dim):
    """(unit, features, mode) of everything that a call may run."""
    bundle = mask.compile(head_dim, target="sm_90a").bundle
    (chooser,) = bundle.chooser.units
    yield chooser, NONE, "default"
    forward, backward = bundle.units
    for features in (NONE, LOGITS, ENTMAX):
        yield forward, features, "default"
    for mode, _ in backward.modes:
        yield backward, NONE, mode
    yield backward, LOGITS, "default"


def faults(mask, head_dim):
    found = []
    for unit, features, mode in sources(mask, head_dim):
        report = build(unit, features, unit.directions, "sm_90a", mode).report
        what = f"{unit.key}, {sorted(x.name for x in features)}, {mode}"
        found += [f"{what}: {x.name} spills" for x in report.kernels if x.stack]
        found += [f"{what}: {line}" for line in report.log.splitlines() if "C75" in line]
    return found


SOME = {("tested", 64), ("tested", 128), ("tested", 256), ("intervals", 128)}
"""Compiled always; the others only where all are asked for."""


@pytest.mark.parametrize(
    ("name", "head_dim"),
    [
        pytest.param(name, dim, marks=() if (name, dim) in SOME else pytest.mark.matrix)
        for name in MASKS
        for dim in (64, 96, 128, 192, 256)
    ],
)
def test_sources(name, head_dim):
    assert not faults(MASKS[name], head_dim)


def test_bins_are_counted_by_one_instruction():
    """Nobody waits for what was there before."""
    if sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")
    unit = TOP.compile(64, target="sm_90a").bundle.chooser.units[0]
    code = build(unit, NONE, unit.directions, "sm_90a", "default")
    assert code.count(r"ATOMS\.POPC", "attention_choose") >= unit.tile.k // 2
