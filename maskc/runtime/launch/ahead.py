"""Compile kernels in threads: those of a call side by side, and those that later calls may need."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from maskc.core.errors import MaskcError

Job = Callable[[], object]
"""Compiles one source, if it is not compiled yet. It loads nothing: a driver call from these
threads would break a CUDA graph capture in another thread."""


class Ahead:
    """Jobs in progress. At exit, the process waits for running jobs and starts no more."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = deque(jobs)
        workers = min(len(self._jobs), max(1, processors() - 1))
        self._threads = [threading.Thread(target=self._work) for _ in range(workers)]
        with suppress(RuntimeError):  # no more threads: the calls build what they need
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        with suppress(IndexError):  # no job is left
            while threading.main_thread().is_alive():
                job = self._jobs.popleft()
                with suppress(MaskcError):  # the call that needs it says so
                    job()


def start(jobs: Sequence[Job]) -> Ahead | None:
    """Begin to build, in threads of their own; None if there is nothing to do."""
    return Ahead(jobs) if jobs else None


def processors() -> int:
    """Processors this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return (len(os.sched_getaffinity(0)) if known else os.cpu_count()) or 1
