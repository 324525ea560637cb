"""Sources of what the device chooses compile without a spill: blocks and single keys."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import SourceUnit
from maskc.core.problem import Feature
from maskc.core.target import TARGETS
from maskc.ir.heads import fixed_heads
from maskc.layout.topk.sizes import ROWS, shared_bytes
from tests.support import sass
from tests.support.ledger import build

FOLDER = Path(__file__).parents[2] / "patterns"
CAUSAL = mc.causal()
MASKS = {
    "moba": lambda: mc.load(FOLDER / "moba.py")["moba"](),
    "nsa_selected": lambda: mc.load(FOLDER / "nsa_selected.py")["nsa_selected"](),
    "indexer": lambda: mc.topk(2, CAUSAL, score="indexer", block=32) | mc.sinks(1),
    "several": lambda: (
        mc.topk(1, CAUSAL, block=16) & mc.topk(2, CAUSAL, score="given", block=64)
        | mc.topk(1, mc.window(mc.param("width", 9)), block=128, q_block=64, share="all")
    ),
}
REGISTERS = 1 << 16


@cache
def source(name: str, target: str, head_dim: int, dtype: str) -> SourceUnit:
    mask = MASKS[name]()
    problem = driver.problem(head_dim, None, fixed_heads(mask) or 4, dtype)
    return driver.emit_bundle(driver.plan_kernel(mask, problem, TARGETS[target])).list_source(
        target
    )


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("target", "arch", "head_dim", "dtype"),
    [
        ("sm_90a", "sm_90a", 64, "bfloat16"), ("sm_90a", "sm_90a", 128, "float16"),
        ("sm_90a", "sm_90a", 256, "bfloat16"), ("sm_80", "sm_80", 128, "bfloat16"),
    ],
)  # fmt: skip
def test_no_spills(name, target, arch, head_dim, dtype):
    unit = source(name, target, head_dim, dtype)
    report = build(unit, frozenset(), (), arch).report
    kernels = {kernel.name: kernel for kernel in report.kernels}
    assert kernels.keys() == {launch.entry for launch in unit.mode().launches}
    assert not report.spills()
    for kernel in kernels.values():
        assert 3 * kernel.registers * 128 <= REGISTERS


def test_rows_of_a_usual_call_fit():
    """Sixteen blocks of queries, 1024 blocks of keys, where shared memory is least."""
    assert shared_bytes(128, ROWS, 1024) <= 99 * 1024


# ------------------------------------------------------------------ single keys


TOP = mc.topk(5, of=mc.causal())
SINGLE_KEYS = {
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
        for name in SINGLE_KEYS
        for dim in (64, 96, 128, 192, 256)
    ],
)
def test_sources(name, head_dim):
    assert not faults(SINGLE_KEYS[name], head_dim)


def test_bins_are_counted_by_one_instruction():
    """Nobody waits for what was there before."""
    if sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")
    unit = TOP.compile(64, target="sm_90a").bundle.chooser.units[0]
    code = build(unit, NONE, unit.directions, "sm_90a", "default")
    assert code.count(r"ATOMS\.POPC", "attention_choose") >= unit.tile.k // 2
