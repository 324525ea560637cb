"""Work of one rank in one layer: messages, a buffer of keys, and calls over them.

Rows whose keys all lie in one stretch of the rank's own tokens need nothing of others: they run
while keys travel. The other rows read one buffer, in which what came and copies of some of the
rank's own keys lie in the order of the sequence. A rank with tokens from many places reads that
buffer in one call for all rows, with tables of the places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from maskc.distributed import stages
from maskc.distributed.local import LocalMask, localized, tabulated
from maskc.distributed.pieces import Joined, Lookup, Pieces
from maskc.distributed.token_ranges import PlacedTokens, Stretch, union

if TYPE_CHECKING:
    from maskc.distributed.planning import LayerPlan, Plan
    from maskc.distributed.stages import Stage

Messages = tuple[tuple[int, Pieces], ...]
"""(rank, tokens) of each message; what several ranks receive is the same object."""

_ALIGNED = 128
"""Tokens that stretches of a buffer begin at multiples of, as tiles do."""
_MAX_STRETCHES = 3
"""Stretches of a buffer; with more, the smallest gaps are filled with zeros."""
_WORTH = 4
"""Rows that need no remote keys run separately if they are at least 1 / this of their stretch."""


@dataclass(frozen=True, eq=False)
class RankCall:
    """Attention of some rows of the rank over some of its keys."""

    row: int
    """The first row among the rank's tokens."""
    rows: int
    own_keys: bool
    """Whether keys are the rank's own tokens instead of the buffer."""
    key: int
    """The first key there."""
    keys: int
    local: LocalMask
    positions: bool
    """Whether the last row is where the last key is, as distances in the kernel have it."""
    first: tuple[int, int] | None
    """The first query and the first key of a call, counted in the sequence; None if keys come
    from several places."""
    seen: PlacedTokens
    """Which keys of the sequence its keys are."""
    queries_of: np.ndarray | None = None
    """int64 [rows]: which queries of the sequence its rows are, in a call with tables."""

    @cached_property
    def place_of_key(self) -> Lookup:
        """Look-up of the places of keys among those of the call."""
        return Lookup(self.seen)

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
    """Rows of another rank that this rank computes over its own keys."""

    home: int
    """The rank whose rows they are, maybe this one."""
    rows: int
    """The number of that rank's queries that leave."""
    calls: tuple[RankCall, ...]
    """Over own keys; rows count from the first of those that leave."""


@dataclass(frozen=True, eq=False)
class RankWork:
    """All of a rank's work in one layer."""

    keys: int
    """The rank's own keys."""
    size: int
    """Tokens of the buffer; 0 where there is none."""
    outgoing: Messages
    """Tokens that each rank receives, as positions among this rank's own tokens."""
    incoming: Messages
    """Tokens that each rank sends, as positions in the buffer."""
    came: Pieces
    """All that the buffer receives."""
    copies: tuple[Stretch, ...]
    """Own tokens, by their slots, that the buffer has too."""
    gaps: tuple[tuple[int, int], ...]
    """Tokens of the buffer that no query needs: filled with zeros, so that they are finite."""
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

    @cached_property
    def copied(self) -> tuple[Pieces, Pieces]:
        """All copies: own tokens, and their places in the buffer."""
        sources = Pieces((copy.start, copy.count) for copy in self.copies)
        return sources, Pieces((copy.place, copy.count) for copy in self.copies)

    @property
    def mostly_copies(self) -> bool:
        """Whether a buffer holds so much of the rank's own that it is rather made again."""
        return self.copied[0].tokens >= 2 * self.came.tokens


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
    if layer.by_tables and not one_stretch:
        calls, buffer = _together(plan, layer, rank)
    else:
        calls, buffer = _apart(plan, layer, rank, 1 if one_stretch else _MAX_STRETCHES)
    held = layer.key_layout.held(rank)
    copies, receives, gaps = _filled(layer, rank, held, buffer)
    sends = layer.sends(rank)
    start, stop = (np.array([getattr(x, at) for x in sends], np.int64) for at in ("start", "stop"))
    sent = ((sends[at].receiver, x.place, x.count) for at, x in held.common(start, stop))
    came = Pieces((place, count) for _, place, count in receives)
    return RankWork(
        held.tokens, _size(buffer), _by_peer(sent), _by_peer(receives), came, copies, gaps,
        tuple(calls), *_visits(plan, layer, rank, held),
    )  # fmt: skip


def _apart(
    plan: Plan, layer: LayerPlan, rank: int, most: int
) -> tuple[list[RankCall], list[Stretch]]:
    """(calls for the rows of each stretch of tokens, the buffer that those share).

    Args:
        most: stretches of the buffer, at most.
    """
    inner, outer = _rows(layer, layer.layout.held(rank).stretches)
    buffer = _stretches(layer, [rows for _, rows in outer], most)
    calls = []
    for stretch, (start, stop) in inner:
        keys = Stretch(stretch.start, 0, stretch.count)
        row = stretch.place + start - stretch.start
        calls.append(_call(plan, layer, row, start, stop, [keys], True, stretch.place))
    for stretch, (start, stop) in outer:
        keys_of, key = _part(layer, buffer, start, stop)
        row = stretch.place + start - stretch.start
        calls.append(_call(plan, layer, row, start, stop, keys_of, not keys_of, key))
    return calls, buffer


def _together(plan: Plan, layer: LayerPlan, rank: int) -> tuple[list[RankCall], list[Stretch]]:
    """(one call for all rows, the buffer that it reads), with tables of the tokens of both."""
    rows = layer.layout.indices(rank)
    if not len(rows):
        return [], []
    travels = bool(layer.halo.tokens[rank])
    keys = layer.needs.side_by_side(rank) if travels else layer.key_layout.held(rank)
    if not len(keys):
        return [_call(plan, layer, 0, 0, len(rows), [], True, 0)], []
    local = tabulated(
        layer.mask, (plan.n, plan.n_kv), plan.heads.q, rows, keys.sequence, plan.data_of(layer)
    )
    call = RankCall(0, len(rows), not travels, 0, keys.tokens, local, False, None, keys, rows)
    return [call], keys.stretches if travels else []


def _visits(
    plan: Plan, layer: LayerPlan, rank: int, held: PlacedTokens
) -> tuple[Pieces, tuple[int, ...], tuple[Guest, ...]]:
    """(own tokens that leave, the other ranks that they go to, rows that come)."""
    leaving = Pieces(
        (x.place, x.count)
        for visit in layer.visits if visit.home == rank
        for x in held.inside(visit.start, visit.stop)
    )  # fmt: skip
    _, hosts = layer.hosts.get(rank, (0, np.zeros(0, np.int64)))
    guests = []
    for home in sorted(home for home, (_, some) in layer.hosts.items() if rank in some):
        calls, row = [], 0
        for visit in (x for x in layer.visits if x.home == home):
            for mine in held.stretches:
                first, last = mine.start, mine.start + mine.count
                seen = [(max(low, first), min(high, last)) for low, high in visit.keys]
                seen = [x for x in seen if x[0] < x[1]]
                if seen:
                    start = seen[0][0] - (seen[0][0] - first) % _ALIGNED
                    keys = [Stretch(start, 0, seen[-1][1] - start)]
                    calls.append(_call(plan, layer, row, visit.start, visit.stop, keys, True,
                                       mine.place + start - first))  # fmt: skip
            row += visit.stop - visit.start
        guests.append(Guest(home, row, tuple(calls)))
    return leaving, tuple(hosts[hosts != rank].tolist()), tuple(guests)


Rows = list[tuple[Stretch, tuple[int, int]]]
"""(the rank's stretch, (first row, past the last) in the sequence)."""


def _rows(layer: LayerPlan, stretches: list[Stretch]) -> tuple[Rows, Rows]:
    """Rows that need nothing of others, the longest run of each stretch; and all others."""
    inner: Rows = []
    outer: Rows = []
    edges = np.append(layer.parts.first, layer.layout.n)
    for stretch in stretches:
        start, stop = stretch.start, stretch.start + stretch.count
        first, last = np.searchsorted(edges, [start, stop]).tolist()
        begin, end = _longest_run(layer.inner[first:last])
        low, high = int(edges[first + begin]), int(edges[first + end])
        if (high - low) * _WORTH < stop - start:
            outer.append((stretch, (start, stop)))
            continue
        inner.append((stretch, (low, high)))
        outer += [(stretch, rows) for rows in ((start, low), (high, stop)) if rows[0] < rows[1]]
    stay = [(stretch, rows) for stretch, part in outer for rows in _staying(layer, *part)]
    return inner, stay


def _staying(layer: LayerPlan, start: int, stop: int) -> list[tuple[int, int]]:
    """Return rows without the moved ones."""
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
    rest = (plan.n, plan.n_kv), plan.heads.q, start, stop - start, keys
    local = localized(layer.mask, *rest, plan.data_of(layer))
    single = len(keys) <= 1
    aligned = single and (not keys or keys[0].start + size == stop + plan.n_kv - plan.n)
    first = (start, keys[0].start if keys else 0) if single else None
    seen = PlacedTokens.of(keys)
    return RankCall(row, stop - start, own_keys, key, size, local, aligned, first, seen)


def _size(buffer: list[Stretch]) -> int:
    return buffer[-1].place + buffer[-1].count if buffer else 0


def _filled(
    layer: LayerPlan, rank: int, held: PlacedTokens, buffer: list[Stretch]
) -> tuple[tuple[Stretch, ...], list[tuple[int, int, int]], tuple[tuple[int, int], ...]]:
    """Find where each part of the buffer comes from: own tokens, (rank, place, count) that come,
    (first, past the last) of nowhere."""
    places, receives, filled = PlacedTokens.of(buffer), layer.receives(rank), []
    copies = []
    for at, x in held.common(places.start, places.stop):
        copies.append(Stretch(x.place, buffer[at].place + x.start - buffer[at].start, x.count))
        filled.append((copies[-1].place, copies[-1].place + x.count))
    start, stop = (np.array([getattr(x, at) for x in receives], np.int64)
                   for at in ("start", "stop"))  # fmt: skip
    came = []
    for at, x in places.common(start, stop):
        came.append((receives[at].sender, x.place, x.count))
        filled.append((x.place, x.place + x.count))
    gaps, last = [], 0
    size = _size(buffer)
    for first, end in [*sorted(filled), (size, size)]:
        if last < first:
            gaps.append((last, first))
        last = max(last, end)
    return tuple(copies), came, tuple(gaps)
