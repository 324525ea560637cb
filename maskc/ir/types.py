"""A mask after lowering: one formula, and pieces that add up to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.expr import Expr, arrays, params
from maskc.core.listed import Listed
from maskc.core.selection import Selection
from maskc.core.source import SourceLoc

T = TypeVar("T")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class Origin:
    """Says which term of the pattern a comparison came from."""

    loc: SourceLoc | None
    term: str
    """The term as maskc prints it."""


class PieceKind(StrEnum):
    """The kind of a piece, which suggests how to run it; in the order of pieces."""

    band = "band"
    """Every query's keys are consecutive."""
    lattice = "lattice"
    """A band between residue classes."""
    columns = "columns"
    """Keys that almost all queries of an interval see."""
    rows = "rows"
    """Queries that see almost all keys of an interval."""
    table = "table"
    """Blocks that a table or a seeded draw names."""
    segments = "segments"
    """Documents, trees, intervals: keys that the data of a query names."""
    selection = "selection"
    """Pairs that a run-time selection chose."""
    set = "set"
    """The piece is of no other kind, or that was not proved."""

    @property
    def rank(self) -> int:
        """The place of a kind in their order."""
        return list(PieceKind).index(self)


@dataclass(frozen=True, slots=True)
class Span:
    """The keys first .. last (inclusive) for queries in `rows`; empty if last < first."""

    rows: Expr
    """Over q and lengths."""
    first: Expr
    last: Expr


@dataclass(frozen=True, slots=True)
class Band:
    """A band's keys, query by query; queries of no span see none of them."""

    spans: tuple[Span, ...]
    """No two hold for the same query."""
    shifts: bool
    """Whether it depends on q - k alone, inside the lengths."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """q = queries(c, j, t_q) and k = keys(c, j, t_k): every pair of the piece once.

    For one c and j the keys t_k of every t_q are consecutive: a band without the congruence.
    """

    stride: int
    query_phase: int | None
    """Least residue of the queries' positions; None if queries are not grouped by residue."""
    key_phase: int | None
    """Least residue of the keys; None if keys of all residues take part."""
    difference: int | None
    """The smallest residue of position minus key, if that is fixed; c is the residue of the key."""
    width: int
    """The number of residues from the smallest one on (modulo stride): 0 <= j < width."""
    queries: Expr
    keys: Expr
    band: Expr
    """Over t_q, t_k, c, j and lengths; it holds inside the lengths only, and 0 <= c < stride
    where c occurs in `keys`, else c = 0."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Queries in `queries` see all keys in `keys`.

    The other queries see some of them. They are few, whatever the lengths.
    """

    keys: Expr
    queries: Expr


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows: for keys where `keys` holds, the queries are all those where `queries` holds."""

    queries: Expr
    keys: Expr


@dataclass(frozen=True, slots=True)
class Table:
    """Names the array that says which blocks are live."""

    array: str
    block: int
    """Tokens per entry, both ways."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Names the arrays that say where the segments are."""

    arrays: tuple[str, ...]


def segment(decl: DataDecl) -> tuple[Expr, ...]:
    """The comparisons that make a segment of documents, intervals or a tree; of other data none."""
    if decl.kind is DataKind.documents:
        of_q, of_k = decl.arrays
        return (E.eq(E.Load(of_q, (E.Q,)), E.Load(of_k, (E.K,))),)
    if decl.kind is DataKind.intervals:
        low, high = (E.Load(name, (E.Q,)) for name in decl.arrays)
        return E.ge(E.K, low), E.lt(E.K, high)
    if decl.kind is DataKind.tree:
        tin, tout, of_q = decl.arrays
        entered = E.Load(of_q, (E.Q,))
        return E.le(E.Load(tin, (E.K,)), entered), E.lt(entered, E.Load(tout, (E.K,)))
    return ()


Detail = Band | Lattice | Columns | Rows | Table | Segments


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a mask that shares no pair with the other parts."""

    keep: Expr
    kind: PieceKind = PieceKind.set
    detail: Detail | None = None
    """An instance of the class that the kind names; None for a set, a selection, and for columns
    and rows that read flags."""


@dataclass(frozen=True)
class MaskIR:
    """The mask of one head, lengths symbolic."""

    keep: Expr
    """Over q, k, n_q, n_kv, parameters and data arrays; comparisons in normal form."""
    data: tuple[DataDecl, ...]
    """The arrays it reads, by name."""
    origins: tuple[tuple[Expr, Origin], ...] = field(compare=False)
    """The user's term for each comparison of `keep` (the first where several agree)."""
    declared: frozenset[str] = frozenset()
    """Keywords the mask as written accepts; some may no longer be read."""
    pieces: tuple[Piece, ...] = ()
    """Disjoint, their union is `keep`; empty before decompose."""
    selections: tuple[Selection, ...] = ()
    """The run-time selections it reads, each after those that it needs itself."""

    def data_of(self, keep: Expr) -> tuple[DataDecl, ...]:
        """Return the data of the mask that a formula reads."""
        read = set(arrays(keep))
        return tuple(decl for decl in self.data if read.intersection(decl.arrays))

    @property
    def params(self) -> dict[str, int]:
        """The names and defaults of the parameters that the mask reads."""
        defaults = params(self.keep)
        for selection in self.selections:
            for formula in selection.allowed:
                defaults |= params(formula)
        return dict(sorted(defaults.items()))


@dataclass(frozen=True)
class MaskPart(Generic[T]):
    """Pieces of a mask that run together, at any stage of the compiler."""

    stride: int
    """1: the part runs over the tokens as they are; s >= 2: over each residue class modulo s."""
    inner: T
    """The mask that runs, of the tokens or of every class with its own lengths: in pieces, then
    analysed, then planned."""
    aligned: bool = False
    """Whether this holds only where the stride divides n_kv - n_q."""
    keys: int | None = None
    """The residue, modulo the stride, of the keys that all queries meet; the mask then speaks of
    N_KV_OF_ALL. None: see `stride`."""
    listed: Listed | None = None
    """The tokens whose rows it runs over in place of all queries, or keys; see ir/listed."""

    def over(self, inner: Other) -> MaskPart[Other]:
        """Return the part at a later stage."""
        return MaskPart(self.stride, inner, self.aligned, self.keys, self.listed)
