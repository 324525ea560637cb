"""Questions and calls leave nothing behind; `python -m tests.support.soak` runs for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS, WARM_UP = 120, 200
"""The warm-up meets most lengths, and fills what is remembered."""
MOST = 1.0
"""KB that a round may leave; a formula that meets isl anew leaves 5."""


@pytest.mark.usefixtures("soon_elsewhere")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what is resident")
def test_questions_leave_nothing_behind() -> None:
    command = ["-m", "tests.support.soak", f"--rounds={ROUNDS}", f"--warm-up={WARM_UP}"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, check=True
    )
    lines = [line.split(" KB  ") for line in done.stdout.splitlines()]
    assert len(lines) == 14
    assert {name: float(kilobytes) for kilobytes, name in lines if float(kilobytes) > MOST} == {}
