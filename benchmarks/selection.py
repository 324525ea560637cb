"""Masks with one selection among the pairs of a static mask: what can be said without a matrix of
all pairs.

What `maskc.reference.ranking` does one candidate after another would take minutes at 32k keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from maskc import driver
from maskc.core import expr as E
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import walk
from maskc.reference.pairs import PairPlace, keep
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, library, like, wide

_PAIRS = 1 << 24
"""Pairs of one head that are looked at together."""
_RANKING = {"index_q", "index_k", "index_w"}


@dataclass(frozen=True, eq=False)
class OneSelection:
    """`topk(...)`, or `topk(...) | static`."""

    case: Case
    node: N.TopK
    static: Mask | None

    @property
    def owners(self) -> int:
        """Groups of heads that choose together."""
        if self.node.score == "indexer" or self.node.share == "all":
            return 1
        return self.case.kv_heads if self.node.share == "group" else self.case.heads

    @property
    def rows(self) -> int:
        """Blocks of queries."""
        return -(-self.case.n_q // self.node.q_block)

    @property
    def columns(self) -> int:
        """Blocks of keys."""
        return -(-self.case.n_kv // self.node.block)

    @property
    def index_heads(self) -> int:
        """Heads of the indexer that ranks; 0 where none does."""
        found = self.case.data.get("index_q")
        return np.shape(found)[1] if self.node.score == "indexer" and found is not None else 0

    def owner(self, head: int) -> int:
        """The owner of the choice that a head reads."""
        return head * self.owners // self.case.heads

    def queries(self, blocks: np.ndarray) -> np.ndarray:
        """The queries, int64 [count], of blocks, int64 [blocks]; both ascend."""
        return _tokens(blocks, self.node.q_block, self.case.n_q)

    def cells(self, mask: Mask, blocks: np.ndarray) -> np.ndarray:
        """int64 [len(blocks), columns]: how many pairs of every block of queries and block of keys
        a static mask keeps."""
        return cells(mask, self.case, (self.node.q_block, self.node.block), blocks)

    def counts(self, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(is it a candidate; its pairs where it is chosen; and where it is not), each
        [len(blocks), columns], of every block of queries and block of keys."""
        static, of = self.static, self.node.of
        candidates = self.cells(of, blocks)
        if static is None:
            return candidates > 0, candidates, np.zeros_like(candidates)
        return candidates > 0, self.cells(of | static, blocks), self.cells(static, blocks)

    def sizes(self) -> int | None:
        """The pairs of one head where no score is needed to know: single keys alone, of which each
        query has as many as are asked for, or all that it may see."""
        node, case = self.node, self.case
        if self.static is not None or not node.block == node.q_block == 1:
            return None
        total, step = 0, max(1, _PAIRS // case.n_kv)
        for first in range(0, case.n_q, step):
            rows = np.arange(first, min(first + step, case.n_q))
            known = spans(node.of, case, rows)
            seen = static_rows(node.of, case, rows).sum(1) if known is None else known[1] - known[0]
            total += int(np.minimum(seen, node.k).sum())
        return total

    def seen(self, chosen: Any, blocks: np.ndarray, rows: np.ndarray) -> Any:
        """bool [..., len(rows), n_kv]: what some queries see, where this was chosen.

        Args:
            chosen: bool [..., len(blocks), columns].
            blocks: of queries, ascending; those of `rows` are among them.
        """
        place = np.searchsorted(blocks, rows // self.node.q_block)
        columns = np.arange(self.case.n_kv) // self.node.block
        found = chosen[..., place.tolist(), :]
        if self.node.block > 1:
            found = found[..., columns.tolist()]
        found = found & _beside(found, static_rows(self.node.of, self.case, rows))
        if self.static is not None:
            found = found | _beside(found, static_rows(self.static, self.case, rows))
        return found


def one_selection(case: Case) -> OneSelection | None:
    """The mask, where it has one selection by products of queries, blocks or an indexer, of a mask
    that is the same for all heads and reads no data, alone or joined with such a mask."""
    match case.mask:
        case N.Algebra("|", N.TopK() as node, static) | N.Algebra("|", static, N.TopK() as node):
            pass
        case N.TopK() as node:
            static = None
        case _:
            return None
    parts = [node.of] if static is None else [node.of, static]
    if any(driver.selects(part) for part in parts):
        return None
    if any(isinstance(each, (N.PerHead, N.Heads)) for part in parts for each in walk(part)):
        return None
    single = node.block == node.q_block == 1
    known = node.score == "block_mean" or (single and node.score in ("qk", "indexer"))
    return OneSelection(case, node, static) if known and case.data.keys() <= _RANKING else None


def best(allowed: Any, scores: Any, k: int) -> Any:
    """bool [..., columns]: of every row the k best of what is allowed, the first of equal ones.

    Args:
        allowed: bool, of scores' shape or without leading dimensions.
        scores: in NumPy or torch, finite.
    """
    xp = library(scores)
    allowed = _beside(scores, allowed)
    ranked = xp.where(allowed, scores, -np.inf)
    if xp is np:
        order = np.argsort(-ranked, axis=-1, kind="stable")[..., :k]
        chosen = np.zeros(ranked.shape, bool)
        np.put_along_axis(chosen, order, True, axis=-1)
    else:
        order = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        chosen = xp.zeros_like(ranked, dtype=xp.bool).scatter_(-1, order, True)
    return chosen & allowed


def cells(mask: Mask, case: Case, sides: tuple[int, int], blocks: np.ndarray) -> np.ndarray:
    """int64 [len(blocks), blocks of keys]: how many pairs of every block a mask without data keeps.

    Args:
        sides: queries and keys of a block.
        blocks: of queries, ascending.
    """
    starts = np.arange(0, case.n_kv, sides[1])
    columns = case.n_kv if spans(mask, case, np.arange(1)) is None else len(starts)
    several = max(1, _PAIRS // (columns * sides[0]))
    found = [np.empty((0, len(starts)), np.int64)]
    for first in range(0, len(blocks), several):
        part = blocks[first : first + several]
        rows = _tokens(part, sides[0], case.n_q)
        known = spans(mask, case, rows)
        if known is None:
            seen = static_rows(mask, case, rows)
            counts = np.add.reduceat(seen, starts, axis=1, dtype=np.int64)
        else:
            ends = np.minimum(starts + sides[1], case.n_kv)
            low, high = (end[:, None] for end in known)
            counts = np.maximum(np.minimum(high, ends) - np.maximum(low, starts), 0)
        found.append(np.add.reduceat(counts, np.searchsorted(rows, part * sides[0]), axis=0))
    return np.concatenate(found)


def _tokens(blocks: np.ndarray, size: int, n: int) -> np.ndarray:
    rows = (blocks[:, None] * size + np.arange(size)).ravel()
    return rows[rows < n]


def static_rows(mask: Mask, case: Case, rows: np.ndarray) -> np.ndarray:
    """bool [len(rows), n_kv]: some rows of a mask without data, by the reference."""
    scope = {
        "q": rows[:, None], "k": np.arange(case.n_kv)[None, :],
        "n_q": np.int64(case.n_q), "n_kv": np.int64(case.n_kv),
    }  # fmt: skip
    return keep(mask, PairPlace(case.n_q, case.n_kv, 0, case.heads, case.kv_heads, {}, scope, {}))


def spans(mask: Mask, case: Case, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Find (first, past the last) key, int64 [rows] each, of queries whose keys the mask's name
    makes consecutive; None for other masks."""
    n_kv = case.n_kv
    match mask:
        case N.Full():
            ends = np.zeros_like(rows), np.full_like(rows, n_kv)
        case N.Causal(align):
            ends = np.zeros_like(rows), _positions(case, rows, align) + 1
        case N.Window(left, right, align):
            p = _positions(case, rows, align)
            sides = [None if side is None else E.as_const(side) for side in (left, right)]
            if any(s is not None and c is None for s, c in zip((left, right), sides, strict=True)):
                return None
            low = np.zeros_like(rows) if left is None else p - sides[0]
            ends = low, np.full_like(rows, n_kv) if right is None else p + sides[1] + 1
        case N.Algebra("&", one, other):
            known = spans(one, case, rows), spans(other, case, rows)
            if None in known:
                return None
            (low, high), (least, most) = known
            ends = np.maximum(low, least), np.minimum(high, most)
        case _:
            return None
    low, high = (np.clip(end, 0, n_kv) for end in ends)
    return low, np.maximum(low, high)


def _positions(case: Case, rows: np.ndarray, align: str) -> np.ndarray:
    return rows + (case.n_kv - case.n_q if align == N.END else 0)


def _beside(model: Any, values: Any) -> Any:
    """Booleans in the library and on the device of a model."""
    xp = library(model)
    return values if xp is np else xp.as_tensor(values, device=model.device)


# ------------------------------------------------------------------ ranks


class Ranks:
    """The definitions of `maskc.reference.ranking`, for the rows that are asked for alone."""

    def __init__(self, one: OneSelection, tensors: CaseTensors) -> None:
        """Nothing is computed yet."""
        self._one, self._case, self._tensors = one, one.case, tensors
        self._keys = lru_cache(maxsize=1)(self._all_keys)

    def rows(self, batch: int, blocks: np.ndarray) -> Any:
        """float64 [owners, len(blocks), columns]: scores of some blocks of queries, ascending."""
        queries = self._one.queries(blocks)
        if self._one.node.score == "indexer":
            return self._indexed(batch, queries)
        case, one = self._case, self._one
        q = means(wide(self._tensors.q[batch][:, queries.tolist()], None), one.node.q_block)
        k = self._keys(batch)
        q = q.reshape(case.kv_heads, case.group * q.shape[1], q.shape[2])
        scores = (q @ k.swapaxes(1, 2)).reshape(one.owners, -1, len(blocks), one.columns)
        return scores.mean(1)

    def _all_keys(self, batch: int) -> Any:
        """float64 [heads of keys, columns, D], or of an indexer [columns, D]."""
        if self._one.node.score == "indexer":
            return self._index("index_k", batch)
        return means(wide(self._tensors.k[batch], None), self._one.node.block)

    def _indexed(self, batch: int, queries: np.ndarray) -> Any:
        q, w = (self._index(name, batch, queries) for name in ("index_q", "index_w"))
        k, total = self._keys(batch), 0
        for head in range(len(q)):  # all of them at once would take gigabytes
            total = total + w[head][:, None] * (q[head] @ k.T).clip(0)
        return total[None]

    def _index(self, name: str, batch: int, queries: np.ndarray | None = None) -> Any:
        """float64: a sequence of an indexer's array; of some queries, or all that it has."""
        array = np.asarray(self._case.data[name])
        array = array[batch if len(array) > 1 else 0]
        return wide(like(self._tensors.q, array if queries is None else array[:, queries]), None)


def means(x: Any, size: int) -> Any:
    """The means of blocks of rows of [..., rows, D]; the last one may have fewer."""
    if size == 1:
        return x
    rows, xp = x.shape[-2], library(x)
    whole = rows - rows % size
    blocks = x[..., :whole, :].reshape(*x.shape[:-2], whole // size, size, x.shape[-1])
    found = [blocks.mean(-2)]
    if whole < rows:
        found.append(x[..., whole:, :].mean(-2)[..., None, :])
    return xp.concatenate(found, -2)
