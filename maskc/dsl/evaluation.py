"""Arrays that a user's function computes for given lengths, from the current content of its
tensors.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maskc.core.captured import Captured, version_of
from maskc.core.source import SourceLoc

_MAX_KNOWN = 4
"""Calls whose arrays are kept."""


def _apart(evaluate: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Compute the arrays in a separate thread, on the caller's GPU stream.

    A thread may be inside an operator, a compiler's mode or autocast, where torch.vmap must not
    run.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    stream = cuda.current_stream() if cuda is not None and cuda.is_initialized() else None

    def run() -> tuple[np.ndarray, ...]:
        if cuda is None or stream is None:
            return evaluate()
        with cuda.stream(stream):
            return evaluate()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


class Evaluated(ABC):
    """Computes arrays, and computes them again after a write to a tensor that they depend on."""

    def __init__(self, tensors: tuple[Any, ...], at: SourceLoc | None) -> None:
        """Store the arguments; nothing is computed yet.

        Args:
            tensors: what it reads.
            at: the source line of the part that cannot be traced.
        """
        self.tensors, self.at = tensors, at
        self._present: Moment | None = None

    @property
    @abstractmethod
    def sequences(self) -> int:
        """The number of sequences with pairs of their own."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """The number of heads with pairs of their own."""

    @abstractmethod
    def what_decides(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[int, ...]:
        """The sizes of a call that determine the content of the arrays."""

    @abstractmethod
    def evaluate(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
        """The arrays at this moment."""

    def kept(self, array: np.ndarray) -> Any:
        """An array, as masks read it."""
        return Captured(array, self.at)

    def now(self) -> Moment:
        """Return this object with the current content of its tensors."""
        versions = tuple(map(version_of, self.tensors))
        if self._present is None or None in versions or self._present.versions != versions:
            self._present = Moment(self, versions)
        return self._present

    def arrays(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[Any, ...]:
        """The arrays of a call at this moment, remembered for a few."""
        return self.now().arrays(batch, heads, n_q, n_kv)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_present": None}


@dataclass(eq=False)
class Moment:
    """The arrays that an Evaluated computes for calls that began at one moment."""

    of: Evaluated
    versions: tuple[int | None, ...]
    known: dict[tuple[int, ...], tuple[Any, ...]] = field(default_factory=dict)

    @property
    def at(self) -> SourceLoc | None:
        """The place of what cannot be followed."""
        return self.of.at

    @property
    def sequences(self) -> int:
        """The number of sequences with pairs of their own."""
        return self.of.sequences

    @property
    def heads(self) -> int:
        """The number of heads with pairs of their own."""
        return self.of.heads

    def now(self) -> Moment:
        """This object."""
        return self

    def arrays(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[Any, ...]:
        """The arrays of a call, remembered for a few."""
        call = self.of.what_decides(batch, heads, n_q, n_kv)
        arrays = self.known.get(call)
        if arrays is None:
            made = _apart(lambda: self.of.evaluate(batch, heads, n_q, n_kv))
            arrays = tuple(map(self.of.kept, made))
            if len(self.known) >= _MAX_KNOWN:
                del self.known[next(iter(self.known))]
            self.known[call] = arrays
        return arrays

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "known": {}}
