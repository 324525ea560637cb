"""Single keys chosen for heads together: what gathers them, and the arguments of its lists.

A tile's rows are then the query heads of one query that share its keys, and its columns these keys,
wherever they lie: a list per query tells which.
"""

from __future__ import annotations

from dataclasses import dataclass

SLAB_BYTES = 128
"""Of a row, that a step of products reads."""


@dataclass(frozen=True, slots=True)
class Indexing:
    """A way to compute an indexer's scores, by the dtype of its queries and keys."""

    mode: str
    """Of the source that makes lists."""
    dim: int
    """Elements of a row, at most."""
    in_e4m3: bool = False
    """Whether elements are E4M3, and not of the dtype of q."""

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 1 if self.in_e4m3 else 2

    @property
    def slabs(self) -> int:
        """Of a row."""
        return self.dim * self.itemsize // SLAB_BYTES

    @property
    def macro(self) -> str:
        """By which the source knows the mode."""
        return f"INDEXED_{'E4M3_' if self.in_e4m3 else ''}{self.dim}"


INDEXINGS = (
    Indexing("indexed_64", 64),
    Indexing("usual", 128),
    Indexing("indexed_256", 256),
    Indexing("indexed_e4m3_128", 128, in_e4m3=True),
    Indexing("indexed_e4m3_256", 256, in_e4m3=True),
)
"""For each dtype by ascending dimension."""

ROWS, WIDE_ROWS = 64, 128
"""Heads of a tile."""
KEYS = 64
"""Of a tile."""
SCORE_QUERIES = 64
"""For which a block computes an indexer's scores."""
MOST_HEADS = 1024
"""Of an indexer."""
SCORE_BYTES = 1 << 27
"""Of scores that are kept at a time; of longer rows one."""
