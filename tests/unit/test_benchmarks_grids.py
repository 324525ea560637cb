"""The grid suite: its masks are NATTEN's, and so are the formulas that judge them."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from benchmarks.grids import GRIDS, by_hand, neighbourhood
from benchmarks.suite import SUITES
from maskc import driver
from maskc.core.dtypes import DType
from maskc.ir.grid import grid_mask
from maskc.lab.case_pairs import defined_rows

FOLDER = Path(__file__).parents[2] / "patterns"
SMALL = [
    ((10, 12), (4, 6), (1, 1)), ((11, 12), (6, 4), (3, 4)),
    ((5, 6, 8), (4, 2, 6), (1, 1, 1)), ((7, 6, 8), (4, 4, 4), (4, 2, 3)),
]  # fmt: skip


def published(grid, window, stride) -> mc.Mask:
    name = f"natten_{len(grid)}d"
    sides = dict(zip(("height", "width")[-len(grid) + 1 :], grid[1:], strict=True))
    return mc.load(FOLDER / f"{name}.py")[name](kernel=window, stride=stride, **sides)


@pytest.mark.parametrize(("grid", "window", "stride"), SMALL)
def test_neighbourhoods_are_natten(grid, window, stride):
    n = prod(grid)
    want = published(grid, window, stride).dense(n)
    assert (want.sum(axis=1) == prod(window)).all()
    mask = neighbourhood(grid, window, stride)
    np.testing.assert_array_equal(mask.dense(n), want)
    found = grid_mask(driver.lowered(mask).keep)
    assert found is not None
    assert found.extents == grid[1:]
    torch = pytest.importorskip("torch")
    q, k = torch.arange(n)[:, None], torch.arange(n)[None]
    keep = by_hand(grid, window, stride)({})
    np.testing.assert_array_equal(keep(0, 0, q, k).numpy(), want)


def test_the_suite():
    assert SUITES["grids"].anchors == GRIDS
    sizes = {a.name: (a.batch, a.heads, a.n, a.head_dim) for a in GRIDS}
    assert sizes["natten2d_80"] == sizes["natten2d_80_s16"] == (1, 24, 65536, 128)
    assert sizes["natten3d"] == sizes["natten3d_s16_8_8"] == (1, 24, 115200, 128)


@pytest.mark.parametrize("anchor", GRIDS, ids=lambda a: a.name)
def test_formulas_by_hand(anchor):
    torch = pytest.importorskip("torch")
    case = anchor.case(DType.bfloat16)
    rows = np.unique([0, 1, 255, 256, *np.linspace(300, case.n_q - 1, 12, dtype=int)])
    keep = anchor.formula({})
    kept = keep(0, 0, torch.tensor(rows)[:, None], torch.arange(case.n_kv)[None]).numpy()
    keys = 6400 if "2d" in anchor.name else 10368
    assert (kept.sum(axis=1) == keys).all()
    np.testing.assert_array_equal(kept, defined_rows(case, 0, 0, rows))
