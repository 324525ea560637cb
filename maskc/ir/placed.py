"""Masks in the positions of sequences with their own lengths.

A batch has one number of queries and one of keys. For sequences of different lengths, arrays hold
the positions of queries and the numbers of keys, and the mask becomes a formula over these arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind, positions_of_keys, positions_of_queries
from maskc.core.errors import NotPaged
from maskc.core.expr import Expr
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.ir.heads import heads_of
from maskc.ir.lower import differs_by_head, lower

POSITION = "_position"
"""The array with the position of each query among its sequence's keys."""
LENGTH, QUERIES = "_length", "_queries"
"""Arrays with the keys, and the queries, of each query's sequence; 0 keys where a row of the batch
has no query."""

_KINDS = (
    DataKind.documents, DataKind.flags, DataKind.intervals, DataKind.positions, DataKind.tree,
)  # fmt: skip


@dataclass(frozen=True)
class TokenArray:
    """An array that the formula reads, made of one that a call passes with an entry per token."""

    name: str
    decl: DataDecl
    """Names that the mask reads as it is written."""
    part: int
    """Which of its arrays."""
    of_queries: bool


@dataclass(frozen=True)
class PlacedMask:
    """A mask over sequences with lengths of their own."""

    mask: Mask
    reads: tuple[str, ...]
    """Which of POSITION, LENGTH and QUERIES it reads."""
    arrays: tuple[TokenArray, ...]


def placed(mask: Mask, n_heads: int | None = None) -> PlacedMask:
    """Return the mask over sequences whose queries are the last tokens.

    Args:
        mask: any mask without run-time selections, tables and captured arrays.
        n_heads: query heads, where the mask differs between them.

    Raises:
        NotPaged: the mask reads what is not an entry per token (MC466).
    """
    at = getattr(mask, "loc", None)
    if getattr(mask, "captures", False):
        raise NotPaged("captures arrays, whose entries are not those of tokens", at=at)
    arrays: dict[str, TokenArray] = {}
    if not differs_by_head(mask):
        formulas = [_formula(mask, None, n_heads, arrays)]
    else:
        heads = heads_of(mask, n_heads) or 0
        formulas = [_formula(mask, head, heads, arrays) for head in range(heads)]
    masks: list[Mask] = []
    reads: set[str] = set()
    for formula in formulas:
        own_names = [name for name in E.arrays(formula) if name in (POSITION, LENGTH, QUERIES)]
        reads.update(own_names)
        decls = [positions_of_queries(name) for name in own_names]
        decls += [
            (positions_of_queries if array.of_queries else positions_of_keys)(array.name)
            for array in arrays.values()
            if array.name in E.arrays(formula)
        ]
        masks.append(N.Where(formula, tuple(decls), loc=at))
    one = masks[0] if len(masks) == 1 else N.PerHead(tuple(masks), loc=at)
    return PlacedMask(one, tuple(sorted(reads)), tuple(arrays.values()))


def _formula(
    mask: Mask, head: int | None, n_heads: int | None, arrays: dict[str, TokenArray]
) -> Expr:
    """The formula of one head; `arrays` collects what it reads."""
    at = getattr(mask, "loc", None)
    ir = lower(mask, head, n_heads)
    if ir.selections:
        raise NotPaged("chooses keys at run time", at=at)
    parts = {name: (decl, part) for decl in ir.data for part, name in enumerate(decl.arrays)}

    def load(node: E.Load) -> Expr:
        decl, part = parts[node.array]
        if decl.kind not in _KINDS:
            raise NotPaged(f"reads {decl.name!r}, which has no entry per token", at=at)
        of_queries = node.index == (E.Q,)
        if not of_queries and node.index != (E.K,):
            raise NotPaged(f"reads {decl.name!r} elsewhere than at its tokens", at=at)
        arrays[node.array] = TokenArray(node.array, decl, part, of_queries)
        return node

    position, length, queries = (E.Load(name, (E.Q,)) for name in (POSITION, LENGTH, QUERIES))
    token = E.add(position, E.N_Q, E.scale(-1, E.N_KV))  # lengths cancel in positions

    def placed_token(node: Expr) -> Expr | None:
        if isinstance(node, E.Load):
            return load(node)
        return token if node == E.Q else None

    keep = E.transform(ir.keep, placed_token)
    keep = E.substitute(keep, {E.N_Q: queries, E.N_KV: length})
    return E.conj(keep, E.lt(E.K, length))
