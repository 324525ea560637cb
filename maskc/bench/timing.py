"""Milliseconds of rivals that take turns: what disturbs one round disturbs all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

_LONGEST = 2000.0
"""Milliseconds one rival may spend in all rounds."""
_FEWEST = 3
"""Rounds of a rival, however slow."""


@dataclass(frozen=True, eq=False)
class Timed:
    """Something to call again and again."""

    run: Callable[[], Any]
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered once around every burst, outside the clock."""


def take_turns(rivals: Mapping[str, Timed], rounds: int, device: str) -> dict[str, float]:
    """Median milliseconds per call.

    Each round gives every rival a burst of calls, starting with another rival each time. Bursts
    last about 2 ms on a GPU (4 to 32 calls, CUDA events around them) and 20 ms on a CPU (1 to 8
    calls after an untimed one, which also lets the last rival's idle threads fall asleep).

    Args:
        rivals: warmed up.
        rounds: at least 1.
        device: `cpu` or `cuda`.
    """
    clock = _cuda_burst if device == "cuda" else _host_burst
    shortest, calls_at_least, calls_at_most = (2.0, 4, 32) if device == "cuda" else (20.0, 1, 8)
    plan = {}
    for name, rival in rivals.items():
        once = clock(rival, 1)
        calls = int(min(max(math.ceil(shortest / max(once, 1e-4)), calls_at_least), calls_at_most))
        if once * calls * _FEWEST > _LONGEST:
            calls = 1
        fitting = int(_LONGEST / max(once * calls, 1e-4))
        plan[name] = calls, min(rounds, max(fitting, _FEWEST))
    times: dict[str, list[float]] = {name: [] for name in rivals}
    order = list(rivals)
    for turn in range(rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            calls, turns = plan[name]
            if turn < turns:
                times[name].append(clock(rivals[name], calls))
    return {name: median(found) for name, found in times.items()}


def _host_burst(rival: Timed, calls: int) -> float:
    with rival.scope():
        rival.run()
        start = perf_counter()
        for _ in range(calls):
            rival.run()
        return (perf_counter() - start) / calls * 1e3


def _cuda_burst(rival: Timed, calls: int) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with rival.scope():
        start.record()
        for _ in range(calls):
            rival.run()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / calls
