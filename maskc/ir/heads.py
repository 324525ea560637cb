"""How many heads must be looked at to know a mask on all of them."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask


def head_count(mask: Mask) -> int:
    """Heads 0 .. n - 1 show every set the mask may have, formulas in h aside."""
    match mask:
        case N.PerHead(masks):
            return max(len(masks), *map(head_count, masks))
        case N.Heads(ids):
            return max(ids, default=-1) + 2
        case N.BlockTable(decl) if len(decl.shape) == 3:
            return decl.shape[0]
        case N.Node():
            return max(map(head_count, mask.children), default=1)
    return 1


def fixed_heads(mask: Mask) -> int | None:
    """The number of heads the mask is written for; None where any number fits."""
    match mask:
        case N.PerHead(masks):
            return len(masks)
        case N.BlockTable(decl) if len(decl.shape) == 3:
            return decl.shape[0]
        case N.Node():
            return next((n for n in map(fixed_heads, mask.children) if n is not None), None)
    return None


def reads_head(mask: Mask) -> bool:
    """Whether some formula computes with h, so that no number of heads shows all its sets."""
    match mask:
        case N.Where(formula):
            return "h" in E.symbols(formula)
        case N.Node():
            return any(map(reads_head, mask.children))
    return False
