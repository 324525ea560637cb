"""The draw behind random_blocks: the same everywhere, for ever.

All arithmetic is on unsigned 64-bit integers, modulo 2^64. One step of SplitMix64 (Steele, Lea and
Flood, 2014) from state x is

    step(x):  z = x + 0x9E3779B97F4A7C15
              z = (z xor (z >> 30)) * 0xBF58476D1CE4E5B9
              z = (z xor (z >> 27)) * 0x94D049BB133111EB
              step = z xor (z >> 31)

and the hash of a block is

    splitmix64(seed, I, J) = step(step(step(seed) + I) + J)

with a negative I taken modulo 2^64 (two's complement). For check: step(0) = 0xE220A8397B1DCDAF.
R(I) holds the `per_row` block columns J of least splitmix64(seed, I, J), ties by J; all columns
when there are no more than `per_row`.

Row I = p // block belongs to positions p = q + offset, and with more queries than keys it may be
negative. A table holds the rows first_row, first_row + 1, ... that queries 0..n_q-1 reach, so the
formula that reads it is `table[(q + offset) // block - offset // block, k // block]`.
"""

from __future__ import annotations

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_CHUNK = 1 << 20


def step(state: np.ndarray) -> np.ndarray:
    """Advance SplitMix64 by one step from each state: uint64, of the shape of `state`."""
    with np.errstate(over="ignore"):
        z = state + _GAMMA
        z = (z ^ (z >> np.uint64(30))) * _FACTORS[0]
        z = (z ^ (z >> np.uint64(27))) * _FACTORS[1]
    return z ^ (z >> np.uint64(31))


def splitmix64(seed: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Hash blocks (I, J).

    Args:
        rows, columns: int64 arrays whose shapes broadcast.

    Returns:
        uint64, of the broadcast shape.
    """
    start = step(np.array(seed % 2**64, dtype=np.uint64))
    with np.errstate(over="ignore"):
        inner = step(start + np.asarray(rows, dtype=np.int64).astype(np.uint64))
        return step(inner + np.asarray(columns, dtype=np.int64).astype(np.uint64))


def first_row(offset: int, block: int) -> int:
    """The block row of query 0, whose position is `offset`: row 0 of a stored table."""
    return offset // block


def table_rows(n_q: int, offset: int, block: int) -> int:
    """Return the number of block rows that positions offset .. offset + n_q - 1 reach."""
    return (offset + n_q - 1) // block - first_row(offset, block) + 1 if n_q else 0


def draw(seed: int, per_row: int, first: int, rows: int, columns: int) -> np.ndarray:
    """int32 [rows, columns] of 0 and 1: row r marks the columns of R(first + r)."""
    chosen = np.zeros((rows, columns), dtype=np.int32)
    if per_row >= columns:
        chosen[...] = 1
        return chosen
    stripe = max(1, _CHUNK // max(1, columns))
    for top in range(0, rows if per_row else 0, stripe):
        block_rows = np.arange(top, min(top + stripe, rows))[:, None]
        hashes = splitmix64(seed, block_rows + first, np.arange(columns))
        bound = np.partition(hashes, per_row - 1, axis=1)[:, per_row - 1 : per_row]
        below, ties = hashes < bound, hashes == bound
        room = per_row - below.sum(axis=1, keepdims=True)
        chosen[top : top + stripe] = below | (ties & (ties.cumsum(axis=1) <= room))
    return chosen
