"""Measured numbers of the cost model: of a card, and of cards between two that were measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskc as mc
from maskc.build import toolchain
from maskc.build.toolchain import InstalledGpu as Visible
from maskc.core.coefficients import Gpu, card_of, costs, measured
from maskc.core.problem import Direction
from maskc.runtime import calibrated, device

H100, H200 = (Gpu(f"NVIDIA {name}", 1.0) for name in ("H100 80GB HBM3", "H200"))


def numbers(gpu: Gpu | None, direction=Direction.forward, form="", dim=128, mode="persistent"):
    (found,) = costs(measured("sm_90a", gpu), direction, form, dim, [mode])
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


def test_masks_for_the_cpu_do_not_ask_the_driver(monkeypatch):
    """Processes forked after a question to the driver cannot use a card."""
    monkeypatch.setattr(toolchain, "_cuda", lambda: pytest.fail("asked"))
    q = np.ones((1, 1, 8, 64), np.float32)
    assert mc.causal().compile(head_dim=64, dtype="float32", target="cpu")(q, q, q).shape == q.shape


# ------------------------------------------------------------------ calibrated on this machine


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """An empty cache folder."""
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("own_cache")
def test_calibrated_coefficients_replace_the_shipped_ones(monkeypatch):
    compiled = mc.causal().compile(head_dim=64, dtype="bfloat16", target="sm_90a").bundle
    monkeypatch.setattr(device, "gpus", lambda: (Visible("A card", 90, 15.0),))
    gpu = device.first_card()
    shipped = device.on_this_card(compiled)
    stream = {"row": 1, "tile": 2, "masked": 3, "lone": 4, "query": 5}
    calibrated.remember("sm_90a", gpu, "2020-01-02", {"large": {"64": {"persistent": stream}}})
    assert calibrated.calibration("sm_90a", gpu)["day"] == "2020-01-02"
    for before, after in zip(shipped.units, device.on_this_card(compiled).units, strict=True):
        for old, new in zip(before.costs, after.costs, strict=True):
            if (before.form, old.mode) == ("", "persistent") and before.directions == (
                Direction.forward,
            ):
                assert (new.row, new.tile, new.masked, new.lone, new.query) == (1, 2, 3, 4, 5)
            else:
                assert new == old
    other = Gpu("Another card", 15.0)
    assert calibrated.coefficients("sm_90a", other) == measured("sm_90a", other)
    calibrated.forget("sm_90a", gpu)
    assert calibrated.calibration("sm_90a", gpu) is None
    assert device.on_this_card(compiled) == shipped


@pytest.mark.usefixtures("own_cache")
def test_a_damaged_calibration_is_ignored():
    gpu = Gpu("A card", 15.0)
    for payload in (b"{", b"[]", b'{"day": "2020-01-02"}'):
        calibrated.open_cache().put(calibrated._key("sm_90a", gpu), payload)
        calibrated._coefficients.cache_clear()
        assert calibrated.coefficients("sm_90a", gpu) == measured("sm_90a", gpu)
