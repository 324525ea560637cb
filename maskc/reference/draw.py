"""The draw of random_blocks in Python integers, as maskc.layout.inputs.random_draw defines it."""

from __future__ import annotations

_WORD = 1 << 64


def step(x: int) -> int:
    """The output of one step of SplitMix64 from state x."""
    z = (x + 0x9E3779B97F4A7C15) % _WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _WORD
    return z ^ (z >> 31)


def splitmix64(seed: int, row: int, column: int) -> int:
    """The hash of block (row, column); a negative row counts modulo 2^64."""
    return step((step((step(seed % _WORD) + row) % _WORD) + column) % _WORD)


def drawn_columns(seed: int, row: int, columns: int, per_row: int) -> list[int]:
    """R(row): the `per_row` of 0..columns-1 with the least hashes, ties by index, ascending."""
    order = sorted(range(columns), key=lambda column: (splitmix64(seed, row, column), column))
    return sorted(order[:per_row])
