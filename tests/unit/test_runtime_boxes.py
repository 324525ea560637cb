"""Calls of masks over grids: which source a call takes, and how its sequences are launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.boxes import Boxes
from maskc.core.errors import CheckFailed
from maskc.core.problem import Direction, Feature
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.dispatch import tables as runtime_tables
from maskc.dispatch.call import Pass, Place
from maskc.dispatch.residue_split import slices
from maskc.dispatch.selector import SourceSelector
from maskc.dispatch.tables import make_tables
from maskc.runtime.binding import Binder

SM_90A = TARGETS["sm_90a"]
FLAT = mc.load(Path(__file__).parents[2] / "patterns" / "natten_2d.py")["natten_2d"]
SIZES = Sizes(3, 4, 2, 180, 180)
NONE = frozenset[Feature]()


def strides(tokens_first: bool) -> dict[str, tuple[int, int, int]]:
    def one(heads: int) -> tuple[int, int, int]:
        step = 180 * heads * 64
        return (step, 64, heads * 64) if tokens_first else (step, 180 * 64, 64)

    return {"q": one(4), "k": one(2), "v": one(2), "out": one(4), "lse": (720, 180, 1)}


# ------------------------------------------------------------------ sequences


def test_sequences_are_as_heads():
    (found,) = slices(1, SIZES, strides(False), 2, NONE, fold=True)
    assert found.sizes == Sizes(1, 12, 6, 180, 180)
    assert (found.spacing, found.accumulates) == (1, False)
    assert {name: by[1:] for name, by in found.strides.items()} == {
        name: by[1:] for name, by in strides(False).items()
    }
    assert not any(found.shifts.values())


@pytest.mark.parametrize(("tokens_first", "features", "by_head"), [
    (True, NONE, False), (False, frozenset({Feature.sinks}), False), (False, NONE, True),
])  # fmt: skip
def test_sequences_one_by_one(tokens_first, features, by_head):
    """Where heads are not equally far apart, or something belongs to a head by its number."""
    given = strides(tokens_first)
    found = list(slices(1, SIZES, given, 2, features, fold=True, by_head=by_head))
    assert [place.sizes for place in found] == [Sizes(1, 4, 2, 180, 180)] * 3
    for number, place in enumerate(found):
        for name, by in given.items():
            size = 4 if name == "lse" else 2
            assert place.shifts[name] == number * by[0] * size


def test_nothing_is_moved_unless_asked():
    (found,) = slices(1, SIZES, strides(True), 2, NONE)
    assert (found.sizes, found.strides, found.shifts) == (SIZES, strides(True), {})


# ------------------------------------------------------------------ checks


def tables(n: int, direction: Direction):
    mask = FLAT(width=20, kernel=(5, 7))
    problem = driver.problem(128, None, None, "bfloat16")
    bundle = driver.emit_bundle(driver.plan_kernel(mask, problem, SM_90A))
    (unit,) = (unit for unit in bundle.choice("sm_90a", direction) if unit.boxes)
    return make_tables(bundle, unit, Sizes(1, 1, 1, n, n), {}, {}, direction, True)


@pytest.mark.parametrize("direction", Direction)
def test_layouts_are_checked(monkeypatch, direction):
    monkeypatch.setenv("MASKC_CHECK", "1")
    for n in (20, 260, 740):
        tables(n, direction)
    whole = runtime_tables.box_layout
    full = whole(Boxes((20,), (8, 16), (8, 16), 128), [np.ones((13, 13)), np.ones((20, 20))])
    monkeypatch.setattr(runtime_tables, "box_layout", lambda *_: full)
    with pytest.raises(CheckFailed, match=r"(full|empty), which it is not"):
        tables(260, direction)


# ------------------------------------------------------------------ choice


def chosen(mask: mc.Mask, n_q: int, n_kv: int, features=NONE, direction=Direction.forward):
    problem = driver.problem(128, None, None, "bfloat16")
    bundle = driver.emit_bundle(driver.plan_kernel(mask, problem, SM_90A))
    selector, binder = SourceSelector(bundle, SM_90A, lambda device: 132), Binder(bundle)
    bound = binder.bind({}, n_q, n_kv)
    wanted = Pass(direction, features, False, ("cuda", 0))
    first = bundle.unit("sm_90a", direction)
    assert first is not None
    assert first.boxes is None
    return selector.choose(first, wanted, bound, Place(Sizes(1, 2, 1, n_q, n_kv), {})).unit


WIDE = FLAT(width=128, kernel=(40, 40))


@pytest.mark.parametrize("direction", Direction)
def test_large_windows_take_boxes(direction):
    assert chosen(WIDE, 8192, 8192, direction=direction).boxes
    assert chosen(WIDE, 8192, 8192, frozenset({Feature.softcap}), direction).boxes


@pytest.mark.parametrize(("n_q", "n_kv", "features"), [
    (8191, 8191, NONE), (4096, 8192, NONE), (8192, 8192, frozenset({Feature.alibi})),
])  # fmt: skip
def test_other_calls_do_not(n_q, n_kv, features):
    assert chosen(WIDE, n_q, n_kv, features).boxes is None


def test_windows_of_whole_rows_take_boxes_of_such():
    assert chosen(FLAT(width=64, kernel=(9, 63)), 2048, 2048).boxes == Boxes(
        (64,), (2, 64), (2, 64), 128
    )


def test_explain_says_why_there_are_no_boxes():
    problem = driver.problem(128, None, None, "bfloat16")
    plan = driver.plan_kernel(mc.patterns.sta(), problem, SM_90A)
    assert any("product over a grid of N x 10 x 384" in reason for reason in plan.reasons)
