"""Masks that are one selection of a static mask: all choices of a head at once, by sorting.

What `maskc.reference.select` does one candidate after another would take minutes at 32k keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from maskc import driver
from maskc.bench.case import Case
from maskc.dsl import nodes as N
from maskc.reference.dense import walk
from maskc.reference.pairs import Place, keep

_ROWS = 256
"""Queries whose pairs are looked at together."""


def selection_alone(case: Case) -> N.TopK | None:
    """The mask, where it is a selection by products of queries, blocks or an indexer with keys that
    heads share alike, of a mask that is the same for all of them."""
    node = case.mask
    if not isinstance(node, N.TopK) or driver.selects(node.of):
        return None
    if any(isinstance(each, N.PerHead) for each in walk(node.of)):
        return None
    single = node.block == node.q_block == 1
    known = node.score == "block_mean" or (single and node.score in ("qk", "indexer"))
    own = case.data.keys() <= {"index_q", "index_k", "index_w"}
    return node if known and own else None


def owner(case: Case, node: N.TopK, head: int) -> int:
    """Which heads choose together with one."""
    if node.score == "indexer" or node.share == "all":
        return 0
    return head // case.group if node.share == "group" else head


def owned(case: Case, node: N.TopK, own: int, scores: np.ndarray) -> np.ndarray:
    """float64 [rows, columns] by which an owner ranks: of its heads the mean."""
    size = {"head": 1, "group": case.group, "all": case.heads}[node.share]
    return scores[own * size : (own + 1) * size].mean(axis=0) if len(scores) > 1 else scores[0]


def seen(case: Case, node: N.TopK, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """bool [len(rows), n_kv]: what some queries see.

    Args:
        scores: float64, of the blocks that these queries are of, ascending, by those of keys.
    """
    blocks, place = np.unique(rows // node.q_block, return_inverse=True)
    cells = np.concatenate([of for _, of in _blocks(case, node, blocks)]) > 0
    chosen = best(cells, scores, node.k)
    columns = np.arange(case.n_kv) // node.block
    return chosen[place][:, columns] & keep(node.of, _place(case, rows))


def count(case: Case, node: N.TopK, scores: np.ndarray | None) -> int:
    """The live pairs of all queries of an owner, for each of its heads.

    Args:
        scores: of all blocks; single keys need none, as many as are asked for are chosen.
    """
    total, every = 0, np.arange(-(-case.n_q // node.q_block))
    for part, cells in _blocks(case, node, every):
        if scores is None:
            total += int(np.minimum(cells.sum(axis=1), node.k).sum())
        else:
            total += int(cells[best(cells > 0, scores[part], node.k)].sum())
    return total


def best(allowed: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """bool [rows, columns]: in every row the k best of what is allowed, the first of equal ones."""
    order = np.argsort(np.where(allowed, -scores, np.inf), axis=1, kind="stable")[:, :k]
    chosen = np.zeros_like(allowed)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen & allowed


def _blocks(
    case: Case, node: N.TopK, blocks: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some blocks of queries at a time, and how many pairs each allows with every block of keys."""
    several = max(1, _ROWS // node.q_block)
    for first in range(0, len(blocks), several):
        part = blocks[first : first + several]
        rows = (part[:, None] * node.q_block + np.arange(node.q_block)).ravel()
        rows = rows[rows < case.n_q]
        allowed = keep(node.of, _place(case, rows)).astype(np.int32)
        starts = np.searchsorted(rows, part * node.q_block)
        allowed = np.add.reduceat(allowed, starts, axis=0)
        yield part, np.add.reduceat(allowed, np.arange(0, case.n_kv, node.block), axis=1)


def _place(case: Case, rows: np.ndarray) -> Place:
    scope = {
        "q": rows[:, None], "k": np.arange(case.n_kv)[None, :],
        "n_q": np.int64(case.n_q), "n_kv": np.int64(case.n_kv),
    }  # fmt: skip
    return Place(case.n_q, case.n_kv, 0, case.heads, case.kv_heads, {}, scope, {})
