"""Whether a mask differs by head, and how many must be looked at to know it on all of them."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.core.errors import WrongHeads
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask


def differs_by_head(mask: Mask) -> bool:
    """Whether the mask may keep different pairs on different heads."""

    def differs(node: N.Node) -> bool:
        match node:
            case N.PerHead(masks):
                return any(item != masks[0] for item in masks)
            case N.Where(formula):
                return "h" in E.symbols(formula)
            case N.BlockTable(decl):
                return len(decl.shape) == 3
        return isinstance(node, N.Heads)

    return any(map(differs, N.walk(mask)))


HEADS = 8
"""Query heads where a formula computes with the head's number and nobody said how many."""


def written_heads(mask: Mask) -> int | None:
    """Query heads that the mask names, or HEADS where it only computes with them; None where heads
    do not differ.

    Raises:
        WrongHeads: its parts are written for several numbers.
    """
    if not differs_by_head(mask):
        return None
    return fixed_heads(mask) or max(HEADS, head_count(mask))


def head_count(mask: Mask) -> int:
    """A number of heads that shows every set the mask may have, formulas in h aside."""

    def shown(node: N.Node) -> int:
        match node:
            case N.PerHead(masks):
                return len(masks)
            case N.Heads(ids):
                return max(ids, default=-1) + 2
            case N.BlockTable(decl) if len(decl.shape) == 3:
                return decl.shape[0]
        return 1

    return max(map(shown, N.walk(mask)))


def fixed_heads(mask: Mask) -> int | None:
    """The number of heads the mask is written for; None where any number fits.

    Raises:
        WrongHeads: its parts are written for several.
    """
    own, parts = None, mask.children if isinstance(mask, N.Node) else ()
    if isinstance(mask, N.PerHead):
        own = len(mask.masks)
    elif isinstance(mask, N.BlockTable) and len(mask.decl.shape) == 3:
        own = mask.decl.shape[0]
    for part in parts:
        found = fixed_heads(part)
        if None not in (own, found) and own != found:
            at = getattr(part, "loc", None)
            raise WrongHeads(own, f"a part of it for {found}", at=at)
        own = found if own is None else own
    return own


def heads_of(mask: Mask, n_heads: int | None = None) -> int | None:
    """The number of query heads: as it is asked for, or else as the mask is written where that
    decides something.

    Raises:
        WrongHeads: it is written for another number, or for several.
    """
    written = fixed_heads(mask)
    if None not in (written, n_heads) and written != n_heads:
        raise WrongHeads(written, f"n_heads is {n_heads}", at=getattr(mask, "loc", None))
    return written if n_heads is None and differs_by_head(mask) else n_heads


def reads_head(mask: Mask) -> bool:
    """Whether some formula computes with h, so that no number of heads shows all its sets."""
    match mask:
        case N.Where(formula):
            return "h" in E.symbols(formula)
        case N.Node():
            return any(map(reads_head, mask.children))
    return False
