"""A mask as a few intervals per row: what a kernel turns into bits without testing pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.ir.lift import Lifted
from maskc.layout.distances import parts_by_distance
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
    terms = E.alternatives(shape, MOST)
    if terms is None:
        return None
    return _of_all(terms)


def intervals_beside(keep: Expr, lifted: Lifted) -> tuple[Interval, ...] | None:
    """The same for what of a mask is left beside its part by distance, as bits in memory."""
    if E.arrays(keep):
        return None
    shape_of = {found: made for made, found in lifted.sources}
    rest = parts_by_distance(keep)[1]
    return _of_all([E.substitute(term, shape_of) for term in rest]) if len(rest) <= MOST else None


def _of_all(terms: Iterable[Expr]) -> tuple[Interval, ...] | None:
    found = []
    for term in terms:
        ranges = row_ranges(term, _PAIR)
        if ranges is None:
            return None
        found.append(Interval(ranges[0].live, ranges[1].live))
    return tuple(found)
