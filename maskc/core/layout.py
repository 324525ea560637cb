"""A mask laid out in tiles: block-sparse rows (CSR) or columns (CSC)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskc.core.problem import TileShape

PARTIAL, FULL = 1, 2
"""Values of `kind`: some pairs live; every pair inside the lengths live."""


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """The live tiles of a mask at given lengths, row by row.

    A tile that reaches past the lengths is full when all of its real pairs are live.
    """

    n_q: int
    """Queries."""
    n_kv: int
    """Keys."""
    tile: TileShape
    """Queries and keys per tile."""
    row_ptr: np.ndarray
    """int32 [rows + 1]: tiles of tile row i are entries row_ptr[i] .. row_ptr[i + 1] - 1."""
    col: np.ndarray
    """int32 [nnz]: tile column of each live tile, ascending inside a row."""
    kind: np.ndarray
    """uint8 [nnz]: 1 partial, 2 full."""
    transposed: bool = False
    """True for CSC: "rows" are then tile columns, and `col` holds tile rows."""

    @property
    def block(self) -> tuple[int, int]:
        """(queries, keys) per tile."""
        return self.tile.q, self.tile.k

    @property
    def shape(self) -> tuple[int, int]:
        """(tile rows, tile columns) of the mask, whichever way it is stored."""
        return -(-self.n_q // self.tile.q), -(-self.n_kv // self.tile.k)

    @property
    def nnz(self) -> int:
        """Live tiles."""
        return len(self.col)

    def transpose(self) -> BlockLayout:
        """The same tiles by columns (CSC); transposing twice gives the original back."""
        rows, columns = self.shape
        major, minor = (columns, rows) if self.transposed else (rows, columns)
        owner = np.repeat(np.arange(major, dtype=np.int32), np.diff(self.row_ptr))
        order = np.argsort(self.col, kind="stable")
        ptr = np.zeros(minor + 1, dtype=np.int32)
        np.cumsum(np.bincount(self.col, minlength=minor), out=ptr[1:])
        return BlockLayout(
            self.n_q, self.n_kv, self.tile, *map(frozen, (ptr, owner[order], self.kind[order])),
            transposed=not self.transposed,
        )  # fmt: skip

    def to_dense(self) -> np.ndarray:
        """uint8 [tile rows, tile columns] of 0 (empty), 1 (partial), 2 (full)."""
        rows, columns = self.shape
        major, minor = (columns, rows) if self.transposed else (rows, columns)
        dense = np.zeros((major, minor), dtype=np.uint8)
        owner = np.repeat(np.arange(major), np.diff(self.row_ptr))
        dense[owner, self.col] = self.kind
        return dense.T if self.transposed else dense


def frozen(array: np.ndarray) -> np.ndarray:
    """The array itself, read-only from now on."""
    array.flags.writeable = False
    return array
