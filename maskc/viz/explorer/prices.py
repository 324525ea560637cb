"""What the price pane knows from the compiler: the plan's tile, and predicted times against N."""

from __future__ import annotations

from typing import Any

from maskc import driver
from maskc.core.coefficients import card_of
from maskc.core.errors import MaskcError
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.dsl.combinators import full
from maskc.plan.explain import predicted
from maskc.plan.types import KernelPlan

_LENGTHS = tuple(1 << exponent for exponent in range(8, 21))
_LONGEST_WITH_LISTS = 1 << 17
"""Where tiles have no closed form, making them for longer ones takes long."""

_PEAKS = {"NVIDIA H200": (989, 4800), "NVIDIA H100": (989, 3350)}
"""Of the data sheets: TFLOP/s of bf16 with fp32 sums, GB/s of memory."""

Plain = dict[str, Any]


def prices(plan: KernelPlan) -> Plain:
    """The plan's tile and, where the compiler predicts times, those of the mask and of `full()`."""
    problem, target = plan.problem, plan.target
    found: Plain = {
        "tile": [plan.tile.q, plan.tile.k], "dims": problem.head_dim + problem.head_dim_v,
        "itemsize": problem.dtype.itemsize, "target": target.name,
        "heads": problem.n_heads or 16, "card": None, "curve": [],
        "why": "the compiler predicts no times here",
    }  # fmt: skip
    card = card_of(target.name)
    if card is None:
        found["why"] = f"no times are predicted for {target.name}: --target sm_90a predicts some"
        return found
    tflops, gbytes = _PEAKS.get(card.name, (0, 0))
    if tflops:
        found["card"] = {"name": card.name, "tflops": tflops, "gbytes": gbytes}
    found["curve"] = list(_curve(plan, _dense(problem, target)))
    return found


def _curve(plan: KernelPlan, dense: KernelPlan) -> list[Plain]:
    """Forward milliseconds at some lengths."""
    points = []
    closed = all(mask.recipe.loops is not None for mask in plan.masks)
    for n in _LENGTHS:
        if not closed and n > _LONGEST_WITH_LISTS:
            break
        try:
            mask, whole = predicted(plan, n, n), predicted(dense, n, n)
        except MaskcError:
            continue  # lengths that the mask does not have
        if "forward" not in mask or "forward" not in whole:
            continue
        points.append({"n": n, "mask": mask["forward"], "dense": whole["forward"]})
    return points


def _dense(problem: Problem, target: Target) -> KernelPlan:
    return driver.plan_kernel(full(), problem, target)
