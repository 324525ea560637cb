"""A mask laid out in tiles: block-sparse rows (CSR) or columns (CSC)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskc.core.problem import TileShape

PARTIAL, FULL = 1, 2
"""Values of `kind`: some pairs live; every pair inside the lengths live."""

MAX_LENGTH = 1 << 30
"""The most queries, and the most keys."""
_MAX_DRAWN = 4096
"""Tile rows or columns of a layout that a notebook draws."""
MAX_TILES = 1 << 30
"""The most live tiles: lists are indexed with 32 bits."""


@dataclass(frozen=True, eq=False, repr=False)
class BlockLayout:
    """The live tiles of a mask at given lengths, in CSR form; `Mask.layout` returns one.

    A tile that extends past the lengths is full if all of its pairs inside the lengths are live.
    The arrays are read-only.
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

    def __setstate__(self, state: dict[str, object]) -> None:
        """A copy is read-only too."""
        self.__dict__.update(state)
        for array in (self.row_ptr, self.col, self.kind):
            frozen(array)

    def __repr__(self) -> str:
        """Lengths, tiles and counts."""
        return "BlockLayout(" + ", ".join(self._facts()) + ")"

    def _repr_html_(self) -> str:
        from maskc.core.svg import page, panel, shrunk

        if max(self.shape) > _MAX_DRAWN:  # a matrix of so many tiles would be too large
            return page(repr(self), [], [])
        picture = panel(*shrunk(self.to_dense()), max(self.n_q, 1) / max(self.n_kv, 1))
        return page(repr(self), [], [("", picture)])

    def _facts(self) -> list[str]:
        rows, columns = self.shape
        full = int(np.count_nonzero(self.kind == FULL))
        order = ["by columns"] if self.transposed else []
        return [
            f"{self.n_q} x {self.n_kv}", f"tiles of {self.tile.q} x {self.tile.k}", f"{full} full",
            f"{self.nnz - full} partial", f"{rows * columns - self.nnz} empty", *order,
        ]  # fmt: skip

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
        """The number of live tiles."""
        return len(self.col)

    def transpose(self) -> BlockLayout:
        """Return the same tiles by columns (CSC).

        Returns:
            A layout in which row_ptr counts tile columns and col holds tile rows. Transposing twice
            gives the original back.
        """
        rows, columns = self.shape
        minor = rows if self.transposed else columns
        lists = _transposed(self.row_ptr, self.col, self.kind, minor)
        row_ptr, col, kind = map(frozen, lists)
        return BlockLayout(
            self.n_q, self.n_kv, self.tile, row_ptr, col, kind, transposed=not self.transposed
        )

    def to_dense(self) -> np.ndarray:
        """The kinds of all tiles as a matrix.

        Returns:
            uint8 [tile rows, tile columns] of 0 (empty), 1 (partial) and 2 (full).
        """
        rows, columns = self.shape
        major, minor = (columns, rows) if self.transposed else (rows, columns)
        dense = np.zeros((major, minor), dtype=np.uint8)
        owner = np.repeat(np.arange(major), np.diff(self.row_ptr))
        dense[owner, self.col] = self.kind
        return dense.T if self.transposed else dense


def frozen(array: np.ndarray) -> np.ndarray:
    """Make an array of any shape and dtype read-only and return it."""
    array.flags.writeable = False
    return array


Lists = tuple[np.ndarray, np.ndarray, np.ndarray]
"""row_ptr, col, kind."""


def _transposed(ptr: np.ndarray, col: np.ndarray, kind: np.ndarray, minor: int) -> Lists:
    """Transpose by a radix sort of the columns, 16 bits at a time.

    NumPy's stable sort of short integers is a counting sort.
    """
    order = np.argsort((col & 0xFFFF).astype(np.uint16), kind="stable")
    if minor > 1 << 16:
        order = order[np.argsort((col >> 16).astype(np.uint16)[order], kind="stable")]
    owner = np.repeat(np.arange(len(ptr) - 1, dtype=np.int32), np.diff(ptr))
    out_ptr = np.zeros(minor + 1, dtype=np.int32)
    out_ptr[1:] = np.cumsum(np.bincount(col, minlength=minor))
    return out_ptr, owner[order], kind[order]
