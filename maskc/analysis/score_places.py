"""Which pairs share an entry of a table: their shares of its gradient are added up together."""

from __future__ import annotations

from enum import Enum

from maskc.core import expr as E
from maskc.core import score as S


class Spread(Enum):
    """Property shared by all pairs of a head that read the same entry, at any lengths."""

    one = "one"
    """All pairs read one entry."""
    row = "row"
    """All pairs of a query read one entry."""
    column = "column"
    """All pairs of a key read one entry."""
    diagonal = "diagonal"
    """All pairs at one distance read one entry."""
    pair = "pair"
    """Nothing is known."""


def spread(read: S.Read) -> Spread:
    """The pairs that surely read the same entry."""
    nodes = [node for index in read.index for node in E.walk(index)]
    if any(isinstance(node, (S.Score, S.Read)) for node in nodes):
        return Spread.pair
    by_q, by_k = E.Q in nodes, E.K in nodes
    if not by_q:
        return Spread.column if by_k else Spread.one
    if not by_k:
        return Spread.row
    return Spread.diagonal if all(map(S.by_distance, read.index)) else Spread.pair
