"""Predicted times of the passes of a plan, rank by rank.

Layouts are compared by the mask's tiles, which for all ranks are a few vectors. The final
prediction counts the kernels that the slowest ranks call, and the copies around them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core.errors import MaskcError
from maskc.core.problem import Direction
from maskc.distributed.costs import of_call
from maskc.distributed.pieces import FEW, MANY

if TYPE_CHECKING:
    from maskc.distributed.planning import LayerPlan, Plan
    from maskc.distributed.setting import Setting
    from maskc.distributed.work import RankWork

_COPIED = 1.2e9
"""Bytes that are copied inside a GPU in a millisecond, read and written."""
_CALL = 0.02
"""Milliseconds that each further piece of a rank costs: rows apart, and messages."""
_MAX_TILES = 1 << 21
"""Tiles of 128 x 128 up to which those of a rank's calls are counted."""
_NEAR = 0.98
"""Ranks with at least this share of the slowest predicted time are predicted exactly."""
_LAUNCH = 0.004
"""Milliseconds of a small copy."""
_MAX_PAIRS = 64
"""Ranks up to which it is looked at who waits for whom."""


@dataclass(frozen=True, eq=False)
class Times:
    """Predicted milliseconds of one pass of one layer, one entry for each rank."""

    tiles: np.ndarray
    """All of the rank's tiles."""
    compute: np.ndarray
    """Time of each rank's kernels, with launches, and copies to and from what travels."""
    inner: np.ndarray
    """Time of the kernels that run while keys travel."""
    travel: np.ndarray
    """Time of each rank's messages."""

    @property
    def each(self) -> np.ndarray:
        """The milliseconds of each rank, float [ranks]: messages hide under tiles that need none of
        them."""
        times: np.ndarray = self.compute - self.inner + np.maximum(self.travel, self.inner)
        return times

    @property
    def total(self) -> float:
        """The milliseconds of the slowest rank."""
        return float(self.each.max(initial=0.0))


def by_tiles(layer: LayerPlan, setting: Setting) -> tuple[Times, Times]:
    """Predict both passes by the mask's tiles in the cost model of usual kernels."""
    ranks, bytes_each, network = layer.layout.ranks, setting.token_bytes, setting.network
    pieces = np.diff(layer.layout.stretches[0].ptr)
    pieces = np.minimum(pieces, 1) if layer.by_tables else pieces
    received, sent = layer.received * bytes_each, layer.sent * bytes_each
    traffic = setting.traffic(layer)
    answered = network.microseconds / 1e3 * (traffic[0].sent > sent)  # after all else
    edge = np.bincount(layer.parts.rank, ~layer.inner, minlength=ranks) > 0
    calls = pieces + (edge & (not layer.by_tables))
    for _, hosts in layer.hosts.values():
        calls[hosts] += 1
    # a buffer of what came and of as many own tokens; what is sent is packed, for all ranks once
    packed = np.minimum(sent, layer.key_layout.tokens * bytes_each)
    copied = np.where(edge, 2 * received + packed, packed)
    copied = copied + np.where(layer.scattered, received + layer.span * bytes_each / 2, 0)
    copied = copied / _COPIED + (pieces > 1) * calls * _CALL
    times = []
    for pass_of, bytes_of, share in zip(setting.passes, traffic, layer.reach.shares, strict=True):
        travel = np.array([network.milliseconds(*x) for x in zip(*bytes_of, strict=True)])
        share *= setting.batch
        cycles = share * pass_of.of_blocks(layer.reach, layer.block)
        compute: Any = layer.by_rank(cycles * layer.stays)
        compute = compute + layer.hosted(cycles)
        compute = compute + share * pass_of.of_rows(layer.layout.tokens, setting.heads.q)
        inner = layer.by_rank(cycles, layer.inner)
        launches = calls * pass_of.card.launch_us / 1e3 + copied + answered
        tiles = pass_of.milliseconds(compute)
        times.append(Times(tiles, tiles + launches, pass_of.milliseconds(inner), travel))
    return times[0], times[1]


def by_calls(plan: Plan, layer: LayerPlan, rough: tuple[Times, Times]) -> tuple[Times, Times]:
    """Predict both passes anew for the ranks that are slowest by tiles, by the kernels that they
    call.

    What the other ranks take changes as these ranks' does on average.
    """
    if plan.ranks <= _MAX_PAIRS:
        forward, backward = (
            replace(x, travel=_until_both_are_done(layer, x.travel)) for x in rough
        )
        rough = forward, backward
    slowest = {int(np.argmax(x)) for times in rough for x in (times.each, times.travel) if len(x)}
    for rough_times in rough:  # of ranks with as many tiles the one that has most to do with others
        near = rough_times.each > _NEAR * rough_times.total
        slowest.add(int(np.argmax(near * (1 + layer.received))))
    made: dict[int, tuple[_Rank, _Rank]] = {}
    try:
        for rank in sorted(slowest):
            tiles = layer.by_rank(layer.reach.tiles)[rank] / layer.reach.heads
            exact = _of_rank(plan, plan.work_in(layer, rank)) if tiles <= _MAX_TILES else None
            if exact is None:
                return rough
            made[rank] = exact
    except MaskcError:  # data that a step brings, say
        return rough
    forward, backward = (
        _joined(times, {rank: both[number] for rank, both in made.items()})
        for number, times in enumerate(rough)
    )
    return forward, backward


def _until_both_are_done(layer: LayerPlan, travel: np.ndarray) -> np.ndarray:
    """Return when messages end: each ends when the busier of its two ranks has finished all of its
    messages."""
    ends = travel.copy()
    for rank in range(len(travel)):
        for sender in {transfer.sender for transfer in layer.receives(rank)}:
            ends[rank] = max(ends[rank], travel[sender])
            ends[sender] = max(ends[sender], travel[rank])
    return ends


@dataclass(frozen=True)
class _Rank:
    """Milliseconds of one pass of one rank."""

    inner: float
    outer: float
    copies: float


def _of_rank(plan: Plan, work: RankWork) -> tuple[_Rank, _Rank] | None:
    times = []
    for direction, (tokens, launches) in zip(Direction, _copied(work), strict=True):
        parts = [0.0, 0.0]
        visits = [(False, call) for guest in work.guests for call in guest.calls]
        for hides, call in [*((call.own_keys, call) for call in work.calls), *visits]:
            cost = of_call(call, plan.problem, direction, plan.heads.q)
            if cost is None:
                return None
            parts[hides] += plan.batch * cost
        outer, inner = parts
        copies = tokens * plan.token_bytes / _COPIED + launches * _LAUNCH
        times.append(_Rank(inner, outer, copies))
    return times[0], times[1]


def _copied(work: RankWork) -> tuple[tuple[float, int], tuple[float, int]]:
    """(tokens that are copied, filled or added, and by how many launches) of both passes."""
    distinct = {pieces for _, pieces in work.outgoing}
    sent = sum(pieces.tokens for pieces in distinct)
    scattered = sum(pieces.tokens for _, pieces in work.incoming if len(pieces) > 1)
    rows = work.copied[0].tokens
    cleared = work.size / 2 if len(work.gaps) > FEW else 0
    copies = 2 * (len(work.copies) if len(work.copies) <= MANY else 2)
    buffer, parts = rows + scattered + cleared, copies + min(len(work.gaps), FEW)
    again = bool(work.mostly_copies and work.size)
    returned = sum(pieces.tokens for _, pieces in work.outgoing)
    later = sorted(call.keys for call in work.calls if not call.own_keys)
    both = sum(later[:-1])  # gradients of several calls over the same keys
    packs = 2 * min(len(distinct), 2)
    return (
        (sent + buffer, packs + parts + 2 * (len(work.calls) > 1) + 2 * bool(scattered)),
        (again * buffer + work.came.tokens + 1.5 * (rows + returned + both),
         again * parts + packs + copies + 2 * len(work.outgoing)),
    )  # fmt: skip


def _joined(times: Times, made: dict[int, _Rank]) -> Times:
    compute, inner = times.compute.copy(), times.inner.copy()
    changes = []
    for rank, rank_times in made.items():
        total = rank_times.inner + rank_times.outer + rank_times.copies
        changes.append(total / compute[rank] if compute[rank] else 1.0)
    ratio = float(np.mean(changes)) if changes else 1.0
    compute, inner = ratio * compute, ratio * inner
    for rank, rank_times in made.items():
        compute[rank], inner[rank] = (
            rank_times.inner + rank_times.outer + rank_times.copies,
            rank_times.inner,
        )
    return replace(times, compute=compute, inner=inner)
