"""How much is tried: in CI what finds a mistake soon, with `pytest --thorough` all of it.

`make matrix` is thorough: as many random examples as a test asks for, and C kernels with the flags
that the package gives its compiler.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

VARIABLE = "MASKC_THOROUGH"
"""The environment variable that `--thorough` sets, before tests are imported."""
THOROUGH = VARIABLE in os.environ
OPTIMISED = "-O3" if THOROUGH else "-Og"
"""How C kernels are compiled: by -O3, the package's own, in six times as long. Their text and
all other flags are the same. Tests marked `shipped_flags`, and those that start a process of their
own, compile with -O3 always; ranks of a group do not."""


def soon(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The compiler's flags with as much optimisation as `OPTIMISED` says."""
    return tuple(OPTIMISED if flag == "-O3" else flag for flag in flags)


def examples(count: int) -> int:
    """Of a property: `count` where a run is thorough, else a quarter of them, but five at least."""
    return count if THOROUGH else min(count, max(5, count // 4))


def more(*values: Any) -> Any:
    """A parameter that only `make matrix` tries: others reach every branch of the text that it
    runs, which differs from theirs in constants."""
    return pytest.param(*values, marks=pytest.mark.matrix)
