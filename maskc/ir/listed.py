"""Split off a few keys that many queries see, and a few queries that see many keys.

If such tokens are scattered, nearly every tile contains one. The rows of listed tokens are
therefore packed into a few dense tiles. A mask F(listed) then has three parts:

- F(no) for all queries and keys,
- for the listed keys the pairs of F(yes) without F(no), and - for the listed queries all of F(yes),
which replaces the results of the other parts.

The first two are disjoint, and the third has separate rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from maskc.core import expr as E
from maskc.core.bundle import N_KV_OF_ALL, N_Q_OF_ALL
from maskc.core.data import DataDecl, DataKind
from maskc.core.expr import Expr
from maskc.core.listed import Listed
from maskc.ir.decompose import decompose
from maskc.ir.pieces_data import simplified
from maskc.ir.types import MaskIR, MaskPart

_FEWEST = 3
"""Ranges of ids from which on they are scattered."""
_LENGTH = 4096
"""The default of parameters that stand for lengths."""


def listed_parts(ir: MaskIR) -> tuple[MaskPart[MaskIR], ...]:
    """The mask without its lists, then the listed keys, then the listed queries; empty if the
    mask has no such lists, is nothing without them, or reads other data."""
    flags = {decl.arrays[0] for decl in ir.data if decl.kind is DataKind.flags}
    if ir.selections or len(flags) < len(ir.data):
        return ()
    lists = {side: _list_of(ir.keep, side, flags) for side in ("q", "k")}
    rows, keys = lists["q"], lists["k"]
    among = [atom for atom in (rows, keys) if atom is not None]
    base = _given(ir.keep, among, False)
    if not among or base == E.NEVER or E.arrays(_given(base, among, False)):
        return ()
    parts = [MaskPart(1, _mask(ir, simplified(base)))]
    of_others = ir.keep if rows is None else _given(ir.keep, [rows], False)
    if keys is not None:
        more = E.conj(_given(of_others, [keys], True), E.negate(_given(of_others, [keys], False)))
        parts += _over(ir, Listed("k", keys), simplified(more))
    if rows is not None:
        parts += _over(ir, Listed("q", rows), simplified(_given(ir.keep, [rows], True)))
    return tuple(parts) if len(parts) > 1 else ()


def _list_of(keep: Expr, side: str, flags: set[str]) -> Expr | None:
    """Return the comparison for "a token of this side is listed"; None if there is not exactly one,
    or if the mask keeps fewer pairs of listed tokens."""
    atoms = {node for node in E.walk(keep) if _tells(node, side, flags)}
    nodes = {node for node in atoms if _is_listed(node)}
    if len(nodes) != 1 or len(atoms) != 1:
        return None
    return nodes.pop()


def _tells(node: Expr, side: str, flags: set[str]) -> bool:
    if E.symbols(node) & {"q", "k"} != {side}:
        return False
    if isinstance(node, E.Member):
        return len(node.ranges) >= _FEWEST and not E.arrays(node)
    return isinstance(node, E.Cmp) and bool(flags.intersection(E.arrays(node)))


def _is_listed(node: Expr) -> bool:
    """Whether it holds for the tokens of a list, and not for all others."""
    return node.inside if isinstance(node, E.Member) else getattr(node, "op", "") == "!="


def _given(keep: Expr, atoms: Iterable[Expr], listed: bool) -> Expr:
    return E.substitute(keep, {atom: E.Truth(listed) for atom in atoms})


def _over(ir: MaskIR, listed: Listed, keep: Expr) -> list[MaskPart[MaskIR]]:
    """The part over the rows of a list; none where it keeps no pair."""
    if keep == E.NEVER:
        return []
    token, length, of_all = (
        (E.Q, E.N_Q, N_Q_OF_ALL) if listed.side == "q" else (E.K, E.N_KV, N_KV_OF_ALL)
    )
    place = E.Load(listed.array, (token,))
    if E.arrays(listed.among) and listed.side == "k":  # sequences may have lists of other lengths
        keep = E.conj(keep, E.ge(E.K, E.ZERO))
    keep_over = E.substitute(keep, {token: place, length: E.Param(of_all, _LENGTH)})
    return [MaskPart(1, _mask(ir, keep_over, listed), listed=listed)]


def _mask(ir: MaskIR, keep: Expr, listed: Listed | None = None) -> MaskIR:
    """A part as a mask of its own."""
    data = ir.data_of(keep)
    if listed is not None and listed.array in E.arrays(keep):
        data += (DataDecl(listed.array, DataKind.tokens, (listed.array,)),)
    return decompose(MaskIR(keep, data, (), ir.declared))
