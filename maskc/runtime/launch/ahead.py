"""Compile kernels for other lengths while the first call waits for its own kernel, so that later
calls do not have to wait.
"""

from __future__ import annotations

import os
import threading
import time
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
        self._began = time.monotonic()
        workers = min(len(self._jobs), max(1, processors() - 1))
        self._threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def wait_as_long_again(self) -> None:
        """Wait until all is built, at most as long as the call has taken until now.

        With one processor per source this takes almost no time, because all jobs began together.
        With few processors, the other jobs continue during the next calls.
        """
        until = 2 * time.monotonic() - self._began
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

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
