"""Costs of calls. Milliseconds of rivals that take turns, so that a disturbance affects all of
them; and the peak memory of a call in addition to its inputs."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)

SECONDS = 2.0
"""Default limit for one rival in all rounds."""
_FEWEST = 3
"""Rounds of a rival, however slow."""
_BURST = 4
"""Launches in a burst on a GPU."""
_LONGEST_LEAD = 4e-3
"""Seconds a GPU is kept waiting for a burst's launches, at most."""
_MARGIN = 3.0
"""The GPU waits this many times as long as the host needed for a burst, because the host may be
slower the next time."""
_SLOW = 100.0
"""From this many milliseconds per call, the time of the host is negligible."""
_CYCLES = 2e9
"""Clock cycles of a GPU in a second, at most."""


@dataclass(frozen=True, eq=False)
class Timed:
    """Something to call again and again."""

    run: Callable[[], Any]
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered once around every burst, outside the clock."""
    lead: float = 0.0
    """Seconds the GPU waits before a burst, so that the host is ahead of it."""


def take_turns(
    rivals: Mapping[Name, Timed], rounds: int, device: str, seconds: float = SECONDS
) -> dict[Name, float]:
    """Median milliseconds per call.

    Each round gives every rival a burst of calls, in a new random order. A card at its power limit
    keeps the clock that the previous rival left, so no rival may always follow the same one. The
    draw is the same in every run. On a GPU, a burst is four launches between two CUDA events, after
    an untimed one. If the host is slower than the kernels, the GPU first waits until the burst is
    queued, so that kernels are timed and not Python. On a CPU bursts last about 20 ms (1 to 8 calls
    after an untimed one, which also lets the last rival's idle threads fall asleep).

    Args:
        rivals: warmed up.
        rounds: at least 1; slow rivals get fewer.
        device: `cpu` or `cuda`.
        seconds: limit for one rival in all rounds; it always gets three rounds.
    """
    clock = _cuda_burst if device == "cuda" else _host_burst
    plan: dict[Name, tuple[int, int]] = {}
    ready: dict[Name, Timed] = {}
    for name, rival in rivals.items():
        call_ms = clock(rival, 1)
        ready[name] = replace(rival, lead=_lead(rival, call_ms)) if device == "cuda" else rival
        calls = _BURST
        if device != "cuda":
            calls = int(min(max(math.ceil(20 / max(call_ms, 1e-4)), 1), 8))
        longest = 1e3 * seconds
        if call_ms * calls * _FEWEST > longest:
            calls = 1
        fitting = int(longest / max(call_ms * calls, 1e-4))
        plan[name] = calls, min(rounds, max(fitting, _FEWEST))
    times: dict[Name, list[float]] = {name: [] for name in rivals}
    order, draw = list(rivals), Random(0)
    for turn in range(rounds):
        draw.shuffle(order)
        for name in order:
            calls, turns = plan[name]
            if turn < turns:
                times[name].append(clock(ready[name], calls))
    return {name: median(samples) for name, samples in times.items()}


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
        if rival.lead > 0:
            torch.cuda._sleep(int(rival.lead * _CYCLES))
        rival.run()
        start.record()
        for _ in range(calls):
            rival.run()
        end.record()
        end.synchronize()
    total: float = start.elapsed_time(end)
    return total / calls


def _lead(rival: Timed, call_ms: float) -> float:
    """Return the seconds to hold back the GPU: the host's time for a burst, minus the time of one
    kernel.

    Args:
        call_ms: milliseconds of a call on the GPU.
    """
    import torch

    if call_ms > _SLOW:
        return 0.0
    torch.cuda.synchronize()
    with rival.scope():
        start = perf_counter()
        for _ in range(_BURST + 1):
            rival.run()
        queued = perf_counter() - start
    torch.cuda.synchronize()
    return lead_for(queued, call_ms)


def lead_for(queued: float, call_ms: float) -> float:
    """Seconds of waiting for a burst that the host queues in `queued` seconds.

    Zero where the untimed launch alone covers it: then the host is ahead anyway.

    Args:
        call_ms: milliseconds of a call on the GPU.
    """
    if queued <= call_ms * 1e-3:
        return 0.0
    return min(_MARGIN * queued, _LONGEST_LEAD)


# ------------------------------------------------------------------ memory


_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[[], Any], device: str) -> int | None:
    """Return by how much the memory in use rises while `call` runs, results included.

    On a GPU this is what PyTorch's allocator counts, exactly. On a CPU it is the resident set of
    the process, which the kernel counts in pages. Memory that libraries keep between calls does not
    count, and a rise below about a megabyte means little.

    Args:
        call: warmed up.
        device: `cpu` or `cuda`.

    Returns:
        Bytes; None if this system does not tell.
    """
    return _of_gpu(call) if device == "cuda" else _of_process(call)


def _of_gpu(call: Callable[[], Any]) -> int:
    import torch

    torch.cuda.synchronize()
    before: int = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    torch.cuda.synchronize()
    del kept
    most: int = torch.cuda.max_memory_allocated()
    return most - before


def _of_process(call: Callable[[], Any]) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    _give_back()
    try:
        _RESET.write_text("5")  # the highest mark begins anew at the present level
        before = _status("VmRSS")
        kept = call()
        most = _status("VmHWM")
    except (OSError, ValueError):
        return None
    del kept
    return max(most - before, 0)


def _status(name: str) -> int:
    """A line of /proc/self/status, in bytes.

    Raises:
        ValueError: there is no such line.
    """
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(name)


def _give_back() -> None:
    """Free memory that the C library holds would be used first, and would not show."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return
