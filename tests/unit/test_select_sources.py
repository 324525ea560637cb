"""Sources that choose blocks on the device: they compile, no GPU needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import SourceUnit
from maskc.core.target import TARGETS
from maskc.ir.heads import fixed_heads
from maskc.layout.topk.sizes import ROWS, shared_bytes
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
