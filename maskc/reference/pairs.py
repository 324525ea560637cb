"""The definition of every mask node, on one head of one sequence.

Throughout, q is a column [n_q, 1] and k a row [1, n_kv], so that a condition on both is the matrix;
a column of fewer queries gives their rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from maskc.core import expr as E
from maskc.core.captured import Computed, check_lengths
from maskc.core.data import DataDecl, Parents
from maskc.core.errors import DataShape
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.reference import given
from maskc.reference.formula import Scope, condition, integer
from maskc.reference.ranking import blocks_of, select


@dataclass(frozen=True)
class PairPlace:
    """One head of one sequence, with everything that nodes read there."""

    n_q: int
    n_kv: int
    own_head: int
    """The head; nodes read it as `head`."""
    n_heads: int
    heads_kv: int | None
    data: Mapping[str, given.Read]
    scope: Scope
    scores: Mapping[N.TopK, np.ndarray]
    """The scores by which each selection ranks: [heads, rows, columns] or, where heads share,
    without heads."""
    sequence: int = 0
    reads_of_head: list[SourceLoc | None] = field(default_factory=list)
    """Nodes that read the head. A mask without such nodes is the same on all heads."""
    selected: dict[tuple[N.TopK, tuple[int, ...], int], np.ndarray] = field(default_factory=dict)
    """Pairs that heads of this sequence selected together, by the selection, the heads, and the
    head whose positions they read."""

    @property
    def head(self) -> int:
        """The head, for what differs by head."""
        self.reads_of_head.append(None)
        return self.own_head

    @property
    def q(self) -> np.ndarray:
        """The queries, int64 [n_q, 1]."""
        return self.scope["q"]

    @property
    def k(self) -> np.ndarray:
        """The keys, int64 [1, n_kv]."""
        return self.scope["k"]

    def read(self, decl: DataDecl) -> given.Read:
        """The data of a declaration, of this head where heads differ."""
        value = self.data[decl.name]
        return given.for_head(decl, value, self.head if given.is_by_head(decl, value) else 0)

    def position(self, align: str) -> np.ndarray:
        """p, the query's position among the keys, [n_q, 1]."""
        return self.q + (self.n_kv - self.n_q if align == N.END else 0)


Truths = npt.NDArray[np.bool_]


def keep(mask: Mask, at: PairPlace) -> Truths:
    """bool [n_q, n_kv], or the rows of the queries that the scope's q lists."""
    result = _algebra(mask, at)
    if at.reads_of_head and at.reads_of_head[-1] is None:
        at.reads_of_head[-1] = getattr(mask, "loc", None)
    return np.array(np.broadcast_to(result, (len(at.q), at.n_kv)))


def _algebra(mask: Mask, at: PairPlace) -> Truths:
    node = N.as_node(mask)
    match node:
        case N.Algebra(op, left, right):
            return _JOINED[op](keep(left, at), keep(right, at))
        case N.Complement(of):
            return ~keep(of, at)
        case N.GlobalFlags():
            return np.asarray(np.any([keep(child, at) for child in node.children], axis=0), bool)
        case N.PerHead(masks):
            differ = any(other != masks[0] for other in masks)
            return keep(masks[at.head if differ else 0], at)
        case N.TopK():
            return _topk(node, at)
    return _atom(node, at)


_JOINED: dict[str, Callable[[Truths, Truths], Truths]] = {
    "&": np.logical_and,
    "|": np.logical_or,
    "-": lambda left, right: left & ~right,
    "^": np.logical_xor,
}


def _atom(mask: N.OfTokens | N.OfData, at: PairPlace) -> Truths:
    q, k = at.q, at.k
    p = at.position(getattr(mask, "align", N.END))
    pairs: Truths
    match mask:
        case N.Full():
            pairs = np.asarray(True)
        case N.Causal():
            pairs = k <= p
        case N.Window(left, right):
            pairs = np.ones((len(q), at.n_kv), dtype=bool)
            if left is not None:
                pairs = pairs & (p - k <= integer(left, at.scope))
            if right is not None:
                pairs = pairs & (k - p <= integer(right, at.scope))
        case N.Dilated(left, right, stride):
            back, ahead = (int(integer(side, at.scope)) * stride for side in (left, right))
            pairs = (p - k <= back) & (k - p <= ahead) & ((p - k) % stride == 0)
        case N.Offsets(ids):
            pairs = np.isin(p - k, ids)
        case N.Strided(stride, phase):
            pairs = k % stride == phase
        case N.Sinks(n) | N.Prefix(n):
            pairs = k < integer(n, at.scope)
        case N.GlobalTokens(ids, side):
            rows, columns = _among(p, ids, at), _among(k, ids, at)
            pairs = {"rows": rows, "columns": columns, "both": rows | columns}[side]
        case N.BlockDiagonal(size, causal):
            pairs = p // size == k // size
            pairs = pairs & (k <= p) if causal else pairs
        case N.RandomBlocks(block, per_row, seed):
            pairs = np.zeros((len(q), at.n_kv), dtype=bool)
            for row in range(len(q)):
                drawn = drawn_columns(seed, int(p[row, 0]) // block, -(-at.n_kv // block), per_row)
                pairs[row] = np.isin(k[0] // block, drawn)
        case N.BlockTable(decl):
            pairs = _table(decl, at)[q // decl.block, k // decl.block]
        case N.KeyLists(decl):
            pairs = np.zeros((len(q), at.n_kv), dtype=bool)
            lists = given.key_lists(decl.name, at.read(decl), at.n_q, at.n_kv)
            for row, query in enumerate(q[:, 0]):
                pairs[row, [key for key in lists[query] if key >= 0]] = True
        case N.Flags(decl, "q"):
            pairs = given.of_queries(decl, at.read(decl), at.n_q, at.n_kv)[q] != 0
        case N.Flags(decl, _):
            pairs = given.vector(decl.name, at.read(decl), at.n_kv)[k] != 0
        case N.AtPositions(of, where):
            of_q = given.vector(where.of_q.name, at.read(where.of_q), at.n_q)[q]
            of_k = given.vector(where.of_k.name, at.read(where.of_k), at.n_kv)[k]
            pairs = _atom(of, replace(at, scope=at.scope | {"q": of_q, "k": of_k}))
        case N.Intervals(decl):
            low, high = (
                given.of_queries(decl, part, at.n_q, at.n_kv) for part in given.parts(at.read(decl))
            )
            pairs = (low[q] <= k) & (k < high[q])
        case N.Documents(decl):
            of_q, of_k = given.document_ids(decl, at.read(decl), at.n_q, at.n_kv)
            pairs = of_q[q] == of_k[k]
        case N.Tree(decl):
            count = max(at.n_q, at.n_kv)
            q, k = (given.tokens(decl, size, count)[x] for size, x in ((at.n_q, q), (at.n_kv, k)))
            walked = at.read(decl)
            if not isinstance(walked, Parents):
                tin, tout = given.pair(decl.name, walked, count)
                pairs = (tin[k] <= tin[q]) & (tin[q] < tout[k])
            elif len(q) < at.n_q:
                pairs = given.ancestors(decl.name, walked, count, q[:, 0])[:, k[0]]
            else:
                pairs = given.ancestors(decl.name, walked, count)[q, k]
        case N.Where(formula, tables, lengths):
            check_lengths(lengths, at.n_q, at.n_kv, mask.loc)
            held = {decl.name: _own(decl, at) for decl in tables}
            places = (getattr(decl.values, "at", None) for decl in tables)
            place = next(filter(None, places), mask.loc)
            head = {"h": np.asarray(at.head)} if "h" in E.symbols(formula) else {}
            pairs = condition(formula, at.scope | held | head, place)
        case N.Heads(ids):
            pairs = np.asarray(at.head in ids if ids else False)  # `heads()`: none on any head
        case _:
            N.no_case(mask)
    return pairs


def _among(tokens: np.ndarray, ids: tuple[int, ...] | Expr, at: PairPlace) -> Truths:
    """Which of the tokens are global: the listed ones, or the first ones."""
    if isinstance(ids, Expr):
        return (tokens >= 0) & (tokens < integer(ids, at.scope))
    return np.isin(tokens, ids)


def values(decl: DataDecl) -> np.ndarray:
    """The captured array as int64, of its own shape."""
    return decl.array.astype(np.int64)


def leading(decl: DataDecl) -> tuple[int, int]:
    """Sequences and heads of a captured array, 1 where it has no such dimension."""
    if isinstance(decl.values, Computed):  # whose array lengths decide
        return decl.values.sequences(decl.rank), decl.values.heads(decl.rank)
    front = decl.array.shape[: decl.array.ndim - decl.rank]
    if len(front) == 2:
        return front[0], front[1]
    one = front[0] if front else 1
    return (one, 1) if decl.rank == 1 else (1, one)


def _own(decl: DataDecl, at: PairPlace) -> np.ndarray:
    """The part of this sequence and head."""
    array = values(decl)
    by_sequence = array.ndim == decl.rank + 2 or decl.rank == 1
    if by_sequence and array.ndim > decl.rank:
        array = array[at.sequence if len(array) > 1 else 0]
    if array.ndim > decl.rank:
        array = array[at.head if len(array) > 1 else 0]
    return array


def _table(decl: DataDecl, at: PairPlace) -> Truths:
    """bool [query blocks, key blocks] of this head."""
    array = at.read(decl) if decl.from_caller else values(decl)
    table = np.asarray(array)
    if table.ndim == 3:
        table = table[at.head if len(table) > 1 else 0]
    expected = (-(-at.n_q // decl.block), -(-at.n_kv // decl.block))
    if table.shape != expected:
        if not decl.from_caller:
            raise DataShape(f"block_table(block={decl.block})", table.shape, expected)
        raise DataShape(decl.name, table.shape, expected, at=decl.name)
    pairs: Truths = table != 0
    return pairs


def _topk(mask: N.TopK, at: PairPlace) -> Truths:
    ranking = at.scores[mask]
    rankings = ranking[None] if ranking.ndim == 2 else ranking
    head = at.head if len(rankings) > 1 and mask.share != "all" else at.own_head
    per_group = at.n_heads // (at.heads_kv or at.n_heads)
    sharing = {
        "head": [head],
        "group": [h for h in range(at.n_heads) if h // per_group == head // per_group],
        "all": list(range(at.n_heads)),
    }[mask.share]
    key = mask, tuple(sharing), at.own_head if mask.decls else 0
    if key not in at.selected:
        at.selected[key] = _selected(mask, at, sharing, ranking)
    selected: Truths = at.selected[key] & keep(mask.of, at)
    return selected


def _selected(mask: N.TopK, at: PairPlace, sharing: list[int], ranking: np.ndarray) -> Truths:
    """The pairs that some heads select together, whatever each of them allows."""
    rankings = ranking[None] if ranking.ndim == 2 else ranking
    allowed = np.stack([keep(mask.of, replace(at, own_head=h)) for h in sharing])
    pairs = (len(at.q), at.n_kv)
    places = [given.vector(d.name, at.read(d), n) for d, n in zip(mask.decls, pairs, strict=False)]
    of_q, of_k = places or (None, None)
    down = blocks_of(of_q, mask.q_block, pairs[0])
    across = blocks_of(of_k, mask.block, pairs[1])
    blocks = pairs if mask.at else (len(down), len(across))
    if ranking.shape[-2:] not in (pairs, blocks):
        raise DataShape("scores", ranking.shape, f"[..., {pairs}] or [..., {blocks}]", at="scores")
    scores = np.stack([rankings[h if len(rankings) > 1 else 0] for h in sharing])
    whole = mask.at is not None and mask.score == "block_mean"
    return select(allowed, scores, mask.k, down, across, whole)


# ------------------------------------------------------------------ random blocks


_WORD = 1 << 64


def step(x: int) -> int:
    """The output of one step of SplitMix64 from state x."""
    z = (x + 0x9E3779B97F4A7C15) % _WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _WORD
    return z ^ (z >> 31)


def splitmix64(seed: int, row: int, column: int) -> int:
    """The hash of block (row, column); a negative row counts modulo 2^64."""
    return step((step((step(seed % _WORD) + row) % _WORD) + column) % _WORD)


def drawn_columns(seed: int, row: int, columns: int, per_row: int) -> list[int]:
    """R(row): the `per_row` of 0..columns-1 with the least hashes, ties by index, ascending."""
    order = sorted(range(columns), key=lambda column: (splitmix64(seed, row, column), column))
    return sorted(order[:per_row])
