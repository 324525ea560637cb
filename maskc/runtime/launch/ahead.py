"""Builds ahead: what calls of other lengths may need is compiled while the first call waits for its
own kernel, so that no later call meets a source that nobody has built.
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
"""Compiles one source; does nothing where that is done. It loads nothing: no call of the driver
comes from these threads, as one would break a capture that is under way in another."""


class Ahead:
    """Jobs under way. A process that ends waits for those that have begun, and starts no other."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = deque(jobs)
        self._began = time.monotonic()
        workers = min(len(self._jobs), max(1, processors() - 1))
        self._threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def wait_as_long_again(self) -> None:
        """Wait until all is built, at most as long as the call has taken until now.

        With a processor for each source that takes about no time, as all began together. With few
        processors the rest goes on behind the next calls.
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
