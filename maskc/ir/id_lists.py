"""Long lists of ids in a formula: hidden from isl as if they were data.

For isl, a set with hundreds of scattered ids has as many pieces, and its complement twice as many.
Questions about a mask therefore replace such a list by a read of an array, named by the ids. The
answer gets the list back.
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
