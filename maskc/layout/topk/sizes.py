"""Numbers that the source which chooses blocks on the device and its launches agree on."""

from __future__ import annotations

FORM = "selections"
"""The form of the source that chooses blocks on the device."""
THREADS = 128
"""Threads of a block."""
ROWS = 16
"""Blocks of queries that a block of threads ranks for, at most: four for every warp."""
FEW_ROWS = 4
"""Rows of a thread block, one per warp, if there are too many blocks of keys for more rows, or too
few thread blocks."""
MANY_BLOCKS = 512
"""Blocks of threads below which each ranks for FEW_ROWS, so that all of a card has work."""
COLUMNS = 32
"""Blocks of keys that are scored at a time: a word of bits."""
ITEMS = 512
"""Items of the work list that a block writes, at most."""
CLASS_TOKENS = 128
"""Queries, and keys, that share one class of the static mask; one block if it has more."""


def scores_shared(head_dim: int) -> int:
    """Bytes of shared memory for the operands, which are rows of fp32."""
    return 4 * (ROWS * head_dim + COLUMNS * (head_dim + 4))


def shared_bytes(head_dim: int, turn: int, columns: int) -> int:
    """Bytes of shared memory of a block of threads.

    It ranks `columns` blocks of keys for `turn` blocks of queries.
    """
    return scores_shared(head_dim) + 4 * turn * COLUMNS * -(-columns // COLUMNS)


def turn_of(head_dim: int, columns: int, most_shared: int) -> int:
    """Return the number of query blocks that a thread block with this shared memory ranks.

    The result is 0 if there are too many blocks of keys.
    """
    fit = (n for n in (ROWS, FEW_ROWS) if shared_bytes(head_dim, n, columns) <= most_shared)
    return next(fit, 0)


def class_shape(q_block: int, block: int) -> tuple[int, int]:
    """The cells, down and across, whose class is one number."""
    return max(1, CLASS_TOKENS // q_block), max(1, CLASS_TOKENS // block)
