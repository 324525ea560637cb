"""The masks a user can write, as values. Build them with dsl.combinators, which checks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Never, NoReturn, Self, cast, get_args

from maskc.core import expr as E
from maskc.core.captured import ANY_LENGTHS, Lengths
from maskc.core.data import DataDecl
from maskc.core.errors import WrongHeads
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc
from maskc.dsl.mask import Mask

END, START = "end", "start"


@dataclass(frozen=True, repr=False)
class Node(Mask):
    """Base class of all masks. It stores the source position, which equality ignores."""

    loc: SourceLoc | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        """Keep this hash: that of a dataclass visits the whole mask at every call."""
        super().__init_subclass__()
        if "__hash__" not in vars(cls):
            cls.__hash__ = Node.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        values = (getattr(self, one.name) for one in fields(self) if one.compare)
        return hash((type(self), *values))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: hashes differ in every process."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

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
    def own_heads(self) -> int | None:
        """The number of query heads that this node itself is written for; None: any number."""
        return None

    @property
    def last_head(self) -> int:
        """The highest query head that this node itself names; -1 if it names none."""
        return -1

    @property
    def least_heads(self) -> int:
        """A number of heads that suffices to show every set of this node, formulas in h aside."""
        return self.own_heads or self.last_head + 2

    def over(self, change: Callable[[Mask], Mask]) -> Self:
        """Return the node with other masks as children."""
        changed: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, Mask):
                changed[part.name] = change(value)
            elif isinstance(value, tuple) and any(isinstance(item, Mask) for item in value):
                changed[part.name] = tuple(map(change, value))
        return replace(self, **changed)

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """The formulas that this node itself holds."""
        held = (getattr(self, part.name) for part in fields(self))
        return tuple(value for value in held if isinstance(value, Expr))

    @cached_property
    def captures(self) -> bool:
        """Whether some formula of the mask reads captured arrays."""
        return any(isinstance(child, Node) and child.captures for child in self.children)


# ------------------------------------------------------------------ combinators


def shift(align: str) -> Expr:
    """The distance from a query's index to its position among the keys."""
    return E.sub(E.N_KV, E.N_Q) if align == END else E.ZERO


def position(align: str) -> Expr:
    """The query's position p among the keys."""
    return E.add(E.Q, shift(align))


def _within(value: Expr, low: Expr | None, high: Expr | None) -> Expr:
    above = E.ALWAYS if low is None else E.ge(value, low)
    return E.conj(above, E.ALWAYS if high is None else E.le(value, high))


def _band(left: Expr | None, right: Expr | None, align: str) -> Expr:
    p = position(align)
    low = None if left is None else E.sub(p, left)
    return _within(E.K, low, None if right is None else E.add(p, right))


Argument = Expr | str | int | tuple[int, ...] | None
"""An argument of a combinator as a node holds it."""


@dataclass(frozen=True)
class Spelling:
    """The call that makes a combinator, without `align`."""

    name: str
    args: tuple[Argument, ...] = ()
    named: tuple[tuple[str, Argument], ...] = ()
    side: str = ""
    """A property to read from the result, such as `rows`."""


@dataclass(frozen=True, repr=False)
class Combinator(Node, ABC):
    """A mask that is a name, arguments and a formula: lowering and printing follow from these.

    A formula that reads E.H is lowered for each head. Arrays that it reads are in `decls`.
    """

    @property
    @abstractmethod
    def keeps(self) -> Expr:
        """The condition on q, k, h, lengths and parameters under which a pair is kept."""

    @property
    def spelling(self) -> Spelling:
        """The class name and the fields, without trailing fields that have their defaults."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        parts = [part for part in fields(self) if part.name not in ("loc", "align")]
        while parts and getattr(self, parts[-1].name) == parts[-1].default:
            parts.pop()
        return Spelling(name, tuple(getattr(self, part.name) for part in parts))


@dataclass(frozen=True, repr=False)
class Full(Combinator):
    """Every pair."""

    @property
    def keeps(self) -> Expr:
        return E.ALWAYS


@dataclass(frozen=True, repr=False)
class Causal(Combinator):
    """k <= p."""

    align: str = END

    @property
    def keeps(self) -> Expr:
        return E.le(E.K, position(self.align))


@dataclass(frozen=True, repr=False)
class Window(Combinator):
    """p - left <= k <= p + right; None is unbounded."""

    left: Expr | None
    right: Expr | None = E.ZERO
    align: str = END

    @property
    def keeps(self) -> Expr:
        return _band(self.left, self.right, self.align)


@dataclass(frozen=True, repr=False)
class Dilated(Combinator):
    """p - left * stride <= k <= p + right * stride and (p - k) mod stride == 0."""

    left: Expr
    right: Expr
    stride: int
    align: str = END

    @property
    def keeps(self) -> Expr:
        left, right = (E.scale(self.stride, side) for side in (self.left, self.right))
        residue = E.mod(E.sub(position(self.align), E.K), self.stride)
        return E.conj(_band(left, right, self.align), E.equals_zero(residue))

    @property
    def spelling(self) -> Spelling:
        ahead = () if self.right == E.ZERO else (self.right,)
        return Spelling("dilated", (self.left, *ahead), (("stride", self.stride),))


@dataclass(frozen=True, repr=False)
class Offsets(Combinator):
    """p - k in ids."""

    ids: tuple[int, ...]
    align: str = END

    @property
    def keeps(self) -> Expr:
        return E.member(E.sub(position(self.align), E.K), self.ids)


@dataclass(frozen=True, repr=False)
class Strided(Combinator):
    """k mod stride == phase."""

    stride: int
    phase: int = 0

    @property
    def keeps(self) -> Expr:
        return E.eq(E.mod(E.K, self.stride), E.const(self.phase))


@dataclass(frozen=True, repr=False)
class Sinks(Combinator):
    """k < n."""

    n: Expr

    @property
    def keeps(self) -> Expr:
        return E.lt(E.K, self.n)


@dataclass(frozen=True, repr=False)
class Prefix(Combinator):
    """k < n, in the words of prefix language models."""

    n: Expr

    @property
    def keeps(self) -> Expr:
        return E.lt(E.K, self.n)


@dataclass(frozen=True, repr=False)
class GlobalTokens(Combinator):
    """p in G or k in G; one side only for `rows` and `columns`."""

    ids: tuple[int, ...] | Expr
    """The tokens of G, or the number of first tokens."""
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

    @property
    def keeps(self) -> Expr:
        p = position(self.align)
        sides = {"rows": (p,), "columns": (E.K,), "both": (p, E.K)}[self.side]
        if isinstance(self.ids, Expr):
            last = E.sub(self.ids, E.const(1))
            return E.disj(*(_within(x, E.ZERO if x is p else None, last) for x in sides))
        return E.disj(*(E.member(x, self.ids) for x in sides))

    @property
    def spelling(self) -> Spelling:
        return Spelling("global_tokens", (self.ids,), side="" if self.side == "both" else self.side)


@dataclass(frozen=True, repr=False)
class BlockDiagonal(Combinator):
    """p // size == k // size; `causal` adds k <= p (then it prints as chunked)."""

    size: int
    causal: bool = False
    align: str = END

    @property
    def keeps(self) -> Expr:
        p = position(self.align)
        same = E.eq(E.floordiv(p, self.size), E.floordiv(E.K, self.size))
        return E.conj(same, E.le(E.K, p)) if self.causal else same

    @property
    def spelling(self) -> Spelling:
        return Spelling("chunked" if self.causal else "block_diagonal", (self.size,))


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

    @property
    def own_heads(self) -> int | None:
        """The size of the first dimension, if the table has three."""
        return self.decl.shape[0] if len(self.decl.shape) > 2 else None


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
        """The flags of the queries, of the keys, or of both."""
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
    """Positions of queries and keys, as arrays of a call; see dsl.data_atoms.positions."""

    of_q: DataDecl
    of_k: DataDecl


@dataclass(frozen=True, repr=False)
class AtPositions(Node):
    """A mask of positions, with the positions of_q[q] and of_k[k] from arrays of a call."""

    of: Placed
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
class Where(Combinator):
    """Keeps the pairs for which a traced formula holds."""

    formula: Expr
    """Over q, k, h, n_q, n_kv and parameters."""
    tables: tuple[DataDecl, ...] = ()
    """Arrays that the formula captured, named table0, table1, ..."""
    lengths: Lengths = ANY_LENGTHS
    """The numbers of queries and keys for which the formula is valid; None: all."""

    @property
    def keeps(self) -> Expr:
        return self.formula

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
    def own_heads(self) -> int:
        """Number of masks."""
        return len(self.masks)

    @property
    def children(self) -> tuple[Mask, ...]:
        return self.masks


@dataclass(frozen=True, repr=False)
class Heads(Combinator):
    """Every pair, on these heads only."""

    ids: tuple[int, ...]

    @property
    def last_head(self) -> int:
        return max(self.ids, default=-1)

    @property
    def keeps(self) -> Expr:
        return E.member(E.H, self.ids)

    @property
    def spelling(self) -> Spelling:
        return Spelling("heads", self.ids)


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
    """Positions by which blocks are counted; None: they are counted from the first token."""

    @property
    def decls(self) -> tuple[DataDecl, ...]:
        """The positions of queries and keys, if the node has them."""
        return () if self.at is None else (self.at.of_q, self.at.of_k)

    @property
    def scored_blocks(self) -> tuple[int, int]:
        """The queries and keys of a block that may have one score; calls may also score single
        pairs.
        """
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


Placed = Causal | Window | Dilated | BlockDiagonal
"""Masks that depend on positions, which calls may pass."""
OfTokens = (
    Full | Causal | Window | Dilated | Offsets | Strided | Sinks | Prefix | GlobalTokens
    | BlockDiagonal | Heads | Where
)  # fmt: skip
"""Every combinator: `reference/pairs` has a case for each."""
OfData = RandomBlocks | BlockTable | Flags | Intervals | Documents | AtPositions | Tree | KeyLists
"""Masks that read an array."""
OfMasks = Algebra | Complement | GlobalFlags | PerHead | TopK
"""Masks that are made of others."""
AnyNode = OfTokens | OfData | OfMasks
"""Every kind of mask. A `match` over it ends with `no_case`, so a missing case is a type error."""
_KINDS = frozenset(get_args(AnyNode))


def as_node(mask: Mask) -> AnyNode:
    """Return the mask, typed as `AnyNode`.

    Raises:
        TypeError: AnyNode does not list its kind; a mistake of maskc.
    """
    if type(mask) not in _KINDS:
        raise TypeError(f"maskc.dsl.nodes.AnyNode does not list {type(mask).__name__}")
    return cast(AnyNode, mask)


def no_case(node: Never) -> NoReturn:
    """End a `match` over all kinds, like `typing.assert_never`, but without printing the mask.

    Raises:
        TypeError: a kind has no case; a mistake of maskc.
    """
    raise TypeError(f"no case for {type(node).__name__}")


def fixed_heads(mask: Mask) -> int | None:
    """The number of heads that a mask is written for; None if any number fits.

    Raises:
        WrongHeads: its parts are written for several.
    """
    known: int | None = None
    for node in walk(mask):
        if (heads := node.own_heads) is None:
            continue
        if known not in (None, heads):
            raise WrongHeads(known, f"a part of it for {heads}", at=node.loc)
        known = heads
    return known


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
    """The arrays that calls pass to a mask, each once."""
    decls = (decl for node in walk(mask) for decl in node.decls)
    return [decl for decl in dict.fromkeys(decls) if decl.from_caller]


def default_parameters(mask: Mask) -> dict[str, int]:
    """Names and defaults of the mask's parameters, mc.param(...)."""
    defaults: dict[str, int] = {}
    for part in (part for node in walk(mask) for part in node.formulas):
        defaults |= E.params(part)
    return defaults


def structure(value: object) -> object:
    """Return a mask as nested tuples without source positions; different masks have different
    reprs.

    The text of a mask is not enough for this: it shows only the names of arrays without content.
    """
    if isinstance(value, Node):
        parts = [structure(getattr(value, part.name)) for part in fields(value) if part.repr]
        return (type(value).__name__, *parts)
    return tuple(map(structure, value)) if isinstance(value, tuple) else value
