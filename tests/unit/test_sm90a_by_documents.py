"""Sources of masks with documents on Hopper: tiles that begin with them, and what makes lists.

No GPU is needed; the gate is that of all sources, see test_sm90a_sources.py.
"""

from __future__ import annotations

from itertools import product

import pytest

import maskc as mc
from maskc import driver
from tests.support.ledger import build
from tests.unit.test_sm90a_sources import (
    BY_DOCUMENTS,
    FOLDER,
    FORWARD,
    NONE,
    REGISTERS,
    SM_90A,
    SMALL,
    SMALL_EACH,
    gate,
    jobs,
    unit,
)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_tiles_that_begin_with_documents(head_dim):
    gate(jobs([unit(name, FORWARD, head_dim) for name in BY_DOCUMENTS], NONE))


@pytest.mark.parametrize("head_dim", SMALL_EACH)
def test_small_tiles_that_begin_with_documents(head_dim):
    gate(jobs([unit(name, FORWARD, head_dim, form=SMALL) for name in BY_DOCUMENTS], NONE))


def test_lists_of_documents():
    """No source spills."""
    made = set()
    for name, dim in product(BY_DOCUMENTS, (64, 256)):
        problem = driver.problem(dim, None, 4, "float16")
        plan = driver.plan_kernel(mc.load(FOLDER / f"{name}.py")[name](), problem, SM_90A)
        made.add(driver.emit_bundle(plan).list_source("sm_90a"))
    for source in sorted(made, key=lambda each: each.text):
        report = build(source, NONE, ()).report
        kernels = {kernel.name: kernel for kernel in report.kernels}
        assert kernels.keys() == {launch.entry for launch in source.mode().launches}
        for kernel in kernels.values():
            assert not any((kernel.stack, kernel.spill_stores, kernel.spill_loads)), kernel
        assert 8 * kernel.registers * 128 <= REGISTERS
