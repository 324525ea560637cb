"""A readable report of a plan: work of each rank, messages, and predicted times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskc.distributed.layouts import GIVEN

if TYPE_CHECKING:
    from maskc.distributed.planning import Plan

_SHADES = " ·░▒▓█"
"""Nothing, less than 1/16 of what a rank holds, up to a quarter, a half, three quarters, all."""
_MAX_DRAWN = 32
"""Ranks a picture shows; more are drawn as groups of ranks."""
_MAX_LISTED = 8
"""Ranks whose shares are listed one by one."""
_MAX_RANGES = 8
"""Ranges of a rank's tokens that are listed."""


def explain(plan: Plan) -> str:
    """Return a report of a plan as lines of text; `Plan.explain` calls it."""
    lines = _head(plan)
    for name in plan.layers:
        lines += ["", *_layer(plan, name)]
    return "\n".join(lines) + "\n"


def _head(plan: Plan) -> list[str]:
    tokens = plan.layout.tokens
    spread = f"{tokens.min()}" if tokens.min() == tokens.max() else f"{tokens.min()}-{tokens.max()}"
    heads = plan.heads
    sizes = f"Hq {heads.q}, Hkv {heads.kv}, D {heads.dim}"
    sizes += f", Dv {heads.dim_v}" if heads.dim_v != heads.dim else ""
    why = ", ".join(f"{name} {_ms(milliseconds)}" for name, milliseconds in plan.tried.items())
    if plan.layout.name == GIVEN:
        layout = f"layout given by the caller, planned by blocks of {plan.block} tokens"
    else:
        layout = f"layout {plan.layout.name}, chunks of multiples of {plan.block} tokens"
    queries = "tokens"
    if plan.key_layout is not plan.layout:
        queries = f"queries and {plan.n_kv} keys ({plan.key_layout.name})"
    lines = [
        f"{plan.n} {queries} on {plan.ranks} ranks, {spread} each ({sizes}, {plan.dtype.value}, "
        f"batch {plan.batch})",
        f"{layout}; forward and backward of all masks: {why}",
    ]
    empty = int((tokens == 0).sum())
    if empty:
        lines.append(f"{empty} ranks hold no tokens: there are more ranks than blocks")
    return lines


def _layer(plan: Plan, name: str) -> list[str]:
    layer = plan.layer(name)
    forward, backward = plan.times(name)
    lines = [f"{name}: {layer.mask}"]
    if layer.reach.hull:
        names = ", ".join(layer.reach.hull)
        lines.append(f"  {names}: not given, so all keys that some {names} could keep are counted")
    size, received, sent = plan.token_bytes, layer.received, layer.sent
    kept = int(plan.key_layout.tokens.max(initial=0)) * (plan.ranks - 1)
    most = int(received.max(initial=0))
    granule = layer.reach.granule if (layer.parts.share == 1).all() else plan.block
    exact = "exact" if granule == 1 else f"exact to {granule} tokens"
    share = f", {most / kept:.1%} of all-gather" if kept else ""
    hidden = float(np.minimum(forward.travel, forward.inner).max(initial=0.0))
    lines += [
        f"  keys and values that a rank receives: {_bytes(most * size)} at most, "
        f"{_bytes(float(received.mean()) * size)} on average{share} ({exact}); "
        f"sent: {_bytes(int(sent.max(initial=0)) * size)} at most; gradients return the same way",
        f"  tiles: the slowest rank has {plan.imbalance(name):.3f} times the mean",
        f"  predicted on {plan.network.name} ({plan.network.gigabytes:g} GB/s): forward "
        f"{_ms(forward.total)}, backward {_ms(backward.total)}; messages take "
        f"{_ms(float(forward.travel.max(initial=0.0)))}, and {_ms(hidden)} of this overlaps "
        "with tiles",
        "  forward with other methods: "
        + ", ".join(f"{key} {_ms(value)}" for key, value in plan.others(name).items()),
    ]
    if layer.moved:
        lines.append(_moved(plan, name))
    if plan.ranks <= _MAX_LISTED:
        lines += [_rank(plan, name, rank) for rank in range(plan.ranks)]
    if plan.ranks > 1:
        lines += _picture(plan, name)
    return lines


def _moved(plan: Plan, name: str) -> str:
    """Describe the savings of queries that go to their keys."""
    layer = plan.layer(name)
    rows = ", ".join(f"{visit.start}-{visit.stop - 1}" for visit in layer.visits)
    homes = sorted({visit.home for visit in layer.visits})
    whose = f"rank{'s' if len(homes) > 1 else ''} {', '.join(map(str, homes))}"
    there, back = plan.visit_bytes[0]
    before = int(layer.at_home.received.max(initial=0)) * plan.token_bytes
    return (
        f"  queries {rows} of {whose} are sent to their keys ({_bytes(there)} each) and partial "
        f"results return ({_bytes(back)}); otherwise a rank would receive {_bytes(before)} of keys"
    )


def _rank(plan: Plan, name: str, rank: int) -> str:
    layer = plan.layer(name)
    held = sorted(layer.layout.held(rank).stretches, key=lambda x: x.place)
    ranges = ", ".join(f"{x.start}-{x.start + x.count - 1}" for x in held[:_MAX_RANGES])
    ranges += f" and {len(held) - _MAX_RANGES} more ranges" if len(held) > _MAX_RANGES else ""
    sources: dict[int, int] = {}
    for transfer in layer.receives(rank):
        sources[transfer.sender] = sources.get(transfer.sender, 0) + transfer.stop - transfer.start
    came = ", ".join(f"{count} from {sender}" for sender, count in sources.items())
    compute = float(plan.times(name)[0].compute[rank])
    return (
        f"  rank {rank}: tokens {ranges or 'none'}; {_ms(compute)} of tiles; keys: {came or 'none'}"
    )


def _picture(plan: Plan, name: str) -> list[str]:
    """Receivers by senders; a rank's own keys lie on the diagonal."""
    shares = shares_of(plan, name)
    rows = ["".join(_shade(value) for value in row) for row in shares.tolist()]
    group = -(-plan.ranks // _MAX_DRAWN)
    what = "a rank" if group == 1 else f"{group} ranks"
    legend = (
        "blank: nothing, · under 1/16 of the sender's keys, ░▒▓ up to a quarter, half, more, █ all"
    )
    return [
        f"  rows receive from columns, {what} each; {legend}",
        *(f"  |{row}|" for row in rows),
    ]


def shares_of(plan: Plan, name: str | None = None) -> np.ndarray:
    """float [groups, groups]: the share of the senders' keys that receivers have.

    There are 32 groups at most; with more ranks than that a group's first rank stands for it.
    """
    layer = plan.layer(name)
    group = -(-plan.ranks // _MAX_DRAWN)
    groups = -(-plan.ranks // group)
    shares = np.zeros((groups, groups))
    held = np.zeros(groups)
    np.add.at(held, np.arange(plan.ranks) // group, layer.key_layout.tokens)
    for row in range(groups):
        rank = row * group
        for transfer in layer.receives(rank):
            shares[row, transfer.sender // group] += transfer.stop - transfer.start
        if group == 1 and plan.key_layout is plan.layout:
            shares[row, row] += plan.layout.tokens[rank]
    return np.minimum(shares / np.maximum(held, 1), 1.0)


def _shade(share: float) -> str:
    if share <= 0:
        return _SHADES[0]
    limits = (1 / 16, 0.25, 0.5, 0.999)
    return _SHADES[1 + sum(share >= limit for limit in limits)]


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1e3 else f"{value / 1e3:.3g} s"


def _bytes(value: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"
