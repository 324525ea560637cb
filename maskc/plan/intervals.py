"""A mask as a few intervals per row: what a kernel turns into bits without testing pairs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.plan.ranges import TileRange, row_ranges

MOST = 6
"""Intervals per row up to which building bits from them is cheaper than testing pairs."""

_PAIR = TileShape(1, 1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Consecutive pairs: intervals of one mask may overlap."""

    keys: TileRange
    """Of a query, which the formulas call `ti`."""
    queries: TileRange
    """Of a key, `tj`."""


def intervals(shape: Expr) -> tuple[Interval, ...] | None:
    """Intervals whose union is the mask, per query and per key; None where there are too many,
    or rows or columns with gaps that no formula's `or` explains.

    Args:
        shape: a lifted formula; its constants stay symbolic.
    """
    if E.arrays(shape):
        return None
    terms = _alternatives(shape)
    if terms is None:
        return None
    found = []
    for term in terms:
        ranges = row_ranges(term, _PAIR)
        if ranges is None:
            return None
        found.append(Interval(ranges[0].live, ranges[1].live))
    return tuple(found)


def _alternatives(node: Expr) -> list[Expr] | None:
    """The formula as an `or` of at most MOST formulas."""
    if isinstance(node, E.Any):
        parts = [_alternatives(term) for term in node.terms]
        if None in parts or sum(map(len, parts)) > MOST:
            return None
        return [term for part in parts for term in part]
    if isinstance(node, E.All):
        choices = [_alternatives(term) for term in node.terms]
        if None in choices or prod(map(len, choices)) > MOST:
            return None
        return [E.conj(*chosen) for chosen in product(*choices)]
    return [node]
