"""The most memory that a call takes beside its inputs: of the GPU's allocator, or the process."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[[], Any], device: str) -> int | None:
    """How far the memory in use rises above its level while `call` runs, results included.

    On a GPU this is what PyTorch's allocator counts, exactly. On a CPU it is the resident set of
    the process, which the kernel counts in pages: memory that libraries keep between calls does
    not count, and a rise of less than about a megabyte means little.

    Args:
        call: warmed up.
        device: `cpu` or `cuda`.

    Returns:
        Bytes; None where this system does not tell.
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
