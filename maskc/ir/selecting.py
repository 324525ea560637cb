"""Run-time selections in formulas: tables of the blocks that a call chooses."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.expr import Expr
from maskc.core.selection import SCORING, Selection
from maskc.core.source import SourceLoc
from maskc.ir.types import MaskIR


def table_of(selection: Selection) -> DataDecl:
    """The array of a selection as formulas read it: a table over blocks of queries and of keys."""
    name, (q_block, block) = selection.name, selection.table
    return DataDecl(name, DataKind.selection, (name,), block, options=(q_block,))


def scoring_of(selection: Selection) -> tuple[DataDecl, ...]:
    """The tensors that a call passes for it."""
    return tuple(DataDecl(name, DataKind.scoring, ()) for name in SCORING[selection.score])


def chosen(selection: Selection) -> Expr:
    """The pairs in chosen blocks, whether or not they are allowed."""
    q_block, block = selection.table
    index = E.floordiv(E.Q, q_block), E.floordiv(E.K, block)
    return E.ne(E.Load(selection.name, index), E.ZERO)


def needed(keep: Expr, known: dict[str, Selection]) -> tuple[Selection, ...]:
    """The known selections that a formula reads, or that these read in turn, in order."""
    read = set(E.arrays(keep))
    for selection in reversed(known.values()):
        if selection.name in read:
            read |= selection.reads
    return tuple(selection for name, selection in known.items() if name in read)


def place_of(ir: MaskIR, selection: Selection) -> SourceLoc | None:
    """The place where the user wrote a selection; None if only another selection reads it."""
    places = (origin.loc for atom, origin in ir.origins if selection.name in E.arrays(atom))
    return next(places, None)


def hull(ir: MaskIR) -> MaskIR:
    """The pairs that the mask keeps under some choice: every chosen and unchosen block counts."""
    keep = E.assume_reads(ir.keep, True, {selection.name for selection in ir.selections})
    return MaskIR(keep, ir.data_of(keep), ir.origins, ir.declared)
