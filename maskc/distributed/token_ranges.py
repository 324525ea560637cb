"""Sets of tokens, one for each rank, as ascending ranges; all ranks at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stretch:
    """Tokens start .. start + count - 1, of the sequence or of a rank, in consecutive places from
    `place` on."""

    start: int
    place: int
    count: int


@dataclass(frozen=True, eq=False)
class PlacedTokens:
    """Ascending stretches of tokens with their places, in a rank's slots or in a buffer."""

    start: np.ndarray
    """int64 [stretches]."""
    stop: np.ndarray
    """int64 [stretches], past the end."""
    place: np.ndarray
    """int64 [stretches]: where the first token of each lies."""

    @classmethod
    def of(cls, stretches: list[Stretch]) -> PlacedTokens:
        """Collect stretches, which ascend."""
        columns = [(x.start, x.start + x.count, x.place) for x in stretches]
        start, stop, place = np.array(columns, np.int64).reshape(-1, 3).T
        return cls(start, stop, place)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int((self.stop - self.start).sum())

    @property
    def stretches(self) -> list[Stretch]:
        """The stretches one by one."""
        columns = (self.start, self.place, self.stop - self.start)
        return [Stretch(*x) for x in zip(*(column.tolist() for column in columns), strict=True)]

    def inside(self, start: int, stop: int) -> list[Stretch]:
        """The parts of the stretches that have tokens start .. stop - 1."""
        return [x for _, x in self.common(np.array([start]), np.array([stop]))]

    def common(self, start: np.ndarray, stop: np.ndarray) -> list[tuple[int, Stretch]]:
        """(number of a range, a part of a stretch that lies in it), range by range.

        Args:
            start, stop: int64 [ranges], in any order.
        """
        number, at = meetings(start, stop, self.start, self.stop)
        low = np.maximum(start[number], self.start[at])
        count = np.minimum(stop[number], self.stop[at]) - low
        columns = low, self.place[at] + low - self.start[at], count
        parts = (Stretch(*x) for x in zip(*(column.tolist() for column in columns), strict=True))
        return list(zip(number.tolist(), parts, strict=True))

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """All tokens, ascending, and the place of each: int64 [tokens] each."""
        counts = self.stop - self.start
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(self.start, counts) + within, np.repeat(self.place, counts) + within

    @property
    def sequence(self) -> np.ndarray:
        """int64 [tokens]: the token in each place, where places are 0, 1, ... without gaps."""
        ascending, places = self.pairs
        tokens = np.empty_like(ascending)
        tokens[places] = ascending
        return tokens


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

    def columns(self, owner: int) -> tuple[np.ndarray, np.ndarray]:
        """The starts and the stops of one owner's ranges, int64 [ranges] each."""
        part = slice(int(self.ptr[owner]), int(self.ptr[owner + 1]))
        return self.start[part], self.stop[part]

    def of(self, owner: int) -> list[tuple[int, int]]:
        """The ranges (start, stop) of one owner."""
        start, stop = self.columns(owner)
        return list(zip(start.tolist(), stop.tolist(), strict=True))

    def side_by_side(self, owner: int) -> PlacedTokens:
        """Place the tokens of one owner next to each other."""
        start, stop = self.columns(owner)
        return PlacedTokens(start, stop, np.cumsum(stop - start) - (stop - start))

    def on_one_line(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift all ranges onto one line, owner after owner, so that they are ordered and
        disjoint."""
        shift = self.owner * (self.n + 1)
        return self.start + shift, self.stop + shift

    def complement(self) -> RangeSets:
        """The tokens that each owner lacks."""
        owners = np.arange(len(self))
        first, last = owners * (self.n + 1), owners * (self.n + 1) + self.n
        start, stop = self.on_one_line()
        starts = np.sort(np.concatenate([first, stop]))
        stops = np.sort(np.concatenate([start, last]))
        return _split(self.n, len(self), starts, stops)

    def intersect(self, other: RangeSets) -> RangeSets:
        """The tokens that both sets of each owner have."""
        start, stop = self.on_one_line()
        begin, end = other.on_one_line()
        mine, its = meetings(start, stop, begin, end)
        return _split(
            self.n, len(self), np.maximum(start[mine], begin[its]), np.minimum(stop[mine], end[its])
        )

    def without(self, other: RangeSets) -> RangeSets:
        """The tokens of each owner that the other set lacks."""
        return self.intersect(other.complement())


def meetings(
    start: np.ndarray, stop: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of ranges with common tokens: (which of the first ones, which of the others).

    Args:
        start, stop: int64 [ranges], in any order; pairs come in this order.
        begin, end: int64 [others], ascending and disjoint.
    """
    low = np.searchsorted(end, start, side="right")
    count = (np.searchsorted(begin, stop, side="left") - low).clip(0)
    mine = np.repeat(np.arange(len(start)), count)
    return mine, np.repeat(low - np.cumsum(count) + count, count) + np.arange(len(mine))


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
