"""Dimensions of sequences and of heads in front of the arrays that formulas read.

A vector is [N], [sequences, N] or [sequences, heads, N]. A table is [rows, cols], [heads, rows,
cols] or [sequences, heads, rows, cols].
"""

from __future__ import annotations

from collections.abc import Sequence


def pair_of(front: Sequence[int], rank: int, missing: int) -> tuple[int, int]:
    """Return the sizes (or strides) of (sequences, heads) from the leading dimensions.

    Args:
        front: a size or a stride for each of the dimensions in front, at most two.
        rank: indices that a formula gives.
        missing: the number for a dimension that is not there.
    """
    if len(front) > 1:
        return front[0], front[1]
    if not front:
        return missing, missing
    return (front[0], missing) if rank == 1 else (missing, front[0])


def leading(shape: Sequence[int], rank: int) -> tuple[int, int]:
    """Return the sizes of the dimensions of sequences and heads, 1 if there is none."""
    return pair_of(shape[: len(shape) - rank], rank, 1)
