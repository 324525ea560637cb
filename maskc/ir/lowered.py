"""Stage 2 on every head: masks as simplified formulas."""

from __future__ import annotations

from dataclasses import replace

from maskc.core import expr as E
from maskc.core.data import DataDecl
from maskc.core.errors import HeadsUnknown, NameClash
from maskc.core.expr import Expr
from maskc.core.widths import settled
from maskc.dsl.mask import Mask
from maskc.dsl.slots import emptied
from maskc.ir.heads import heads_of
from maskc.ir.lower import differs_by_head, lower
from maskc.ir.normal import normal
from maskc.ir.simplify import simplify
from maskc.ir.types import MaskIR


def lowered(mask: Mask, head: int | None = None, n_heads: int | None = None) -> MaskIR:
    """The mask of one head as one simplified formula; arguments and errors as of `lower`."""
    ir = lower(emptied(mask)[0], head, n_heads)
    selections = tuple(
        replace(selection, allowed=tuple(map(_simplified, selection.allowed)))
        for selection in ir.selections
    )
    origins = {
        made: origin for atom, origin in ir.origins for made in (atom, *E.conjuncts(normal(atom)))
    }
    return replace(
        ir, keep=_simplified(ir.keep), selections=selections, origins=tuple(origins.items())
    )


def _simplified(keep: Expr) -> Expr:
    return simplify(settled(normal(keep)))


def on_all_heads(mask: Mask, n_heads: int | None = None) -> list[MaskIR]:
    """Lower the mask of every head; a single one if heads do not differ.

    Args:
        n_heads: query heads, if the mask itself does not say how many there are.

    Raises:
        HeadsUnknown: it differs between heads, and their number is unknown.
        WrongHeads: it is written for another number of them.
        NameClash: heads read one array in ways that differ.
    """
    n_heads = heads_of(mask, n_heads)
    if not differs_by_head(mask):
        return [lowered(mask, 0)]
    if n_heads is None:
        raise HeadsUnknown(at=getattr(mask, "loc", None))
    irs = [lowered(mask, head, n_heads) for head in range(n_heads)]
    known: dict[str, DataDecl] = {}
    for decl in (decl for ir in irs for decl in ir.data):
        for name in decl.arrays:
            if (other := known.setdefault(name, decl)) != decl:
                kinds = other.kind.value, decl.kind.value
                raise NameClash(decl.name, *kinds, at=getattr(mask, "loc", None))
    return irs
