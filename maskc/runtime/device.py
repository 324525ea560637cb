"""Which target this machine is for."""

from __future__ import annotations

from importlib.util import find_spec

from maskc.build.toolchain import gpus
from maskc.core.errors import MaskcError
from maskc.core.problem import Problem
from maskc.core.target import Target

_CUDA = ("sm_80",)
"""CUDA targets in order of preference."""


def default_target(problem: Problem | None = None) -> str:
    """`sm_80` where the first visible NVIDIA GPU has compute capability 8.0 or more, else `cpu`.

    Never raises: without a driver, a device or CuPy the answer is `cpu`, and so it is for a
    problem that no CUDA target has a kernel for.

    Args:
        problem: what the kernel is for, where it is known.
    """
    found = gpus()
    if not found or found[0].capability < 80 or find_spec("cupy") is None:
        return "cpu"
    for name in _CUDA:
        try:
            if problem is not None:
                Target.named(name).check(problem)
        except MaskcError:
            continue
        return name
    return "cpu"
