"""What the price pane knows from the compiler: the plan's tile, and predicted times against N."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from maskc import driver
from maskc.core.coefficients import card_of
from maskc.core.errors import MaskcError
from maskc.core.problem import Direction, Problem
from maskc.core.target import Target
from maskc.dsl.combinators import full
from maskc.plan.predict import milliseconds
from maskc.plan.types import KernelPlan

_LENGTHS = tuple(1 << exponent for exponent in range(8, 16))
"""Beyond them predicting takes seconds: all tiles of all sources are counted."""
_HEADS = 16
"""Query heads that times are for, where the mask does not say how many there are."""

_PEAKS = {"NVIDIA H200": (989, 4800), "NVIDIA H100": (989, 3350)}
"""The peaks of the data sheets: TFLOP/s of bf16 with fp32 sums, GB/s of memory."""

Plain = dict[str, Any]


def prices(plan: KernelPlan) -> Plain:
    """The plan's tile and, where the compiler predicts times, those of the mask and of `full()`."""
    problem, target = plan.problem, plan.target
    found: Plain = {
        "tile": [plan.tile.q, plan.tile.k], "dims": problem.head_dim + problem.head_dim_v,
        "itemsize": problem.dtype.itemsize, "target": target.name,
        "heads": problem.n_heads or _HEADS, "card": None, "curve": [],
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


def _curve(plan: KernelPlan, dense: KernelPlan) -> Iterator[Plain]:
    """Forward milliseconds at some lengths."""
    heads = plan.problem.n_heads or _HEADS
    if plan.chooser is not None or plan.gathering is not None:
        return  # the cost model knows nothing of choosing
    for n in _LENGTHS:
        try:
            mask = milliseconds(plan, Direction.forward, n, n, heads)
        except MaskcError:
            continue  # lengths that the mask does not have
        whole = milliseconds(dense, Direction.forward, n, n, heads)
        if mask is not None and whole is not None:
            yield {"n": n, "mask": mask, "dense": whole}


def _dense(problem: Problem, target: Target) -> KernelPlan:
    """The plan of dense attention by its first source: small tiles never serve it better."""
    return replace(driver.plan_kernel(full(), problem, target), also=())
