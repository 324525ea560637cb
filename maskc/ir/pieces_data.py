"""Pieces that depend on data: the alternatives of a formula, grouped by the arrays they read."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.expr import Expr
from maskc.ir.simplify import simplify
from maskc.ir.types import Detail, MaskIR, Piece, PieceKind, Segments, Table, segment

_MAX = 12
"""Alternatives up to which they are told apart."""


def data_pieces(ir: MaskIR, owned: list[Expr]) -> list[Piece]:
    """The pieces that the mask keeps beyond the formulas in `owned`, disjoint from them."""
    alternatives = _alternatives(ir.keep)
    if len(alternatives) > _MAX:
        alternatives = [ir.keep]
    terms = [(*_kind(term, ir.data), term) for term in alternatives]
    terms.sort(key=lambda ranked: (ranked[0].rank, ranked[2].key))
    pieces: list[Piece] = []
    left: list[Expr] = []
    for kind, detail, term in terms:
        if not E.arrays(term):
            continue
        rest = simplified(E.conj(term, *map(E.negate, owned)))
        owned = [*owned, term]
        if rest == E.NEVER:
            continue
        if kind is PieceKind.set:
            left.append(rest)
        else:
            pieces.append(Piece(rest, kind, detail))
    return pieces + [Piece(E.disj(*left))] * bool(left)


def simplified(keep: Expr) -> Expr:
    """The formula, simplified.

    It is simplified twice where alternatives inside a conjunction may have become one.
    """
    simplified_once = simplify(keep)
    return (
        simplify(simplified_once)
        if any(isinstance(node, E.Any) for node in E.walk(keep))
        else simplified_once
    )


def _alternatives(keep: Expr) -> list[Expr]:
    """The formula as an `or`: alternatives inside a conjunction that read data come out."""
    if isinstance(keep, E.Any):
        return [part for term in keep.terms for part in _alternatives(term)]
    if isinstance(keep, E.All):
        for index, term in enumerate(keep.terms):
            if isinstance(term, E.Any) and E.arrays(term):
                rest = keep.terms[:index] + keep.terms[index + 1 :]
                made = [E.conj(part, *rest) for part in term.terms]
                return [part for term in made for part in _alternatives(term)]
    return [keep]


def _kind(term: Expr, data: tuple[DataDecl, ...]) -> tuple[PieceKind, Detail | None]:
    """The kind of a conjunction, which the data that it reads decide."""
    literals = [part for part in E.conjuncts(term) if E.arrays(part)]
    read = {name for part in literals for name in E.arrays(part)}
    mine = [decl for decl in data if read.intersection(decl.arrays)]
    if len(mine) != 1:
        return PieceKind.set, None
    decl = mine[0]
    if decl.kind in (DataKind.table, DataKind.random):
        return (PieceKind.table, Table(decl.name, decl.block)) if len(literals) == 1 else _NONE
    if decl.kind is DataKind.selection and len(literals) == 1:
        return PieceKind.selection, None
    if decl.kind is DataKind.flags and len(literals) == 1:
        on_queries = decl.on_queries
        others = E.symbols(E.conj(*(p for p in E.conjuncts(term) if p not in literals)))
        if ("k" if on_queries else "q") not in others:
            return (PieceKind.rows if on_queries else PieceKind.columns), None
    if set(literals) == set(segment(decl)):
        return PieceKind.segments, Segments(decl.arrays)
    return _NONE


_NONE: tuple[PieceKind, None] = (PieceKind.set, None)
