"""Measured numbers of the cost model: of a card, and of cards between two that were measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskc as mc
from maskc.build.toolchain import Gpu as Visible
from maskc.core.coefficients import Gpu, card_of, costs, measured
from maskc.core.problem import Direction
from maskc.runtime import device

H100, H200 = (Gpu(f"NVIDIA {name}", 1.0) for name in ("H100 80GB HBM3", "H200"))


def numbers(gpu: Gpu | None, direction=Direction.forward, form="", dim=128, mode="stream"):
    (found,) = costs("sm_90a", direction, form, dim, [mode], gpu=gpu)
    return found.row, found.tile, found.masked


def test_a_card_has_its_own_whatever_its_memory_gives():
    assert card_of("sm_90a", H100).name == H100.name
    assert numbers(H100) != numbers(None)
    assert measured("sm_90a", H200) is measured("sm_90a")
    assert measured("cpu", H100) == {}


def test_what_was_not_measured_is_as_on_the_first_card():
    assert numbers(H100, dim=96) == numbers(None, dim=96)


def test_a_card_of_which_nothing_is_known_is_the_first():
    assert measured("sm_90a", Gpu("emulated", 0.0)) is measured("sm_90a")


@given(st.floats(1, 40))
def test_cards_between(at):
    ends = [card_of("sm_90a", gpu).bytes_per_cycle for gpu in (H100, H200)]
    share = np.clip((at - ends[0]) / (ends[1] - ends[0]), 0, 1)
    found = numbers(Gpu("another", at))
    for mine, low, high in zip(found, numbers(H100), numbers(H200), strict=True):
        assert mine == pytest.approx(low + share * (high - low), abs=1)
    assert card_of("sm_90a", Gpu("another", at)).name == "another"


@pytest.mark.parametrize(("name", "known"), [("NVIDIA H100 80GB HBM3", True), ("GPU", False)])
def test_calls_choose_by_the_card_that_is_there(monkeypatch, name, known):
    """Causal rows of 1024: an H100 makes dq in a launch of its own, see cost.toml."""
    compiled = mc.causal().compile(head_dim=128, dtype="bfloat16", target="sm_90a").bundle
    monkeypatch.setattr(device, "gpus", lambda: (Visible(name, 90),))
    priced = device.on_this_card(compiled)
    assert (priced is compiled) is not known
    assert priced.digest == compiled.digest
    for mine, other in zip(priced.units, compiled.units, strict=True):
        assert [cost.mode for cost in mine.costs] == [cost.mode for cost in other.costs]
        assert (mine.costs != other.costs) is (known and bool(other.costs))
