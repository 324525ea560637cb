"""Layouts of random masks and tiles, in child processes: none of them ends, no tile is wrong."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core import expr as E
from maskc.core.problem import TileShape
from maskc.ir.sets import TooHard, budget, token_universe, unstopped
from maskc.plan import recipe
from maskc.plan.recipe import NotALoop, layout_recipe, tile_loops
from tests.support.drawn_masks import tiles
from tests.support.random_tiles import check


def test_no_child_ends_and_no_tile_is_wrong():
    """A few of the 20,000 that `python -m tests.support.random_tiles` runs."""
    report = check(60, seed=7, batch=60)
    assert (report.masks, report.aborts, report.wrong) == (60, [], [])


def test_an_abort_is_attributed_to_its_mask(monkeypatch):
    monkeypatch.setenv("MASKC_TEST_ABORT", "5")
    report = check(8, seed=3, batch=8)
    assert report.masks == 8
    (abort,) = report.aborts
    assert abort.startswith("3:5 ")
    assert "ended with -6" in abort


def test_a_mask_whose_loops_run_out_of_operations():
    """isl frees an expression twice where its budget ends inside the guards of loops."""
    first = mc.causal(align="start")
    mask = first - (mc.strided(2) - mc.where(lambda q, k: k <= q // 7))

    q, k = np.arange(31)[:, None], np.arange(37)
    keep = (k <= q) & ~((k % 2 == 0) & ~(k <= q // 7))
    layout = mask.layout(31, 37, block=(4, 7)).to_dense()
    np.testing.assert_array_equal(layout, tiles(keep, (4, 7)))


def test_the_budget_does_not_stop_a_question_but_counts_it():
    universe = token_universe(E.ge(E.Q, E.K))
    triangle = universe.set(E.ge(E.Q, E.K))
    answered = []
    with pytest.raises(TooHard), budget(50), unstopped():  # noqa: PT012
        for _ in range(50):
            answered.append(triangle.intersect(triangle).coalesce().is_empty())
    assert answered == [False] * 50


@pytest.mark.parametrize("most", ["_EFFORT", "_MAX_FLOORS"])
def test_loops_that_might_take_long_are_not_asked_for(most, monkeypatch):
    keep = E.eq(E.floordiv(E.Q, 5), E.floordiv(E.K, 3))
    tile = TileShape(4, 8)
    assert layout_recipe.__wrapped__(keep, tile).loops is not None
    monkeypatch.setattr(recipe, most, -1)
    with pytest.raises(NotALoop):
        tile_loops(token_universe(keep).set(keep), tile, False, {})
    assert layout_recipe.__wrapped__(keep, tile).loops is None
