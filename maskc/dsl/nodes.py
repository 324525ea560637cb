"""The masks a user can write, as values. Build them with dsl.combinators, which checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property

from maskc.core import expr as E
from maskc.core.captured import ANY_LENGTHS, Lengths
from maskc.core.data import DataDecl
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc
from maskc.dsl.mask import Mask

END, START = "end", "start"


@dataclass(frozen=True, repr=False)
class Node(Mask):
    """Base: where the user wrote it. Positions never take part in equality."""

    loc: SourceLoc | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def children(self) -> tuple[Mask, ...]:
        """The masks that this one is made of."""
        return ()

    @property
    def decls(self) -> tuple[DataDecl, ...]:
        """The arrays that this node itself reads."""
        decl = getattr(self, "decl", None)
        return () if decl is None else (decl,)

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """The formulas that this node itself holds."""
        held = (getattr(self, part.name) for part in fields(self))
        return tuple(value for value in held if isinstance(value, Expr))

    @cached_property
    def captures(self) -> bool:
        """Whether some formula of the mask reads captured arrays."""
        return any(isinstance(child, Node) and child.captures for child in self.children)


@dataclass(frozen=True, repr=False)
class Full(Node):
    """Every pair."""


@dataclass(frozen=True, repr=False)
class Causal(Node):
    """k <= p."""

    align: str = END


@dataclass(frozen=True, repr=False)
class Window(Node):
    """p - left <= k <= p + right; None is unbounded."""

    left: Expr | None
    right: Expr | None
    align: str = END


@dataclass(frozen=True, repr=False)
class Dilated(Node):
    """p - left * stride <= k <= p + right * stride and (p - k) mod stride == 0."""

    left: Expr
    right: Expr
    stride: int
    align: str = END


@dataclass(frozen=True, repr=False)
class Offsets(Node):
    """p - k in ids."""

    ids: tuple[int, ...]
    align: str = END


@dataclass(frozen=True, repr=False)
class Strided(Node):
    """k mod stride == phase."""

    stride: int
    phase: int = 0


@dataclass(frozen=True, repr=False)
class Sinks(Node):
    """k < n."""

    n: Expr


@dataclass(frozen=True, repr=False)
class Prefix(Node):
    """k < n, in the words of prefix language models."""

    n: Expr


@dataclass(frozen=True, repr=False)
class GlobalTokens(Node):
    """p in G or k in G; one side only for `rows` and `columns`."""

    ids: tuple[int, ...] | Expr
    """The tokens of G, or how many of the first."""
    side: str = "both"
    align: str = END

    @property
    def rows(self) -> GlobalTokens:
        """Global queries only: p in G."""
        return GlobalTokens(self.ids, "rows", self.align, loc=self.loc)

    @property
    def columns(self) -> GlobalTokens:
        """Global keys only: k in G."""
        return GlobalTokens(self.ids, "columns", self.align, loc=self.loc)


@dataclass(frozen=True, repr=False)
class BlockDiagonal(Node):
    """p // size == k // size; `causal` adds k <= p (then it prints as chunked)."""

    size: int
    causal: bool = False
    align: str = END


@dataclass(frozen=True, repr=False)
class RandomBlocks(Node):
    """k // block in R(p // block): `per_row` block columns drawn by splitmix64(seed, ., .)."""

    block: int
    per_row: int
    seed: int
    align: str = END


@dataclass(frozen=True, repr=False)
class BlockTable(Node):
    """table[q // block, k // block]."""

    decl: DataDecl


@dataclass(frozen=True, repr=False)
class KeyLists(Node):
    """k is in lists[q]."""

    decl: DataDecl


@dataclass(frozen=True, repr=False)
class Flags(Node):
    """flag[k], or flag[p]."""

    decl: DataDecl
    on: str = "k"
    align: str = END


@dataclass(frozen=True, repr=False)
class GlobalFlags(Node):
    """flag[p] or flag[k]; one side only for `rows` and `columns`."""

    flagged_rows: Flags
    flagged_columns: Flags
    side: str = "both"

    @property
    def rows(self) -> GlobalFlags:
        """Global queries only: flag[p]."""
        return GlobalFlags(self.flagged_rows, self.flagged_columns, "rows", loc=self.loc)

    @property
    def columns(self) -> GlobalFlags:
        """Global keys only: flag[k]."""
        return GlobalFlags(self.flagged_rows, self.flagged_columns, "columns", loc=self.loc)

    @property
    def children(self) -> tuple[Mask, ...]:
        """The flags of the sides that count."""
        sides = {"rows": self.flagged_rows, "columns": self.flagged_columns}
        return tuple(sides.values()) if self.side == "both" else (sides[self.side],)


@dataclass(frozen=True, repr=False)
class Intervals(Node):
    """lo[p] <= k < hi[p]."""

    decl: DataDecl
    align: str = END


@dataclass(frozen=True, repr=False)
class Documents(Node):
    """doc[p] == doc[k]."""

    decl: DataDecl
    align: str = END


@dataclass(frozen=True)
class Positions:
    """Places of queries and keys, as arrays that calls give; see dsl.data_atoms.positions."""

    of_q: DataDecl
    of_k: DataDecl


@dataclass(frozen=True, repr=False)
class AtPositions(Node):
    """A mask of positions over those that calls give, q standing at of_q[q] and k at of_k[k]."""

    of: Node
    """Causal, Window, Dilated or BlockDiagonal."""
    where: Positions

    @property
    def decls(self) -> tuple[DataDecl, ...]:
        """The positions of queries, and of keys."""
        return self.where.of_q, self.where.of_k

    @property
    def formulas(self) -> tuple[Expr, ...]:
        return self.of.formulas


@dataclass(frozen=True, repr=False)
class Tree(Node):
    """tin[k] <= tin[p] < tout[k]: k is p or an ancestor of p."""

    decl: DataDecl
    align: str = END


@dataclass(frozen=True, repr=False)
class Where(Node):
    """Keeps the pairs for which a traced formula holds."""

    formula: Expr
    """Over q, k, h, n_q, n_kv and parameters."""
    tables: tuple[DataDecl, ...] = ()
    """Arrays the formula captured, by names of its own: table0, table1, ..."""
    lengths: Lengths = ANY_LENGTHS
    """The queries and keys for which the formula was made; None: as many as a call has."""

    @property
    def decls(self) -> tuple[DataDecl, ...]:
        return self.tables

    @cached_property
    def captures(self) -> bool:
        return any(decl.values for decl in self.tables)


@dataclass(frozen=True, repr=False)
class PerHead(Node):
    """Holds one mask per query head."""

    masks: tuple[Mask, ...]

    @property
    def children(self) -> tuple[Mask, ...]:
        return self.masks


@dataclass(frozen=True, repr=False)
class Heads(Node):
    """Every pair, on these heads only."""

    ids: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class TopK(Node):
    """The k best-scored keys (or key blocks) of `of` for each query; see dsl.combinators.topk."""

    k: int
    of: Mask
    score: str = "qk"
    block: int = 1
    q_block: int = 1
    share: str = "head"
    at: Positions | None = None
    """Positions from which blocks count; None: they count from the first token."""

    @property
    def decls(self) -> tuple[DataDecl, ...]:
        """The positions of queries, and of keys, where there are some."""
        return () if self.at is None else (self.at.of_q, self.at.of_k)

    @property
    def scored_blocks(self) -> tuple[int, int]:
        """The queries and keys of a block for which a call may give a score, besides single
        pairs."""
        return (self.q_block, self.block) if self.at is None else (1, 1)

    @property
    def children(self) -> tuple[Mask, ...]:
        return (self.of,)


@dataclass(frozen=True, repr=False)
class Algebra(Node):
    """left op right, op one of & | - ^."""

    op: str
    left: Mask
    right: Mask

    @property
    def children(self) -> tuple[Mask, ...]:
        return self.left, self.right


@dataclass(frozen=True, repr=False)
class Complement(Node):
    """The pairs not in `of`."""

    of: Mask

    @property
    def children(self) -> tuple[Mask, ...]:
        return (self.of,)


def walk(mask: Mask) -> Iterator[Node]:
    """The mask and, recursively, all masks it is made of."""
    if isinstance(mask, Node):
        yield mask
        for child in mask.children:
            yield from walk(child)


def selects(mask: Mask) -> bool:
    """Whether the mask contains run-time selections."""
    return any(isinstance(node, TopK) for node in walk(mask))


def data_of_calls(mask: Mask) -> list[DataDecl]:
    """The arrays that calls give to a mask, each once."""
    found = (decl for node in walk(mask) for decl in node.decls)
    return [decl for decl in dict.fromkeys(found) if decl.from_caller]


def default_parameters(mask: Mask) -> dict[str, int]:
    """Names and defaults of the mask's parameters, mc.param(...)."""
    found: dict[str, int] = {}
    for part in (part for node in walk(mask) for part in node.formulas):
        found |= E.params(part)
    return found


def structure(value: object) -> object:
    """A mask as nested tuples, places aside: its repr tells apart what differs in any way.

    The text of a mask shows what it means; arrays without content have no more than names there.
    """
    if isinstance(value, Node):
        parts = [structure(getattr(value, part.name)) for part in fields(value) if part.repr]
        return (type(value).__name__, *parts)
    return tuple(map(structure, value)) if isinstance(value, tuple) else value
