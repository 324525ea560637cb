"""Ranking scores of selections: fp32, a few rows at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from maskc.core.dtypes import E4M3
from maskc.core.errors import DataMissing, DataShape, DataType
from maskc.core.selection import FACTORS, SHAPES, Score, Selection, with_factors
from maskc.core.sizes import Sizes
from maskc.layout.inputs.host import to_host
from maskc.layout.topk.blocks import Blocking, Starts


class Scores(Protocol):
    """Scores of pairs, or of pairs of blocks."""

    cells: bool
    """Whether rows and columns are blocks of queries and of keys."""
    batched: bool
    """Whether sequences have scores of their own."""
    by_head: bool
    """Whether query heads have."""

    @property
    def content(self) -> tuple[np.ndarray, ...]:
        """The float32 arrays, of any shapes, that determine the ranking."""

    def rows(self, sequence: int, head: int, first: int, last: int) -> np.ndarray:
        """float32 [last - first, columns]."""


class Products:
    """q . k, of tokens or of the means of blocks."""

    batched = by_head = True

    def __init__(self, q: np.ndarray, k: np.ndarray, cells: bool = False) -> None:
        """q float32 [batch, heads_q, rows, D], k float32 [batch, heads_kv, columns, D]."""
        self._q, self._k, self.cells = q, k, cells
        self._group = q.shape[1] // max(1, k.shape[1])
        self.content = q, k

    def rows(self, sequence: int, head: int, first: int, last: int) -> np.ndarray:
        keys = self._k[sequence, head // self._group]
        products: np.ndarray = self._q[sequence, head, first:last] @ keys.T
        return products


class Means:
    """q . k of the means of blocks that count from positions."""

    cells = batched = by_head = True

    def __init__(self, q: np.ndarray, k: np.ndarray, blocking: Blocking) -> None:
        """q float32 [batch, heads_q, n_q, D], k float32 [batch, heads_kv, n_kv, D]."""
        self._q, self._k, self._blocking = q, k, blocking
        self._group = q.shape[1] // max(1, k.shape[1])
        self._known: tuple[tuple[int, int], np.ndarray, np.ndarray] | None = None
        self.content = q, k

    def rows(self, sequence: int, head: int, first: int, last: int) -> np.ndarray:
        if self._known is None or self._known[0] != (sequence, head):
            blocks = self._blocking.of(sequence, head)
            keys = self._k[sequence, head // self._group]
            means = _means(self._q[sequence, head], blocks.q), _means(keys, blocks.k)
            self._known = (sequence, head), *means
        _, of_q, of_k = self._known
        scores: np.ndarray = of_q[first:last] @ of_k.T
        return scores


class Indexed:
    """sum over index heads of w * relu(q . k), times the factor of k."""

    cells = by_head = False

    def __init__(self, q: np.ndarray, k: np.ndarray, w: np.ndarray, factors: np.ndarray) -> None:
        """float32: q [batch, heads, n_q, D], k [batch, n_kv, D], w [batch, heads, n_q], factors
        [batch, n_kv]."""
        self._q, self._k, self._w, self._factors = q, k, w, factors
        self.batched = len(q) > 1
        self.content = q, k, w, factors

    def rows(self, sequence: int, head: int, first: int, last: int) -> np.ndarray:
        keys = self._k[sequence].T
        total = np.zeros((last - first, keys.shape[1]), np.float32)
        for q, w in zip(self._q[sequence], self._w[sequence], strict=True):
            total += w[first:last, None] * np.maximum(q[first:last] @ keys, np.float32(0))
        scores: np.ndarray = total * self._factors[sequence]
        return scores


class GivenScores:
    """A tensor of scores."""

    def __init__(self, scores: np.ndarray, cells: bool) -> None:
        """float32 [batch or 1, heads or 1, rows, columns]."""
        self._scores, self.cells = scores, cells
        self.batched, self.by_head = (size > 1 for size in scores.shape[:2])
        self.content = (scores,)

    def rows(self, sequence: int, head: int, first: int, last: int) -> np.ndarray:
        scores = self._scores[sequence if self.batched else 0]
        rows: np.ndarray = scores[head if self.by_head else 0, first:last]
        return rows


# ------------------------------------------------------------------ reading


def block_means(x: np.ndarray, block: int) -> np.ndarray:
    """Means of blocks of rows of float32 [..., rows, D]; the last block may have fewer."""
    return x if block == 1 else _means(x, np.arange(0, x.shape[-2], block))


def _means(x: np.ndarray, starts: Starts) -> np.ndarray:
    """Means of blocks of rows, float32 [..., blocks, D], that begin at `starts`."""
    if not len(starts):
        return x
    sums = np.add.reduceat(x, starts, axis=-2, dtype=np.float64)
    sizes = np.diff(starts, append=x.shape[-2])
    means: np.ndarray = (sums / sizes[:, None]).astype(np.float32)
    return means


def indexed(tensors: Mapping[str, object], batch: int, n_q: int, n_kv: int) -> Indexed:
    """The scores of an indexer.

    Args:
        tensors: index_q [batch or 1, heads, n_q, D], index_k [batch or 1, n_kv, D], or a pair of
            that and factors [batch or 1, n_kv], and index_w [batch or 1, heads, n_q], of any
            library.

    Raises:
        DataMissing, DataShape, DataType, NotAnArray.
    """
    tensors = with_factors(tensors)
    q, k = (floats(name, tensors, (*_FLOATS, E4M3)) for name in ("index_q", "index_k"))
    w = floats("index_w", tensors)
    factors = floats(FACTORS, tensors) if FACTORS in tensors else np.ones((1, n_kv), np.float32)
    heads, dim = (q.shape[1], q.shape[3]) if q.ndim == 4 else ("heads", "dim")
    _check_shape("index_q", q, batch, (heads, n_q, dim))
    _check_shape("index_k", k, batch, (n_kv, dim))
    _check_shape("index_w", w, batch, (heads, n_q))
    _check_shape(FACTORS, factors, batch, (n_kv,))
    size = max(len(x) for x in (q, k, w, factors))
    return Indexed(*(np.broadcast_to(x, (size, *x.shape[1:])) for x in (q, k, w, factors)))


def given(
    tensors: Mapping[str, object], selection: Selection, batch: int, heads: int, n_q: int, n_kv: int
) -> GivenScores:
    """Scores that the call brings.

    Args:
        tensors: `scores`, as SHAPES says, of any library.

    Raises:
        DataMissing, DataShape, DataType, NotAnArray.
    """
    scores = floats("scores", tensors)
    (q_block, block) = selection.table
    blocks = -(-n_q // q_block), -(-n_kv // block)
    leading = (1, 1, *scores.shape[:-2])[-2:]
    if (
        scores.ndim not in (2, 3, 4)
        or scores.shape[-2:] not in ((n_q, n_kv), blocks)
        or leading[0] not in (1, batch)
        or leading[1] not in (1, heads)
    ):
        ends = f"{n_q}, {n_kv}]" + (f" or [..., {blocks[0]}, {blocks[1]}]"
                                    if blocks != (n_q, n_kv) else "")  # fmt: skip
        wanted = f"[{ends}, with {heads} heads and then a batch of {batch} in front or without"
        raise DataShape("scores", scores.shape, wanted, at="scores")
    cells = scores.shape[-2:] != (n_q, n_kv)
    return GivenScores(scores.reshape(*leading, *scores.shape[-2:]), cells)


def _check_shape(name: str, array: np.ndarray, batch: int, rest: tuple[object, ...]) -> None:
    if array.shape not in ((batch, *rest), (1, *rest)):
        wanted = f"[{', '.join(map(str, (batch, *rest)))}]"
        raise DataShape(name, array.shape, wanted, at=name)


_FLOATS = ("float32", "float16", "bfloat16")


def floats(
    name: str, tensors: Mapping[str, object], dtypes: tuple[str, ...] = _FLOATS
) -> np.ndarray:
    """Read a tensor of a call as float32 of its own shape on the host, exactly.

    Raises:
        DataMissing, DataType, NotAnArray.
    """
    x = tensors.get(name)
    if x is None:
        raise DataMissing(name, SHAPES[name], at=name)
    dtype = str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")
    if dtype not in dtypes:
        raise DataType(name, dtype, " or ".join(dtypes), at=name)
    if hasattr(x, "detach") and hasattr(x, "float"):
        x = x.detach().float()  # NumPy has no bfloat16 of its own
    return np.asarray(to_host(x, name), dtype=np.float32)


def scores_of(
    selection: Selection, tensors: Mapping[str, object], q: np.ndarray, k: np.ndarray,
    arrays: Mapping[str, np.ndarray],
) -> Scores:  # fmt: skip
    """Return the ranking scores of a selection in a call.

    Args:
        tensors: the caller's, by name.
        q: float32 [batch, heads_q, n_q, D]; k: float32 [batch, heads_kv, n_kv, D].
        arrays: the data of the mask, positions among them.

    Raises:
        DataMissing, DataShape, DataType, NotAnArray.
    """
    batch, heads, n_q, _ = q.shape
    n_kv = k.shape[2]
    match selection.score:
        case Score.qk:
            return Products(q, k)
        case Score.block_mean if selection.at:
            sizes = Sizes(batch, heads, k.shape[1], n_q, n_kv)
            return Means(q, k, Blocking(selection, sizes, arrays))
        case Score.block_mean:
            means = block_means(q, selection.q_block), block_means(k, selection.block)
            return Products(*means, cells=True)
        case Score.indexer:
            return indexed(tensors, batch, n_q, n_kv)
    return given(tensors, selection, batch, heads, n_q, n_kv)
