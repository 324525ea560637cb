"""Fixtures that put the emulator in place of a card, for a test file to import."""

from __future__ import annotations

import pytest

from maskc.testing.emulator import machine
from tests.support.hopper import nan_memory


@pytest.fixture(autouse=True, name="hopper")
def emulated_card(monkeypatch):
    """For each test, which may name it `hopper`."""
    return machine.install(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def emulated_module():
    """For the whole file; memory is full of NaN."""
    with pytest.MonkeyPatch.context() as patch, nan_memory():
        yield machine.install(patch)
