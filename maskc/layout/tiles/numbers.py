"""Totals of the tiles of one head's forward pass: pairs, operations, bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskc.core.layout import FULL, BlockLayout


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one head and a window of queries and keys, all exact."""

    live: int
    """Live pairs."""
    pairs: int
    """All pairs."""
    tile: tuple[int, int]
    """Queries and keys of the tiles counted below."""
    full: int
    partial: int
    empty: int
    executed: int
    """Pairs inside live tiles: what runs."""
    flops: int
    """Operations of the forward pass: 2 * (head_dim + head_dim_v) * live; the backward pass takes
    2.5 times as many if both head dimensions are equal."""
    bytes: int
    """Bytes of the forward pass: q and out once, k and v of every live tile."""

    @staticmethod
    def of(layout: BlockLayout, live: int, dims: int, row_bytes: tuple[int, int]) -> Numbers:
        """The numbers of a layout.

        Args:
            live: its live pairs.
            dims: elements of a row of q and one of v together.
            row_bytes: of a token's rows of q and out, and of those of k and v.
        """
        full = int(np.count_nonzero(layout.kind == FULL))
        rows, columns = layout.shape
        of_queries, of_keys = row_bytes
        return Numbers(
            live, layout.n_q * layout.n_kv, layout.block, full, layout.nnz - full,
            rows * columns - layout.nnz, executed_pairs(layout), 2 * dims * live,
            of_queries * layout.n_q + of_keys * layout.tile.k * layout.nnz,
        )  # fmt: skip

    @property
    def live_share(self) -> float:
        """Live pairs over all pairs; 0 where there are none."""
        return self.live / max(1, self.pairs)

    @property
    def waste(self) -> float:
        """Executed pairs over live pairs; 1 is perfect."""
        return self.executed / max(1, self.live)


def executed_pairs(layout: BlockLayout) -> int:
    """Pairs inside the live tiles, lengths clipped."""
    rows, columns = layout.shape
    per_row = np.diff(layout.row_ptr).astype(np.int64)
    height = np.full(rows, layout.tile.q)
    if rows:
        height[-1] = layout.n_q - (rows - 1) * layout.tile.q
    overhang = columns * layout.tile.k - layout.n_kv
    last = np.zeros(rows, dtype=np.int64)
    if layout.nnz and overhang:
        owner = np.repeat(np.arange(rows), per_row)[layout.col == columns - 1]
        last[owner] = overhang
    return int((height * (per_row * layout.tile.k - last)).sum())
