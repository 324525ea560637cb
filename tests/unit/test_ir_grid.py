"""Masks that are products over a grid: what is recognised, and that the product is the mask."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.analysis.counts import count_pairs
from maskc.core.evaluator import evaluate
from maskc.ir.grid import MAX_AXES, GridMask, grid_mask
from tests.support.thorough import examples

FOLDER = Path(__file__).parents[2] / "patterns"


def pattern(name: str):
    return mc.load(FOLDER / f"{name}.py")[name]


def product_of(found: GridMask, along: int) -> np.ndarray:
    """bool [n, n]: the conjunction over axes, token by token."""
    grid = (along, *found.extents)
    at = np.unravel_index(np.arange(prod(grid)), grid)
    live = np.ones((prod(grid),) * 2, dtype=bool)
    for formula, own in zip(found.axes, at, strict=True):
        env = {"q": own[:, None], "k": own[None, :], "n_q": along, "n_kv": along}
        live &= np.asarray(evaluate(formula, env), dtype=bool)
    return live


def same(mask: mc.Mask, extents: tuple[int, ...], alongs=(1, 2, 5, 11)) -> None:
    grid = grid_mask(driver.lowered(mask).keep)
    assert grid is not None
    assert grid.extents == extents
    for along in alongs:
        n = along * prod(extents)
        np.testing.assert_array_equal(product_of(grid, along), mask.dense(n), str(n))


@settings(max_examples=examples(40))
@given(
    width=st.integers(2, 13), kernel=st.tuples(*[st.integers(1, 6)] * 2),
    dilation=st.tuples(*[st.integers(1, 3)] * 2), stride=st.tuples(*[st.integers(1, 4)] * 2),
    causal=st.booleans(),
)  # fmt: skip
def test_neighbourhoods_on_images(width, kernel, dilation, stride, causal):
    mask = pattern("natten_2d")(
        width=width, kernel=kernel, dilation=dilation, stride=stride, causal=causal
    )
    grid = grid_mask(driver.lowered(mask).keep)
    if grid is None:  # the formula lost an axis: all columns see each other, say
        assert kernel[1] * dilation[1] >= width or kernel == (1, 1) or stride[1] >= width
        return
    period = prod(grid.extents)
    assert period % width == 0 or width % period == 0
    for along in (1, 3, 8):
        n = along * period * (width // period if width % period == 0 else 1)
        np.testing.assert_array_equal(product_of(grid, n // period), mask.dense(n))


@pytest.mark.parametrize("options", [
    {"kernel": (3, 3, 3)},
    {"kernel": (2, 4, 3), "stride": (2, 3, 1)},
    {"kernel": (2, 3, 2), "dilation": (2, 1, 3)},
    {"kernel": (3, 2, 4), "causal": True},
    {"kernel": (3, 2, 2), "dilation": (1, 2, 2), "stride": (2, 2, 1), "causal": True},
])  # fmt: skip
def test_neighbourhoods_on_videos(options):
    same(pattern("natten_3d")(height=6, width=7, **options), (6, 7), (1, 2, 5))


def test_other_patterns():
    same(pattern("natten_2d")(width=9, kernel=(3, 4)), (9,))
    same(pattern("swin")(width=12, window=5, shift=2), (12,))
    # The tokens of an STA tile, which nothing tells apart, go with its column.
    same(pattern("sta")(canvas=(3, 4, 5), window=(3, 3, 3), tile=2), (4, 10), (3,))


def test_an_axis_of_which_nothing_is_said():
    same(mc.where(lambda q, k: k % 7 <= q % 7), (7,))
    same(mc.where(lambda q, k: (k % 7 == 3) & (q // 7 - k // 7 < 2)), (7,))
    same(mc.where(lambda q, k: (q // 7 == k // 7) & ((q + 2 * k) % 7 == 3)), (7,))
    same(mc.where(lambda q, k: (k // 7 <= q // 7) & (q // 7 < mc.n_kv // 7 - 1)), (7,))


def test_neighbouring_axes_become_one():
    mask = mc.where(
        lambda q, k: (q % 2 == k % 2) & (q // 2 % 3 <= k // 2 % 3)
        & (q // 6 % 5 >= k // 6 % 5) & (q // 30 == k // 30)
    )  # fmt: skip
    grid = grid_mask(driver.lowered(mask).keep)
    assert grid is not None
    assert len(grid.axes) == MAX_AXES
    np.testing.assert_array_equal(product_of(grid, 3), mask.dense(90))


def test_parameters_stay_parameters():
    mask = mc.where(lambda q, k: (q // 8 - k // 8 <= mc.param("w", 2)) & (q % 8 >= k % 8))
    grid = grid_mask(driver.lowered(mask).keep)
    assert grid is not None
    assert "param" in repr(grid.axes[0]).lower()


@pytest.mark.parametrize("mask", [
    mc.causal(),
    mc.window(5, 5),
    mc.where(lambda q, k: q % 8 <= k % 8) & mc.causal(),
    mc.where(lambda q, k: (q // 8 == k // 8) | (q % 8 == k % 8)),
    mc.where(lambda q, k: q // 8 == k % 8),
    mc.where(lambda q, k: (q // 6 == k // 6) & (q % 4 == k % 4)),
    mc.documents("d"),
])  # fmt: skip
def test_what_is_no_product(mask):
    assert grid_mask(driver.lowered(mask).keep) is None


@pytest.mark.parametrize("name", ["axial", "natten_1d", "longformer", "full"])
def test_patterns_that_are_none(name):
    assert grid_mask(driver.lowered(pattern(name)()).keep) is None


@pytest.mark.parametrize("n", [126, 127, 42, 0])
def test_pairs_are_counted_axis_by_axis(n):
    """And otherwise where the lengths are no grid."""
    mask = pattern("natten_3d")(height=6, width=7, kernel=(2, 3, 4), stride=(1, 2, 1))
    assert mask.count(n) == int(mask.dense(n).sum())
    keep = driver.lowered(mask).keep
    assert n % 42 or count_pairs(keep, n, n, {}) == int(mask.dense(n).sum())
    assert mask.count(42, 84) == int(mask.dense(42, 84).sum())
