"""Sources in E4M3 through NVRTC: no spill, and products of bytes that run side by side."""

from __future__ import annotations

import pytest

import maskc as mc
from maskc import driver
from maskc.core.problem import Feature
from maskc.core.target import Target
from tests.support import sass
from tests.support.ledger import build

SM_90A = Target.named("sm_90a")
CAUSAL = mc.causal()
MASKS = {
    "intervals": CAUSAL & (mc.sinks(4) | mc.window(255)),
    "pairs": mc.where(lambda q, k: (q * 7 + k * 3) % 5 < 2) | mc.random_blocks(64, 3, 1),
    "relative bits": CAUSAL & mc.dilated(100, stride=3),
    "documents": CAUSAL & mc.documents("doc"),
}
ALL = frozenset({Feature.softcap, Feature.alibi, Feature.sinks})
SPILLED = {("softcap", "persistent"): 16}
"""Bytes that kernels at D 64 store at most, by feature and mode: three warpgroups compute there, so
each thread has 160 registers. NVRTC 13.5."""


def unit_of(mask, head_dim):
    problem = driver.problem(head_dim, None, 4, "float8_e4m3fn")
    (unit,) = driver.emit_bundle(driver.plan_kernel(mask, problem, SM_90A)).units
    return unit


def judge(unit, features=frozenset()):
    dim = int(unit.source.partition("head_dim ")[2].partition(",")[0])
    for mode, _ in unit.modes:
        binary = build(unit, features, unit.directions, mode=mode)
        assert "C75" not in binary.report.log
        spilled = SPILLED.get(("+".join(x.name for x in features), mode), 0) if dim == 64 else 0
        spills = binary.report.spills()
        assert spilled or not spills
        assert sum(kernel.spill_stores for kernel in spills) <= spilled
        entries = {kernel.name for kernel in binary.report.kernels}
        assert entries == {"attention_forward", "attention_merge", "attention_transpose_v"}
        if sass.disassembler() is None:
            continue
        entry = "attention_forward"
        assert not binary.count("HGMMA")
        assert spills or not any(binary.count(op) for op in ("LDL", "STL"))
        products, begun = binary.count("QGMMA", entry), binary.count(r"WARPGROUP\.ARRIVE", entry)
        assert products == 2 * (dim + unit.tile.k) // 32  # the loop, its first step and its last
        assert 2 * begun <= products


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_plain(head_dim):
    unit = unit_of(MASKS["intervals"], head_dim)
    judge(unit)
    assert ("SUM_TILES = 0" in unit.source) == (head_dim == 256)  # no room for sums


@pytest.mark.parametrize("name", ["pairs", "relative bits", "documents"])
def test_masks(name):
    judge(unit_of(MASKS[name], 128))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_features(head_dim):
    judge(unit_of(CAUSAL, head_dim), ALL)


@pytest.mark.matrix
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_matrix(name, head_dim):
    for features in ({Feature.softcap}, {Feature.alibi}, {Feature.sinks}, {Feature.wide}):
        judge(unit_of(MASKS[name], head_dim), frozenset(features))


def test_other_sources_have_no_trace_of_it():
    problem = driver.problem(128, None, 4, "bfloat16")
    for unit in driver.emit_bundle(driver.plan_kernel(CAUSAL, problem, SM_90A)).units:
        assert not any(word in unit.text for word in ("FP8", "descale", "e4m3"))
        assert "descale" not in unit.source
