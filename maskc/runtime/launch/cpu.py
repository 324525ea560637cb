"""Shared objects in this process: loading, threads, and the call itself."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from maskc.build import Binary
from maskc.build.cache import open_cache
from maskc.core.abi import ATTENTION, Numbers, Pointers
from maskc.core.errors import BuildFailed
from maskc.core.problem import Direction
from maskc.layout.tiles.chosen_blocks import NONE
from maskc.runtime.launch.ahead import processors
from maskc.runtime.launch.prepared import HostKernel, PreparedLaunch, Sent, filled


class _Threads:
    """Whether OpenMP threads were started, and by whom."""

    started = False
    """Whether threads were started, in this process or in the one it was forked from."""
    elsewhere = False
    """Whether a parent has the threads: this process was forked afterwards and does not."""


def _after_fork() -> None:
    _Threads.elsewhere = _Threads.started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def thread_count() -> int:
    """Return the number of threads: `OMP_NUM_THREADS` if it begins with a positive number,
    otherwise the processors this process may use. It is limited, because the system may refuse to
    start many more threads than processors.

    1 in a process forked after its parent ran a kernel: GNU OpenMP would wait there for threads
    that stayed with the parent.
    """
    if _Threads.elsewhere:
        return 1
    wanted = _wanted(os.environ.get("OMP_NUM_THREADS"))
    if 0 < wanted <= _FEW:
        return wanted
    most = processors()
    return min(wanted, max(_FEW, 4 * most)) if wanted else most


@lru_cache(maxsize=16)
def _wanted(text: str | None) -> int:
    """The positive number that a text begins with, or 0."""
    number = _NUMBER.match(text or "")
    return int(number[1]) if number else 0


_NUMBER = re.compile(r"\s*\+?0*([1-9][0-9]{0,15})[0-9]*\s*(?:,|$)", re.ASCII)
"""A positive integer (16 digits are read), and the numbers for inner levels that OpenMP lets
follow."""
_FEW = 16
"""Threads that every system can start; GNU OpenMP ends the process if the system refuses one."""


_SELECT = (
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32,
)  # fmt: skip


class CpuKernel(HostKernel):
    """The entry points of a shared object. ctypes releases the GIL while they run."""

    name = "cpu"

    def __init__(self, binary: Binary) -> None:
        library = load_library(binary)
        self._workspace = library.attention_workspace
        self._workspace.argtypes = (ctypes.POINTER(ATTENTION),)
        self._workspace.restype = ctypes.c_int64
        self._select = None
        if hasattr(library, "attention_select"):
            self._select = library.attention_select
            self._select.argtypes = _SELECT
            self._select.restype = None
        self._functions = {}
        for entry in binary.entries:
            function = getattr(library, entry)
            function.argtypes = (ctypes.c_void_p, ctypes.c_int32)  # ATTENTION, or longer
            function.restype = None
            self._functions[Direction(entry.removeprefix("attention_"))] = function

    def workspace(self, block: ctypes.Structure) -> int:
        return int(self._workspace(ctypes.byref(block)))

    def best(self, scores: np.ndarray, live: np.ndarray, k: int) -> np.ndarray:
        """See maskc.layout.best: the same columns."""
        rows, columns = scores.shape
        width, threads = min(k, columns), thread_count()
        best = np.full((rows, width), NONE)
        if not width or not rows or self._select is None:
            return best
        scores = np.ascontiguousarray(scores, dtype=np.float32)
        live = np.ascontiguousarray(live, dtype=bool)
        ranks = np.empty(columns * threads, np.int32)
        kept = np.empty(2 * width * threads, np.uint64)
        _Threads.started = True
        self._select(
            scores.ctypes.data, live.ctypes.data, rows, columns, width, best.ctypes.data,
            ranks.ctypes.data, kept.ctypes.data, threads,
        )  # fmt: skip
        return best

    def run(
        self, plan: PreparedLaunch, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        """Run to completion."""
        block = filled(sent, pointers, numbers)
        entry, threads = self.entry(plan.direction)
        entry(ctypes.byref(block), threads)

    def entry(self, direction: Direction) -> tuple[Any, int]:
        """The function that computes a pass, and the threads that it may use."""
        _Threads.started = True
        return self._functions[direction], thread_count()


def load_library(binary: Binary) -> ctypes.CDLL:
    """Load verified bytes from a file that only this user can reach and nobody reads again.

    What the cache gave was checked when it was read; the file in the cache is not read a second
    time. The temporary directory may forbid executing; the cache's folder is tried then, where
    it is one that nobody else may write to.

    Raises:
        BuildFailed: the loader refuses it, for a missing symbol say.
    """
    refusal: OSError | None = None
    cache = open_cache()
    for parent in (None, cache.folder) if cache.usable else (None,):
        try:
            with tempfile.TemporaryDirectory(prefix="maskc-", dir=parent) as folder:
                path = Path(folder) / "kernel.so"
                path.write_bytes(binary.code)
                return ctypes.CDLL(str(path))
        except OSError as error:
            refusal = refusal or error
    raise BuildFailed("the dynamic loader", str(refusal)) from refusal
