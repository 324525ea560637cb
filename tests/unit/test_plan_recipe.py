"""For which heads closed forms of tile lists are sought."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.target import TARGETS
from maskc.layout import build
from maskc.plan import masks
from maskc.plan.recipe import difficulty

LONGNET = mc.load(Path(__file__).parents[2] / "patterns" / "longnet.py")["longnet"]


@pytest.fixture
def sought(monkeypatch):
    """Count how often closed forms were sought, by tile."""
    found = Counter()

    def counted(keep, tile, real=masks.layout_recipe):
        found[tile] += 1
        return real(keep, tile)

    monkeypatch.setattr(masks, "layout_recipe", counted)
    return found


def planned(mask, heads, target="cpu"):
    return driver.plan_kernel(mask, driver.problem(64, None, heads, "float32"), TARGETS[target])


def test_in_vain_for_one_head_of_those_that_are_alike(sought):
    plan = planned(LONGNET(), 8)
    assert len(plan.masks) == 8
    assert len({difficulty(mask.ir.keep) for mask in plan.masks}) == 1
    assert all(mask.recipe.loops is None for mask in plan.masks)
    assert all(mask.recipe.keep == mask.ir.keep for mask in plan.masks)
    assert sought[plan.tile] == 1


def test_for_every_head_where_they_are_found(sought):
    plan = planned(mc.per_head([mc.causal() & mc.window(width) for width in (3, 40, 500)]), 3)
    assert all(mask.recipe.loops for mask in plan.masks)
    assert sought[plan.tile] == 3


def test_for_others_beside_one_that_is_too_hard(sought):
    hard = mc.where(lambda h, q, k: (q * 2 + h) // 7 % 5 == k // 3 % 5) & LONGNET(causal=False)
    plan = planned(mc.per_head([hard, mc.window(9), hard, mc.window(30)]), 4)
    closed = [mask.recipe.loops is not None for mask in plan.masks]
    assert sorted(closed) == [False] * (len(closed) - 2) + [True, True]


@pytest.mark.parametrize("n", [1, 130, 700])
def test_lists_are_exact_without_closed_forms(n):
    """Segments short enough for these lengths."""
    mask = LONGNET(segments=(64, 128, 256), rates=(1, 3, 5))
    bundle = driver.emit_bundle(planned(mask, 4))
    unit = bundle.units[0]
    dense = np.asarray(mask.dense(n, n_heads=4))
    for head in range(4):
        variant = bundle.variants[bundle.head_variant[head] if bundle.head_variant else 0]
        layout = build(variant.recipe(unit.tile), n, n, {}, {})
        rows, columns = layout.shape
        padded = np.zeros((rows * unit.tile.q, columns * unit.tile.k), bool)
        padded[:n, :n] = dense[head]
        live = padded.reshape(rows, unit.tile.q, columns, unit.tile.k).any(axis=(1, 3))
        np.testing.assert_array_equal(layout.to_dense() > 0, live)
