"""Layouts of several sequences and masks, packed as the kernels read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.errors import TooManyTiles
from maskc.core.layout import FULL, MAX_TILES, BlockLayout
from maskc.core.leading import leading
from maskc.layout.tiles.chosen_blocks import Chosen


def extents(recipe: LayoutRecipe, arrays: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Numbers of sequences and heads with arrays of their own; 1 if all share them."""
    batch = heads = 1
    for name, rank in _ranks(recipe).items():
        sequences, own_heads = leading(arrays[name].shape, rank)
        batch, heads = max(batch, sequences), max(heads, own_heads)
    return batch, heads


def sequence_arrays(
    recipe: LayoutRecipe, arrays: Mapping[str, np.ndarray], batch: int, head: int
) -> dict[str, np.ndarray]:
    """Take the arrays of one sequence and head, int32 of the ranks that `build` reads.

    Args:
        arrays: by name, with any leading batch and heads.
    """
    of_sequence: dict[str, Any] = {}
    for name, rank in _ranks(recipe).items():
        array: Any = arrays[name]
        extents = leading(array.shape, rank)
        place = [at if size > 1 else 0 for at, size in zip((batch, head), extents, strict=True)]
        front = array.ndim - rank
        for index in place if front == 2 else (place[rank > 1],)[:front]:
            array = array.part(index) if isinstance(array, Chosen) else array[index]
        of_sequence[name] = array
    return of_sequence


def _ranks(recipe: LayoutRecipe) -> dict[str, int]:
    return {load.array: len(load.index) for load in E.loads(recipe.keep)}


def kernel_lists(layouts: Sequence[BlockLayout]) -> tuple[np.ndarray, np.ndarray]:
    """Several layouts of one shape as `row_ptr` and `row_tiles` of the argument block.

    Transposed layouts give `col_ptr` and `col_tiles`.

    Returns:
        (int32 [lists, rows + 1] offsets into all entries, int32 [entries] index * 2 + full).

    Raises:
        TooManyTiles: more than 2^30 entries in all.
    """
    sizes = [layout.nnz for layout in layouts]
    if sum(sizes) > MAX_TILES:
        raise TooManyTiles(sum(sizes))
    ptr = np.stack([layout.row_ptr for layout in layouts])
    ends = np.cumsum(sizes)
    ptr += (ends - sizes).astype(np.int32)[:, None]
    entries = np.empty(ends[-1], dtype=np.int32)
    for layout, end in zip(layouts, ends, strict=True):
        packed = entries[end - layout.nnz : end]
        np.left_shift(layout.col, 1, out=packed)
        packed += layout.kind == FULL
    return ptr, entries
