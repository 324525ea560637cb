"""Number of heads that a mask describes, and that represent all heads."""

from __future__ import annotations

from maskc.core.errors import WrongHeads
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import fixed_heads as fixed_heads
from maskc.dsl.nodes import walk
from maskc.ir.lower import differs_by_head

HEADS = 8
"""Query heads assumed for formulas that use the head index, if their number is unknown."""


def written_heads(mask: Mask) -> int | None:
    """Query heads that the mask names, or HEADS where it only computes with them; None if heads
    do not differ.

    Raises:
        WrongHeads: its parts are written for several numbers.
    """
    if not differs_by_head(mask):
        return None
    return fixed_heads(mask) or max(HEADS, head_count(mask))


def head_count(mask: Mask) -> int:
    """A number of heads that shows every set the mask may have, formulas in h aside."""
    return max(node.least_heads for node in walk(mask))


def heads_of(mask: Mask, n_heads: int | None = None) -> int | None:
    """Return the number of query heads: the requested one, or the one that the mask is written for.

    Raises:
        WrongHeads: it is written for another number, or for several.
    """
    written = fixed_heads(mask)
    if None not in (written, n_heads) and written != n_heads:
        raise WrongHeads(written, f"n_heads is {n_heads}", at=getattr(mask, "loc", None))
    return written if n_heads is None else n_heads
