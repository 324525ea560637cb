"""Choose the queries that are sent to their keys: few rows that see far more keys than all
others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from maskc import driver
from maskc.distributed.reach import Reach
from maskc.distributed.times import by_tiles

if TYPE_CHECKING:
    from maskc.distributed.planning import LayerPlan
    from maskc.distributed.setting import Setting

_FEW = 16
"""At most one row in this many moves."""
_APART = 2
"""Rows that move see at least this many times as many keys as rows that stay."""
_WORTH = 0.97
"""Rows move where both passes then take less than this share."""
_MAX_TRIALS = 4
_MAX_VISITS = 8
"""Stretches of rows: each is a call of every rank that holds its keys."""


def moved(layer: LayerPlan, wanted: bool | None, setting: Setting) -> LayerPlan:
    """Move blocks of queries of a layer to their keys, where that pays.

    It pays where the busiest rank then sends and receives fewer bytes in both passes together, and
    they are predicted to take less time.

    Args:
        wanted: False is never, True is wherever that is fewer bytes.
    """
    if layer.layout.ranks == 1 or wanted is False or not layer.travels:
        return layer
    if driver.selects(layer.mask) or layer.choosing:
        return layer  # what a query chooses depends on all of its keys
    if layer.by_tables or layer.key_layout is not layer.layout:  # visits are calls of stretches
        return layer

    def busiest(layer: LayerPlan) -> float:
        return float(sum(sent + received for sent, received in setting.traffic(layer)).max())

    def milliseconds(layer: LayerPlan) -> float:
        return sum(x.total for x in by_tiles(layer, setting))

    best, most = layer, busiest(layer)
    least: float | None = None
    for blocks in _outstanding(layer.reach):
        trial = replace(layer, moved=blocks)
        if len(trial.visits) > _MAX_VISITS or busiest(trial) >= most:
            continue
        if wanted:
            best, most = trial, busiest(trial)
            continue
        least = _WORTH * milliseconds(layer) if least is None else least
        if milliseconds(trial) < least:
            best, least = trial, milliseconds(trial)
    return best


def _outstanding(reach: Reach) -> Iterator[tuple[int, ...]]:
    """Yield sets of the blocks that see most keys, each ending before a large drop in the number of
    keys."""
    keys = reach.keys.tokens
    order = np.argsort(-keys, kind="stable")
    many = keys[order]
    last = max(1, len(keys) // _FEW)
    cuts = np.flatnonzero(many[:last] >= _APART * np.append(many[1:], 0)[:last])
    for cut in cuts[many[cuts] > 0][:_MAX_TRIALS].tolist():
        yield tuple(sorted(order[: cut + 1].tolist()))
