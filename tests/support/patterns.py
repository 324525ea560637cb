"""The files in patterns/, told apart by what their masks choose at run time."""

from __future__ import annotations

from pathlib import Path

import maskc as mc
from maskc import driver
from maskc.core.target import TARGETS

FOLDER = Path(__file__).parents[2] / "patterns"


def _blocks() -> dict[Path, int]:
    """By file the fewest keys that a selection chooses together, 0 where there is none."""
    files = sorted(FOLDER.glob("*.py"))
    return {file: driver.selects(mc.load(file)[file.stem]()) for file in files}


def static_patterns() -> list[Path]:
    """Patterns without a selection."""
    return [file for file, block in _blocks().items() if not block]


def patterns_with_kernels(target: str) -> list[Path]:
    """Patterns that a target runs."""
    least = TARGETS[target].least_block
    return [file for file, block in _blocks().items() if not block or block >= least]
