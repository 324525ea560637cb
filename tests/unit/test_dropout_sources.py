"""Sources that drop weights: no spill where others have none, and no trace in the others."""

from __future__ import annotations

import pytest

import maskc as mc
from maskc import driver
from maskc.core.problem import Direction
from tests.support.ledger import build


def units(target, dropout):
    made = driver.compile(mc.causal(), head_dim=128, target=target, dropout=dropout)
    return {unit.key: unit for unit in made.bundle.units}


@pytest.mark.parametrize("key", ["sm_90a", "sm_90a_small", "sm_90a_backward"])
def test_hopper_spills_nothing(key):
    unit = units("sm_90a", True)[key]
    binary = build(unit, frozenset(), unit.directions)
    assert not binary.report.log, "products side by side"
    for kernel in binary.report.kernels:
        assert kernel.spill_stores == 0, kernel
    backward = Direction.backward in unit.directions
    assert binary.count("HGMMA", f"attention_{'backward' if backward else 'forward'}")


@pytest.mark.parametrize("target", ["cpu", "simt", "sm_80", "sm_90a"])
def test_others_have_no_trace(target):
    with_it = [unit.source for unit in units_of(target, True)]
    without = [unit.source for unit in units_of(target, False)]
    assert all("dropout_scale" in text for text in with_it)
    parts = ("philox", "dropout_scale", "dropout_seed", "dropout_least")
    assert not any(part in text.lower() for text in without for part in parts)
    assert any("philox" in text.lower() for text in with_it)


def units_of(target, dropout):
    dtype = "float32" if target == "cpu" else "bfloat16"
    made = driver.compile(mc.causal(), head_dim=64, dtype=dtype, target=target, dropout=dropout)
    return made.bundle.units
