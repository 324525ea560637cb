"""Boolean matrices as 64 x 64 tiles; equal partial tiles are stored once.

Two arrays represent the matrix. One holds the tile number at each place, where 0 is the empty tile
and 1 the full one. The other holds the bits of each distinct tile.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr

TILE = 64


def tiles_of(rows: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of tiles [sequences, heads, rows, columns], and the tiles [numbers, 64, 64].

    Entries beyond the matrix do not count: the last tile of a row is full if all of its pairs
    inside the matrix are kept.

    Args:
        rows: the matrix in stretches of queries, booleans [sequences, heads, queries, n_kv]; all
            except the last have a multiple of 64 queries.
    """
    kinds: list[np.ndarray] = []
    bits: list[np.ndarray] = []
    count = 0
    for part in rows:
        of_part, distinct = _of_rows(part)
        kinds.append(np.where(of_part < 2, of_part, of_part + count))
        bits.append(distinct)
        count += len(distinct)
    packed, which = np.unique(np.concatenate(bits), axis=0, return_inverse=True)
    numbers = np.concatenate([[0, 1], 2 + which.reshape(-1)])
    constant = np.stack([np.zeros((TILE, TILE), bool), np.ones((TILE, TILE), bool)])
    partial = np.unpackbits(packed, axis=1).reshape(-1, TILE, TILE).astype(bool)
    return numbers[np.concatenate(kinds, axis=2)], np.concatenate([constant, partial])


def _of_rows(given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the tiles of one stretch, and the bits of those from number 2 on."""
    *front, n_q, n_kv = given.shape
    rows, columns = -(-n_q // TILE), -(-n_kv // TILE)
    more = ((0, 0), (0, 0), (0, rows * TILE - n_q), (0, columns * TILE - n_kv))
    cut = np.pad(given, more).reshape(*front, rows, TILE, columns, TILE).swapaxes(-3, -2)
    real = np.pad(np.ones((1, 1, n_q, n_kv), bool), more)
    real = real.reshape(1, 1, rows, TILE, columns, TILE).swapaxes(-3, -2)
    some, full = cut.any((-2, -1)), (cut == real).all((-2, -1))
    kinds = np.where(full, 1, np.where(some, 2, 0))
    bits = np.packbits(cut[kinds == 2].reshape(-1, TILE * TILE), axis=1)
    distinct, which = np.unique(bits, axis=0, return_inverse=True)
    kinds[kinds == 2] = 2 + which.reshape(-1)
    return kinds, distinct


def kept_by_tiles(kinds: str, bits: str) -> Expr:
    """Return the formula that reads a pair's bit from two named arrays: tile numbers and tile
    rows."""
    q, k = (E.floordiv(x, TILE) for x in (E.Q, E.K))
    number = E.Load(kinds, (q, k))
    row = E.add(E.scale(TILE, number), E.mod(E.Q, TILE))
    pair = E.ne(E.Load(bits, (row, E.mod(E.K, TILE))), E.ZERO)
    some = E.ge(number, E.const(1))
    return E.conj(some, E.disj(E.eq(number, E.const(1)), pair))
