"""`pytest -p maskc.testing.emulator.plugin tests/gpu/test_sm90a.py`: GPU tests in the emulator.

Tests of streams, graphs and other libraries' memory cannot pass there.
"""

import pytest

from maskc.testing.emulator import machine


def pytest_configure() -> None:
    """Put the emulator in place of a GPU, until the process ends."""
    machine.install(pytest.MonkeyPatch())
