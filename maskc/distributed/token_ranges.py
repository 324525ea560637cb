"""Sets of tokens, one for each rank, as ascending ranges; all ranks at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class RangeSets:
    """A set of tokens below n for each owner (a rank, mostly), as ranges that do not touch."""

    n: int
    ptr: np.ndarray
    """int64 [owners + 1]: the ranges of owner i are ptr[i] .. ptr[i + 1] - 1."""
    start: np.ndarray
    """int64 [ranges]."""
    stop: np.ndarray
    """int64 [ranges], past the end."""

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @property
    def owner(self) -> np.ndarray:
        """int64 [ranges]: whose range it is."""
        return np.repeat(np.arange(len(self)), np.diff(self.ptr))

    @property
    def tokens(self) -> np.ndarray:
        """int64 [owners]: how many tokens each has."""
        sums = np.concatenate([[0], np.cumsum(self.stop - self.start)])
        counts: np.ndarray = sums[self.ptr[1:]] - sums[self.ptr[:-1]]
        return counts

    def of(self, owner: int) -> list[tuple[int, int]]:
        """The ranges (start, stop) of one owner."""
        stretch = slice(int(self.ptr[owner]), int(self.ptr[owner + 1]))
        return list(zip(self.start[stretch].tolist(), self.stop[stretch].tolist(), strict=True))

    def _flat(self) -> tuple[np.ndarray, np.ndarray]:
        """All ranges on one line, owner after owner, which keeps them in order and apart."""
        shift = self.owner * (self.n + 1)
        return self.start + shift, self.stop + shift

    def complement(self) -> RangeSets:
        """The tokens that each owner lacks."""
        owners = np.arange(len(self))
        first, last = owners * (self.n + 1), owners * (self.n + 1) + self.n
        start, stop = self._flat()
        starts = np.sort(np.concatenate([first, stop]))
        stops = np.sort(np.concatenate([start, last]))
        return _split(self.n, len(self), starts, stops)

    def intersect(self, other: RangeSets) -> RangeSets:
        """The tokens that both sets of each owner have."""
        start, stop = self._flat()
        begin, end = other._flat()
        low = np.searchsorted(end, start, side="right")
        count = (np.searchsorted(begin, stop, side="left") - low).clip(0)
        mine = np.repeat(np.arange(len(start)), count)
        its = np.repeat(low - np.cumsum(count) + count, count) + np.arange(len(mine))
        return _split(
            self.n, len(self), np.maximum(start[mine], begin[its]), np.minimum(stop[mine], end[its])
        )

    def without(self, other: RangeSets) -> RangeSets:
        """The tokens of each owner that the other set lacks."""
        return self.intersect(other.complement())


def union(n: int, owners: int, owner: np.ndarray, start: np.ndarray, stop: np.ndarray) -> RangeSets:
    """Make sets of tokens from ranges in any order, which may overlap or be empty.

    Args:
        n: where ranges end at most.
        owners: how many sets there are.
        owner, start, stop: int64 [ranges]: the set of each range, its first token, and the end.
    """
    some = start < stop
    shift = owner[some].astype(np.int64) * (n + 1)
    first, last = start[some] + shift, stop[some] + shift
    if not np.all(first[1:] >= first[:-1]):
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    reach = np.maximum.accumulate(last)
    new = np.ones(len(first), dtype=bool)
    new[1:] = first[1:] > reach[:-1]
    final = np.ones(len(first), dtype=bool)
    final[:-1] = new[1:]
    return _split(n, owners, first[new], reach[final])


def _split(n: int, owners: int, start: np.ndarray, stop: np.ndarray) -> RangeSets:
    """Make sets of ranges on one line, which ascend; empty ones are dropped."""
    some = start < stop
    start, stop = start[some], stop[some]
    owner = start // (n + 1)
    ptr = np.searchsorted(owner, np.arange(owners + 1)).astype(np.int64)
    shift = owner * (n + 1)
    return RangeSets(n, ptr, start - shift, stop - shift)
