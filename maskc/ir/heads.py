"""Whether a mask differs by head, and how many must be looked at to know it on all of them."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask


def differs_by_head(mask: Mask) -> bool:
    """Whether the mask may keep different pairs on different heads."""
    match mask:
        case N.PerHead(masks):
            return any(item != masks[0] for item in masks) or differs_by_head(masks[0])
        case N.Heads():
            return True
        case N.Where(formula):
            return "h" in E.symbols(formula)
        case N.BlockTable(decl):
            return len(decl.shape) == 3
        case N.Node():
            return any(map(differs_by_head, mask.children))
    return False


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
