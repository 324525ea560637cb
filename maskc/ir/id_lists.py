"""Long lists of ids: data to isl, although a formula spells them.

A set with hundreds of scattered ids has as many pieces for isl, and twice as many outside. What is
asked about a mask takes such a list for something that data decide: it stands as a read of an array
that the ids themselves name, and comes back in the answer.
"""

from __future__ import annotations

from maskc.core import expr as E
from maskc.core.expr import Expr

FEW_RANGES = 8
"""Ranges of ids up to which a list is a formula like any other: comparisons for kernels, sets for
isl."""
_NAME = "listed "
"""Prefix of the names of such arrays; no array of a mask has a space in its name."""


def is_long(node: Expr) -> bool:
    """Whether a formula is a long list of queries, or of keys."""
    if not isinstance(node, E.Member) or len(node.ranges) <= FEW_RANGES:
        return False
    return len(E.symbols(node.value) & {"q", "k"}) == 1


def veiled(keep: Expr) -> Expr:
    """The formula with reads of arrays in place of long lists."""

    def hide(node: Expr) -> Expr | None:
        if not (isinstance(node, E.Member) and is_long(node)):
            return None
        name = _NAME + ",".join(f"{low}:{high}" for low, high in node.ranges)
        bit = E.Load(name, (node.value,))
        return E.ne(bit, E.ZERO) if node.inside else E.eq(bit, E.ZERO)

    return E.transform(keep, hide) if any(map(is_long, E.walk(keep))) else keep


def unveiled(keep: Expr) -> Expr:
    """The formula that `veiled` was given, or one made from it."""

    def show(node: Expr) -> Expr | None:
        match node:
            case E.Cmp("!=" | "==" as op, E.Load(name, (value,))) if name.startswith(_NAME):
                pairs = (pair.split(":") for pair in name.removeprefix(_NAME).split(","))
                ranges = tuple((int(low), int(high)) for low, high in pairs)
                return E.Member(value, ranges, op == "!=")
        return None

    return E.transform(keep, show) if any(n.startswith(_NAME) for n in E.arrays(keep)) else keep
