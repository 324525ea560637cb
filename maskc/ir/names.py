"""The keywords a mask as written accepts, whether or not its formula still reads them."""

from __future__ import annotations

from dataclasses import fields

from maskc.core import expr as E
from maskc.core.data import DataDecl
from maskc.core.selection import SCORING, Score
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask


def declared_names(mask: Mask) -> frozenset[str]:
    """The names of the mask's parameters and of the arrays that a call gives, on all heads."""
    found: set[str] = set()
    if isinstance(mask, N.Node):
        for entry in fields(mask):
            value = getattr(mask, entry.name)
            if isinstance(value, E.Expr):
                found.update(E.params(value))
            elif isinstance(value, DataDecl) and value.from_caller:
                found.add(value.name)
        if isinstance(mask, N.TopK):
            found.update(SCORING[Score(mask.score)])
        if isinstance(mask, N.AtPositions):
            found |= declared_names(mask.of) | {decl.name for decl in mask.decls}
        for child in mask.children:
            found |= declared_names(child)
    return frozenset(found)
