"""Blocks of queries and of keys among which a run-time selection chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core.errors import DataShape
from maskc.core.leading import leading
from maskc.core.selection import Selection, Share
from maskc.core.sizes import Sizes

Starts = np.ndarray
"""int64 [blocks]: the first token of each block."""


def starts_of(positions: np.ndarray | None, block: int, tokens: int) -> Starts:
    """Return where blocks begin.

    Args:
        positions: int32 [tokens]; None if blocks count from the first token.
        block: the most tokens of a block.
    """
    if positions is None or not tokens:
        return np.arange(0, tokens, block)
    number = positions // block
    begins = (number[1:] != number[:-1]) | (positions[1:] <= positions[:-1])
    return np.concatenate([[0], np.flatnonzero(begins) + 1])


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of one sequence and head."""

    q: Starts
    k: Starts
    sizes: Sizes

    def queries(self, span: slice) -> tuple[int, int]:
        """The first query of some blocks, and the one past the last."""
        first, stop = (
            int(self.q[at]) if at < len(self.q) else self.sizes.n_q
            for at in (span.start, span.stop)
        )
        return first, stop

    def keys_of(self, chosen: np.ndarray, span: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the chosen pairs, (queries, keys) in order.

        Args:
            chosen: int32 [blocks of queries, at most k]: numbers of blocks of keys; any number
                that is no block stands for none.
            span: the blocks of queries.
        """
        blocks, count = len(self.k), np.diff(self.k, append=self.sizes.n_kv)
        table = np.zeros((len(chosen), blocks + 1), bool)
        np.put_along_axis(table, np.minimum(chosen, blocks).astype(np.int64), True, axis=1)
        first, stop = self.queries(span)
        of_row = np.diff(self.q[span], append=stop)
        pairs = np.repeat(np.repeat(table[:, :blocks], count, axis=1), of_row, axis=0)
        query, key = np.nonzero(pairs)
        return query + first, key


class Blocking:
    """The blocks of every sequence and head of a call."""

    def __init__(
        self, selection: Selection, sizes: Sizes, arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Look at the positions from which blocks count.

        Args:
            arrays: the data of the mask, by name.

        Raises:
            DataShape: heads that choose together have positions of their own (MC303).
        """
        self._selection, self._sizes = selection, sizes
        self._positions = [arrays[name] for name in selection.at]
        fronts = [leading(positions.shape, 1) for positions in self._positions]
        self.batched = any(sequences > 1 for sequences, _ in fronts)
        """Whether sequences differ."""
        self.by_head = any(heads > 1 for _, heads in fronts)
        """Whether heads differ."""
        if self.by_head and selection.share is not Share.head:
            name = next(n for n, front in zip(selection.at, fronts, strict=True) if front[1] > 1)
            wanted = "one row for all heads, as these choose together"
            raise DataShape(name, arrays[name].shape, wanted, at=name)
        self._known: dict[tuple[int, int], Blocks] = {}

    def of(self, sequence: int, head: int) -> Blocks:
        """The blocks of one sequence and head."""
        key = sequence if self.batched else 0, head if self.by_head else 0
        if key not in self._known:
            one, sizes = self._selection, self._sizes
            of_q, of_k = self._own(*key)
            q = starts_of(of_q, one.q_block, sizes.n_q)
            self._known[key] = Blocks(q, starts_of(of_k, one.block, sizes.n_kv), sizes)
        return self._known[key]

    def _own(self, sequence: int, head: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The positions of queries and of keys of one sequence and head, [tokens]."""
        if not self._positions:
            return None, None
        of_q, of_k = self._positions
        for index in (sequence, head):
            of_q, of_k = (x[index if len(x) > 1 else 0] if x.ndim > 1 else x for x in (of_q, of_k))
        return of_q, of_k
