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

    def __init__(self, jobs: Sequence[Job], after: Ahead | None = None) -> None:
        """`after`: jobs that are more urgent; the first of these begins when all of them ended."""
        self._jobs, self._after = deque(jobs), after
        workers = min(len(self._jobs), max(1, processors() - 1))
        self._threads: list[threading.Thread] = []
        with suppress(RuntimeError):  # no more threads: the calls build what they need
            for _ in range(workers):
                # By default a thread is a daemon if the one that starts it is, as threads of
                # autograd are. At exit, nobody waits for daemons, and NVRTC would crash.
                thread = threading.Thread(target=self._work, daemon=False)
                thread.start()
                self._threads.append(thread)

    def wait(self) -> None:
        """Wait until all jobs ended."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        if self._after is not None:
            self._after.wait()
        with suppress(IndexError):  # no job is left
            while threading.main_thread().is_alive():
                job = self._jobs.popleft()
                with suppress(MaskcError):  # the call that needs it says so
                    job()


def start(jobs: Sequence[Job], after: Ahead | None = None) -> Ahead | None:
    """Begin to build, in threads of their own; None if there is nothing to do.

    Args:
        after: jobs to wait for, so that they have the processors to themselves.
    """
    return Ahead(jobs, after) if jobs else None


def processors() -> int:
    """Processors this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return (len(os.sched_getaffinity(0)) if known else os.cpu_count()) or 1
