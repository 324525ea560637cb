"""A mask as disjoint pieces.

The top-level alternatives, each without what the earlier ones own. Pieces are not yet told apart
by kind (band, lattice, columns, ...): `Piece.kind` is the place for it.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.core import expr as E
from maskc.core.errors import DecompositionBroken
from maskc.core.expr import Expr
from maskc.ir.sets import TooHard, budget, domain, token_universe
from maskc.ir.simplify import simplify
from maskc.ir.types import MaskIR, Piece

_MOST = 12


def decompose(ir: MaskIR) -> MaskIR:
    """The same mask with `pieces` filled in: disjoint, their union unchanged (proved)."""
    pieces: list[Piece] = []
    owned: Expr = E.NEVER
    terms = ir.keep.terms if isinstance(ir.keep, E.Any) else (ir.keep,)
    if len(terms) > _MOST:
        terms = (ir.keep,)
    for term in terms:
        rest = simplify(E.conj(term, E.negate(owned)))
        owned = E.disj(owned, term)
        if rest != E.NEVER:
            pieces.append(Piece(rest))
    _check(ir.keep, tuple(pieces))
    return replace(ir, pieces=tuple(pieces))


def _check(keep: Expr, pieces: tuple[Piece, ...]) -> None:
    """Disjoint and complete, where there is no data and isl's budget suffices."""
    if E.arrays(keep) or len(pieces) < 2:
        return
    try:
        with budget():
            universe = token_universe(keep)
            inside = domain(universe)
            whole = universe.set(keep).intersect(inside)
            union = whole.subtract(whole)
            for piece in pieces:
                part = universe.set(piece.keep).intersect(inside)
                if not union.is_disjoint(part):
                    raise DecompositionBroken("two of them overlap")
                union = union.union(part)
            if not union.is_equal(whole):
                raise DecompositionBroken("their union differs")
    except TooHard:
        return
