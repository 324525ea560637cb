"""Stage 2 on every head: masks as simplified formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import HeadsUnknown, NameClash
from maskc.core.expr import Expr
from maskc.core.widths import settled
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.slots import emptied
from maskc.ir.heads import heads_of
from maskc.ir.lower import differs_by_head, lower
from maskc.ir.normal import normal
from maskc.ir.simplify import simplify
from maskc.ir.types import MaskIR, segment


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


# ------------------------------------------------------------------ captured arrays as atoms


_PARTS = {
    DataKind.documents: ("q", "k"),
    DataKind.intervals: ("lo", "hi"),
    DataKind.tree: ("tin", "tout", "q"),
    DataKind.table: ("blocks",),
}
"""Names of an atom's arrays; those of flags are the sides."""


class _Atom(NamedTuple):
    """An atom that a formula may contain."""

    decls: tuple[DataDecl, ...]
    terms: frozenset[Expr]
    """Comparisons over captured arrays that it stands for."""
    loads: dict[Expr, Expr]
    """Reads of captured arrays, and the same reads of its own arrays."""


def with_atoms(mask: Mask) -> Mask:
    """Return the mask with atoms in place of the arrays that its formulas captured.

    `ids[q] == ids[k]` over a captured array becomes `documents`: it gets the kernels and the lists
    of documents. An array that the formula also reads in another way stays as it is.

    Args:
        mask: as `emptied` returns it, with arrays that have no content.
    """
    if not any(decl.held for node in N.walk(mask) for decl in node.decls):
        return mask
    return _with_atoms(mask) if isinstance(mask, N.Where) else N.as_node(mask).over(with_atoms)


def _with_atoms(mask: N.Where) -> Mask:
    decls = {decl.name: decl for decl in mask.tables}
    readers: dict[str, set[Expr]] = {name: set() for name, decl in decls.items() if decl.held}
    written = normal(mask.formula)
    for term in E.walk(written):
        if isinstance(term, (E.Cmp, E.Member)):
            for name in readers.keys() & set(E.arrays(term)):
                readers[name].add(term)
    loads: dict[Expr, Expr] = {}
    for atom in _atoms(written):
        names = {name for decl in atom.decls for name in decl.held_as}
        if names <= decls.keys() & readers.keys() and all(readers[x] <= atom.terms for x in names):
            decls = {name: decl for name, decl in decls.items() if name not in names}
            decls |= {decl.arrays[0]: decl for decl in atom.decls}
            loads |= atom.loads
    if not loads:
        return mask
    formula = E.substitute(written, loads)
    read = set(E.arrays(formula))
    tables = tuple(decl for decl in decls.values() if read.intersection(decl.arrays))
    return N.Where(formula, tables, mask.lengths, loc=mask.loc)


def _atoms(formula: Expr) -> Iterator[_Atom]:
    """Yield the atoms that comparisons of a formula, or pairs of them, may stand for."""
    for term in E.walk(formula):
        if isinstance(term, E.All):
            of_q, of_k = _vectors(term)
            intervals = [(DataKind.intervals, pair) for pair in product(of_q, of_q)]
            trees = [(DataKind.tree, (tin, tout, tin)) for tin, tout in product(of_q, of_k)]
            for kind, tables in (*intervals, *trees):
                atom = _segment(kind, tables)
                if atom.terms <= set(term.terms):
                    yield atom
        elif isinstance(term, E.Cmp) and term.op != ">=":
            yield from _of_comparison(term)


def _of_comparison(term: E.Cmp) -> Iterator[_Atom]:
    """Yield documents, flags or a table that a comparison with == or != reads."""
    of_q, of_k = _vectors(term)
    for tables in product(of_q, of_k):
        atom = _segment(DataKind.documents, tables)
        both = atom.terms | frozenset(map(E.negate, atom.terms))
        if term in both:
            yield atom._replace(terms=both)
    match term.lhs:
        case E.Load(table, (E.Sym("q") | E.Sym("k"),)):
            yield _flags(table)
        case E.Load(table, (E.FloorDiv(E.Sym("q"), rows), E.FloorDiv(E.Sym("k"), columns))):
            if rows == columns:
                yield _table(term.lhs, rows)


def _vectors(term: Expr) -> tuple[list[str], list[str]]:
    """Names of the vectors that a formula reads at a query, and at a key."""
    loads = E.loads(term)
    of_q, of_k = (sorted({x.array for x in loads if x.index == (t,)}) for t in (E.Q, E.K))
    return of_q, of_k


def _name(kind: DataKind, tables: tuple[str, ...]) -> str:
    """Return a name that no caller can use and no other atom has."""
    return ".".join((*dict.fromkeys(tables), kind.value))


def _segment(kind: DataKind, tables: tuple[str, ...]) -> _Atom:
    """Documents, intervals or a tree over captured vectors; query q is token q."""
    name = _name(kind, tables)
    arrays = tuple(f"{name}.{part}" for part in _PARTS[kind])
    decl = DataDecl(name, kind, arrays, options=(1,), held_as=tables)
    terms = segment(decl)
    of_table = dict(zip(arrays, tables, strict=True))
    loads: dict[Expr, Expr] = {
        E.Load(of_table[x.array], x.index): x for term in terms for x in E.loads(term)
    }
    return _Atom((decl,), frozenset(E.renamed(term, of_table) for term in terms), loads)


def _flags(table: str) -> _Atom:
    """Flags of queries and of keys over a captured vector."""
    name = _name(DataKind.flags, (table,))
    decls: list[DataDecl] = []
    terms: set[Expr] = set()
    loads: dict[Expr, Expr] = {}
    for on_queries, token in enumerate((E.K, E.Q)):
        array, read = f"{name}.{token.name}", E.Load(table, (token,))
        options = (on_queries, *((1,) * on_queries))
        decls.append(DataDecl(name, DataKind.flags, (array,), options=options, held_as=(table,)))
        terms |= {E.ne(read, E.ZERO), E.eq(read, E.ZERO)}
        loads[read] = E.Load(array, (token,))
    return _Atom(tuple(decls), frozenset(terms), loads)


def _table(read: E.Load, block: int) -> _Atom:
    """A table of blocks."""
    name = _name(DataKind.table, (read.array,))
    (array,) = (f"{name}.{part}" for part in _PARTS[DataKind.table])
    decl = DataDecl(name, DataKind.table, (array,), block, held_as=(read.array,))
    terms = frozenset((E.ne(read, E.ZERO), E.eq(read, E.ZERO)))
    return _Atom((decl,), terms, {read: E.Load(array, read.index)})
