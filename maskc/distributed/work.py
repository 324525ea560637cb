"""Work of one rank in one layer: messages, a buffer of keys, and calls over them.

Rows whose keys all lie in one stretch of the rank's own tokens need nothing of others: they run
while keys travel. The other rows read one buffer, in which what came and copies of some of the
rank's own keys lie in the order of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from maskc.distributed import stages
from maskc.distributed.local import LocalMask, Stretch, localized
from maskc.distributed.pieces import Joined, Pieces
from maskc.distributed.token_ranges import union

if TYPE_CHECKING:
    from maskc.distributed.planning import LayerPlan, Plan
    from maskc.distributed.stages import Stage

Messages = tuple[tuple[int, Pieces], ...]
"""(rank, tokens) of each message; what several ranks receive is the same object."""

_ALIGNED = 128
"""Tokens that stretches of a buffer begin at multiples of, as tiles do."""
_MOST_STRETCHES = 3
"""Stretches of a buffer; with more, the smallest gaps are filled with zeros."""
_WORTH = 4
"""Rows that need nothing run apart where they are at least 1 / this of their stretch."""


@dataclass(frozen=True)
class Copy:
    """Own tokens `source` .. that the buffer has from `place` on, too."""

    source: int
    place: int
    count: int


@dataclass(frozen=True, eq=False)
class RankCall:
    """Attention of some rows of the rank over some of its keys."""

    row: int
    """The first row among the rank's tokens."""
    rows: int
    own_keys: bool
    """Whether keys are the rank's own; else those of the buffer."""
    key: int
    """The first key there."""
    keys: int
    local: LocalMask
    positions: bool
    """Whether the last row is where the last key is, as distances in the kernel have it."""
    first: tuple[int, int] | None
    """The first query and the first key of a call, counted in the sequence; None where keys come
    from several places."""

    @property
    def queries(self) -> slice:
        """The rows among the rank's tokens, or among those that a guest brought."""
        return slice(self.row, self.row + self.rows)

    @property
    def places(self) -> slice:
        """The keys among the rank's own, or in the buffer."""
        return slice(self.key, self.key + self.keys)


@dataclass(frozen=True, eq=False)
class Guest:
    """Rows that this rank computes over its own keys, as far as those go."""

    home: int
    """The rank whose rows they are, maybe this one."""
    rows: int
    """The number of that rank's queries that leave."""
    calls: tuple[RankCall, ...]
    """Over own keys; rows count from the first of those that leave."""


@dataclass(frozen=True, eq=False)
class RankWork:
    """All of a rank's work in one layer."""

    tokens: int
    size: int
    """Tokens of the buffer; 0 where there is none."""
    outgoing: Messages
    """Tokens that each rank receives, as positions among this rank's own tokens."""
    incoming: Messages
    """Tokens that each rank sends, as positions in the buffer."""
    came: Pieces
    """All that the buffer receives."""
    copies: tuple[Copy, ...]
    gaps: tuple[tuple[int, int], ...]
    """Tokens of the buffer that nobody needs: zeros, so that nothing of them is ever not finite."""
    calls: tuple[RankCall, ...]
    """The calls of the kernels; calls that need nothing of others come first."""
    leaving: Pieces
    """Own tokens whose queries go to their keys."""
    hosts: tuple[int, ...]
    """The other ranks that hold some of these keys."""
    guests: tuple[Guest, ...]
    """By rank; the rank's own queries that leave are among them where it has keys of theirs."""

    @cached_property
    def many_sent(self) -> Joined:
        """The messages of `outgoing` that have many stretches."""
        return Joined.of(self.outgoing)

    @cached_property
    def many_came(self) -> Joined:
        """The messages of `incoming` that have many stretches."""
        return Joined.of(self.incoming)

    @property
    def moves(self) -> bool:
        """Whether this rank has a part in rows that go to their keys."""
        return bool(self.guests or self.hosts)

    @cached_property
    def forward(self) -> tuple[Stage, ...]:
        """The stages of the forward pass."""
        return stages.forward(self)

    @cached_property
    def backward(self) -> tuple[Stage, ...]:
        """The stages of the backward pass."""
        return stages.backward(self)

    @property
    def mostly_copies(self) -> bool:
        """Whether a buffer holds so much of the rank's own that it is rather made again."""
        return sum(copy.count for copy in self.copies) >= 2 * self.came.tokens


def _by_peer(stretches: Iterable[tuple[int, int, int]]) -> Messages:
    """One message for each rank, ascending, from (rank, first token, how many)."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for peer, place, count in stretches:
        ranges.setdefault(peer, []).append((place, count))
    known: dict[tuple[tuple[int, int], ...], Pieces] = {}
    return tuple(
        (peer, known.setdefault(tuple(ranges_of), Pieces(ranges_of)))
        for peer, ranges_of in sorted(ranges.items())
    )


def work_of(plan: Plan, layer: LayerPlan, rank: int, one_stretch: bool = False) -> RankWork:
    """A rank's work.

    Args:
        one_stretch: whether the buffer is one stretch of the sequence, whatever its gaps are.

    Raises:
        PlanData: the mask reads data that the plan was not given (MC702).
        NotShared: a selection that shards would cut (MC707).
    """
    ranges = layer.layout.own.of(rank)
    places = np.cumsum([0, *(stop - start for start, stop in ranges)]).tolist()
    inner, outer = _rows(layer, ranges)
    most = 1 if one_stretch else _MOST_STRETCHES
    buffer = _stretches(layer, [rows for _, rows in outer], most)
    calls = []
    for number, (start, stop) in inner:
        first, last = ranges[number]
        keys = Stretch(first, 0, last - first)
        calls.append(
            _call(plan, layer, places[number] + start - first, start, stop, [keys], True,
                  places[number])
        )  # fmt: skip
    for number, (start, stop) in outer:
        row = places[number] + start - ranges[number][0]
        keys_of, key = _part(layer, buffer, start, stop)
        calls.append(_call(plan, layer, row, start, stop, keys_of, False, key))
    size = buffer[-1].place + buffer[-1].count if buffer else 0
    copies, receives, gaps = _filled(layer, rank, ranges, places, buffer)
    sends = (
        (transfer.receiver, _place(ranges, places, transfer.start), transfer.stop - transfer.start)
        for transfer in layer.sends(rank)
    )
    came = Pieces((place, count) for _, place, count in receives)
    return RankWork(
        places[-1], size, _by_peer(sends), _by_peer(receives), came, copies, gaps, tuple(calls),
        *_visits(plan, layer, rank, ranges, places),
    )  # fmt: skip


def _visits(
    plan: Plan, layer: LayerPlan, rank: int, stretches: list[tuple[int, int]], places: list[int]
) -> tuple[Pieces, tuple[int, ...], tuple[Guest, ...]]:
    """(own tokens that leave, the other ranks that they go to, rows that come)."""
    leaving = Pieces(
        (_place(stretches, places, visit.start), visit.stop - visit.start)
        for visit in layer.visits if visit.home == rank
    )  # fmt: skip
    _, held = layer.hosts.get(rank, (0, np.zeros(0, np.int64)))
    guests = []
    for home in sorted(home for home, (_, hosts) in layer.hosts.items() if rank in hosts):
        calls, row = [], 0
        for visit in (x for x in layer.visits if x.home == home):
            for (first, last), place in zip(stretches, places, strict=False):
                seen = [(max(low, first), min(high, last)) for low, high in visit.keys]
                seen = [x for x in seen if x[0] < x[1]]
                if seen:
                    start = seen[0][0] - (seen[0][0] - first) % _ALIGNED
                    keys = [Stretch(start, 0, seen[-1][1] - start)]
                    calls.append(_call(plan, layer, row, visit.start, visit.stop, keys, True,
                                       place + start - first))  # fmt: skip
            row += visit.stop - visit.start
        guests.append(Guest(home, row, tuple(calls)))
    return leaving, tuple(held[held != rank].tolist()), tuple(guests)


Rows = list[tuple[int, tuple[int, int]]]
"""(which of the rank's stretches, (first row, past the last) in the sequence)."""


def _rows(layer: LayerPlan, stretches: list[tuple[int, int]]) -> tuple[Rows, Rows]:
    """Rows that need nothing of others, the longest run of each stretch; and all others."""
    inner: Rows = []
    outer: Rows = []
    for number, (start, stop) in enumerate(stretches):
        first, last = start // layer.block, -(-stop // layer.block)
        flags = layer.inner[first:last]
        begin, end = _longest_run(flags)
        low, high = (max(start, (first + begin) * layer.block),
                     min(stop, (first + end) * layer.block))  # fmt: skip
        if (high - low) * _WORTH < stop - start:
            outer.append((number, (start, stop)))
            continue
        inner.append((number, (low, high)))
        outer += [(number, rows) for rows in ((start, low), (high, stop)) if rows[0] < rows[1]]
    stay = [(number, rows) for number, part in outer for rows in _staying(layer, *part)]
    return inner, stay


def _staying(layer: LayerPlan, start: int, stop: int) -> list[tuple[int, int]]:
    """Some rows without those that go to their keys."""
    rows, at = [], start
    for visit in layer.visits:
        if start <= visit.start < stop:
            rows.append((at, visit.start))
            at = visit.stop
    return [x for x in (*rows, (at, stop)) if x[0] < x[1]]


def _longest_run(flags: np.ndarray) -> tuple[int, int]:
    """(first, past the last) of the longest stretch of true entries."""
    change = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    if not len(change):
        return 0, 0
    begins, ends = change[::2], change[1::2]
    best = int(np.argmax(ends - begins))
    return int(begins[best]), int(ends[best])


def _keys_of(layer: LayerPlan, rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The keys that some rows see, as ranges."""
    keys = layer.reach.keys
    starts, stops = [], []
    for start, stop in rows:
        part = slice(int(keys.ptr[start // layer.block]), int(keys.ptr[-(-stop // layer.block)]))
        starts.append(keys.start[part])
        stops.append(keys.stop[part])
    if not starts:
        return []
    begin, end = np.concatenate(starts), np.concatenate(stops)
    return union(keys.n, 1, np.zeros_like(begin), begin, end).of(0)


def _stretches(layer: LayerPlan, rows: list[tuple[int, int]], most: int) -> list[Stretch]:
    """The buffer of these rows: all keys that they see, and some gaps between them."""
    stretches = [[start - start % _ALIGNED, stop] for start, stop in _keys_of(layer, rows)]
    merged: list[list[int]] = []
    for start, stop in stretches:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = stop
        else:
            merged.append([start, stop])
    total = sum(stop - start for start, stop in merged)
    while len(merged) > 1:
        gaps = [after[0] - before[1] for before, after in pairwise(merged)]
        least = min(gaps)
        if len(merged) <= most and least > total // 2:
            break
        at = gaps.index(least)
        merged[at : at + 2] = [[merged[at][0], merged[at + 1][1]]]
        total += least
    place, made = 0, []
    for start, stop in merged:
        made.append(Stretch(start, place, stop - start))
        place += -(-(stop - start) // _ALIGNED) * _ALIGNED
    return made


def _part(
    layer: LayerPlan, buffer: list[Stretch], start: int, stop: int
) -> tuple[list[Stretch], int]:
    """(what some rows need of the buffer, the first token of it there)."""
    keys = _keys_of(layer, [(start, stop)])
    if not keys:
        return [], 0
    low, high = keys[0][0], keys[-1][1]
    used = [x for x in buffer if x.start < high and x.start + x.count > low]
    if len(used) > 1:
        first = used[0].place
        return [Stretch(x.start, x.place - first, x.count) for x in used], first
    (only,) = used
    low -= (low - only.start) % _ALIGNED
    return [Stretch(low, 0, high - low)], only.place + low - only.start


def _call(
    plan: Plan, layer: LayerPlan, row: int, start: int, stop: int, keys: list[Stretch],
    own_keys: bool, key: int,
) -> RankCall:  # fmt: skip
    size = keys[-1].place + keys[-1].count if keys else 0
    rest = plan.n, plan.heads.q, start, stop - start, keys
    local = localized(layer.mask, *rest, plan.data_of(layer))
    single = len(keys) <= 1
    aligned = single and (not keys or keys[0].start + size == stop)
    first = (start, keys[0].start if keys else 0) if single else None
    return RankCall(row, stop - start, own_keys, key, size, local, aligned, first)


def _place(stretches: list[tuple[int, int]], places: list[int], token: int) -> int:
    """Find where a token of the rank lies among its tokens."""
    for (start, stop), place in zip(stretches, places, strict=False):
        if start <= token < stop:
            return place + token - start
    raise LookupError(f"token {token} is not on this rank")


def _filled(
    layer: LayerPlan, rank: int, stretches: list[tuple[int, int]], places: list[int],
    buffer: list[Stretch],
) -> tuple[tuple[Copy, ...], list[tuple[int, int, int]], tuple[tuple[int, int], ...]]:  # fmt: skip
    """Find where each part of the buffer comes from: own tokens, (rank, place, count) that come,
    (first, past the last) of nowhere."""
    copies, receives, filled = [], [], []
    size = buffer[-1].place + buffer[-1].count if buffer else 0
    for stretch in buffer:
        end = stretch.start + stretch.count
        for (start, stop), place in zip(stretches, places, strict=False):
            low, high = max(start, stretch.start), min(stop, end)
            if low < high:
                at = stretch.place + low - stretch.start
                copies.append(Copy(place + low - start, at, high - low))
                filled.append((at, at + high - low))
    for came in layer.receives(rank):
        for stretch in buffer:
            if stretch.start <= came.start < stretch.start + stretch.count:
                at = stretch.place + came.start - stretch.start
                receives.append((came.sender, at, came.stop - came.start))
                filled.append((at, at + came.stop - came.start))
    gaps, last = [], 0
    for start, stop in [*sorted(filled), (size, size)]:
        if last < start:
            gaps.append((last, start))
        last = max(last, stop)
    return tuple(copies), receives, tuple(gaps)
