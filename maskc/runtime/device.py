"""Find the best target of this machine."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from maskc.build.toolchain import gpus
from maskc.core.bundle import Bundle
from maskc.core.coefficients import Gpu, measured, priced
from maskc.core.errors import MaskcError
from maskc.core.problem import Direction, Problem
from maskc.core.target import TARGETS, Target
from maskc.runtime.calibrated import coefficients

CUDA = tuple(
    sorted(
        (target.name for target in TARGETS.values() if target.language == "cuda"),
        key=lambda name: -TARGETS[name].capability,
    )
)
"""CUDA targets in order of preference, the target of the newest cards first."""


def runs(target: Target, index: int) -> bool:
    """Whether a GPU executes a CUDA target; `a` targets are tied to one capability."""
    cards = gpus()
    return index < len(cards) and runs_on(target, cards[index].capability)


def runs_on(target: Target, capability: int) -> bool:
    """Whether a GPU of this compute capability, 10 * major + minor, executes a CUDA target."""
    if target.name.endswith("a"):
        return capability == target.capability
    return capability >= target.capability


def default_target(problem: Problem | None = None) -> str:
    """The best target of the first visible NVIDIA GPU, else `cpu`.

    `sm_90a` on Hopper (capability 9.0), `sm_80` from capability 8.0 on, and `simt` from 7.0 on
    where these have no kernel for the problem. Never raises: returns `cpu` if there is no driver,
    device or CuPy, or no CUDA kernel for the problem.

    Args:
        problem: what the kernel is for, where it is known.
    """
    if not gpus() or find_spec("cupy") is None:
        return "cpu"
    for name in CUDA:
        target = Target.named(name)
        if not runs(target, 0) or Direction.forward not in target.directions:
            continue
        try:
            if problem is not None:
                target.check(problem)
        except MaskcError:
            continue
        return name
    return "cpu"


def first_card() -> Gpu | None:
    """Return the first visible GPU, whose coefficients calls choose by."""
    visible = gpus()
    return Gpu(visible[0].name, visible[0].bytes_per_cycle) if visible else None


def on_this_card(bundle: Bundle) -> Bundle:
    """Return the bundle with the costs of the first visible GPU, by which calls choose programs.

    Returns the same object if the bundle was planned with these costs.
    """
    targets = {unit.target for unit in bundle.units}.intersection(CUDA)
    gpu = first_card() if targets else None  # a process that asks the driver cannot be forked
    if gpu is None:
        return bundle
    if all(coefficients(name, gpu) is measured(name) for name in targets):
        return bundle
    return priced(bundle, partial(coefficients, gpu=gpu))
