"""Which masks may run in tiles of 16 x 16, for rows that see very few keys."""

from __future__ import annotations

from functools import lru_cache

from maskc.analysis.rows import longest_row, tiles_alone
from maskc.core.bundle import N_KV_OF_ALL
from maskc.core.expr import Expr
from maskc.core.problem import Direction
from maskc.ir.types import MaskIR
from maskc.plan.families.sm90a_mma16 import TILE

MAX_KEYS = 48
"""The largest distance from the first to the last key of a row: with more than four tiles in a row,
these kernels are never predicted to be fastest."""


def matches(masks: tuple[MaskIR, ...], direction: Direction) -> bool:
    """Whether a mask that reads no data may run in these tiles at some lengths, by facts of its set
    with parameters at their defaults. Masks over a part of the keys do not: the total number of
    keys has no meaningful default."""
    if any(ir.data or N_KV_OF_ALL in ir.params for ir in masks):
        return False
    rows = [_longest_row(ir.keep) for ir in masks]
    if any(row is None or row > MAX_KEYS for row in rows) or not any(rows):
        return False
    return direction is Direction.forward or all(tiles_alone(TILE, ir.keep) for ir in masks)


@lru_cache(maxsize=256)
def _longest_row(keep: Expr) -> int | None:
    return longest_row(keep)
