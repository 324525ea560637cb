"""What the selection of a case ranks by, in fp64, where its tensors are; a few rows at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.selection import OneSelection
from maskc.verify.tensors import Tensors, library, like, wide


class Ranks:
    """The definitions of `maskc.reference.ranking`, for the rows that are asked for alone."""

    def __init__(self, one: OneSelection, tensors: Tensors) -> None:
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
