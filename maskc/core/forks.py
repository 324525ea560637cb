"""Locks in forked processes. A child has one thread, and what others held when it was made would
stay locked for ever: PyTorch's DataLoader forks its workers while kernels are built."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any
from weakref import WeakSet

_open_in_child: WeakSet[Any] = WeakSet()


def new_lock() -> threading.Lock:
    """Return a lock that is open in a forked process.

    It suits data that are consistent at any time, such as dictionaries to which finished objects
    are added.
    """
    lock = threading.Lock()
    _open_in_child.add(lock)
    return lock


def wait_before_fork(lock: Any) -> None:
    """Let forks wait until no other thread holds a reentrant lock: the data of a library are
    inconsistent while it is held."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def _open_locks() -> None:
    for lock in _open_in_child:
        lock._at_fork_reinit()
    if sys.version_info >= (3, 12):
        return
    modules = [x for name, x in list(sys.modules.items()) if name.startswith("maskc.")]
    for kind in {x for module in modules for x in vars(module).values() if isinstance(x, type)}:
        for member in vars(kind).values():  # which had locks before 3.12
            if isinstance(member, functools.cached_property):
                member.lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_locks)
