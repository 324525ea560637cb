"""Single keys that heads choose together: ways to score them, and sizes of their lists.

The rows of a tile are the query heads of one query that share its keys. Its columns are these keys,
from a list per query.
"""

from __future__ import annotations

from dataclasses import dataclass

SLAB_BYTES = 128
"""The bytes of a row that one step of products reads."""


@dataclass(frozen=True, slots=True)
class Indexing:
    """A way to compute an indexer's scores, by the dtype of its queries and keys."""

    mode: str
    """The mode of the source that makes lists."""
    dim: int
    """The most elements of a row."""
    in_e4m3: bool = False
    """Whether elements are E4M3, and not of the dtype of q."""

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return 1 if self.in_e4m3 else 2

    @property
    def slabs(self) -> int:
        """The slabs of a row."""
        return self.dim * self.itemsize // SLAB_BYTES

    @property
    def macro(self) -> str:
        """The macro by which the source knows the mode."""
        return f"INDEXED_{'E4M3_' if self.in_e4m3 else ''}{self.dim}"


INDEXINGS = (
    Indexing("indexed_64", 64),
    Indexing("default", 128),
    Indexing("indexed_256", 256),
    Indexing("indexed_e4m3_128", 128, in_e4m3=True),
    Indexing("indexed_e4m3_256", 256, in_e4m3=True),
)
"""The modes for each dtype, by ascending dimension."""

ROWS, WIDE_ROWS = 64, 128
"""Heads of a tile."""
KEYS = 64
"""Keys of a tile."""
SCORE_QUERIES = 64
"""The queries for which a block computes an indexer's scores."""
MAX_HEADS = 1024
"""The most heads of an indexer."""
SCORE_BYTES = 1 << 27
"""The bytes of scores that are kept at a time; of longer rows, one row."""
