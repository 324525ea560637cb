"""The keywords a mask as written accepts, whether or not its formula still reads them."""

from __future__ import annotations

from maskc.core.selection import SCORING, Score
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask


def declared_names(mask: Mask) -> frozenset[str]:
    """The names of the mask's parameters and of the arrays that a call gives, on all heads."""
    names = {*N.default_parameters(mask), *(decl.name for decl in N.data_of_calls(mask))}
    for node in N.walk(mask):
        if isinstance(node, N.TopK):
            names.update(SCORING[Score(node.score)])
    return frozenset(names)
