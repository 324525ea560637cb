"""Tiles of a mask with run-time selections, before anything is selected.

Each of `m` selections may select a pair or not, which gives 2^m combinations: in combination `w`,
selection `i` has selected it if bit `i` of `w` is set. In each combination the mask is static, so a
tile is laid out once per combination. Its code tells in which ones some pairs are live (bits 0 to
7) and in which all are (bits 8 to 15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.expr import Expr
from maskc.core.layout import FULL, BlockLayout
from maskc.core.problem import TileShape
from maskc.core.selection import Selection
from maskc.layout.tiles.build import build
from maskc.layout.topk.sizes import class_shape

_FULL = 8
"""The first of the bits for "all pairs are live"."""


def in_way(keep: Expr, selections: tuple[Selection, ...], way: int) -> Expr:
    """Return the static mask for one combination: each selection has chosen all pairs, or none."""
    number = {selection.name: i for i, selection in enumerate(selections)}

    def known(node: Expr) -> Expr | None:
        if isinstance(node, E.Load) and node.array in number:
            return E.const(way >> number[node.array] & 1)
        return None

    return E.transform(keep, known)


def classes_of(layout: BlockLayout) -> np.ndarray:
    """int32 [rows, columns]: 0 for dead tiles, 1 where some pairs are live, 2 where all are."""
    classes = np.zeros(layout.shape, np.int32)
    row = np.repeat(np.arange(layout.shape[0]), np.diff(layout.row_ptr))
    classes[row, layout.col] = 1 + (layout.kind == FULL)
    return classes


def tile_codes(
    keep: Expr, selections: tuple[Selection, ...], tile: TileShape, n_q: int, n_kv: int,
    params: Mapping[str, int],
) -> np.ndarray:  # fmt: skip
    """int32 [tile rows, tile columns]: the code of every tile.

    Args:
        keep: the mask over q, k, lengths, parameters and the selections.
        params: a value for every parameter.
    """
    codes = np.zeros((-(-n_q // tile.q), -(-n_kv // tile.k)), np.int32)
    for way in range(1 << len(selections)):
        recipe = LayoutRecipe(tile, in_way(keep, selections, way), None)
        tile_classes = classes_of(build(recipe, n_q, n_kv, params, {}))
        codes |= (tile_classes > 0).astype(np.int32) << way | (tile_classes > 1).astype(
            np.int32
        ) << (_FULL + way)
    return codes


def allowed_classes(
    selection: Selection, n_q: int, n_kv: int, params: Mapping[str, int]
) -> np.ndarray:
    """int32 [rows, columns]: whether pairs may be chosen, as `classes_of`, by tiles of several
    blocks of queries x several of keys; see `class_shape`."""
    down, across = class_shape(selection.q_block, selection.block)
    tile = TileShape(down * selection.q_block, across * selection.block)
    return classes_of(build(LayoutRecipe(tile, selection.allowed[0], None), n_q, n_kv, params, {}))


@dataclass(frozen=True, eq=False)
class Hull:
    """The most tiles that lists may have."""

    rows: np.ndarray
    """int64 [lists, tile rows]."""
    columns: np.ndarray
    """int64 [lists, tile columns]."""

    @property
    def room(self) -> int:
        """Tiles of the longest list."""
        return int(self.rows.sum(axis=1).max(initial=0))


def hull_of(codes: np.ndarray, selections: tuple[Selection, ...], tile: TileShape) -> Hull:
    """Bound what any selection makes live, from codes [lists, tile rows, tile columns].

    A tile row has at most the tiles that are live in some combination. It also has at most the
    tiles that are live with nothing chosen, plus the tiles that its chosen blocks can touch.
    """
    some, always = (codes & 0xFF) > 0, (codes & 1) > 0
    reached = sum(
        selection.k * (tile.q // selection.q_block + 2) * ((selection.block - 1) // tile.k + 2)
        for selection in selections
    )
    rows = np.minimum(some.sum(axis=2), always.sum(axis=2) + reached)
    return Hull(rows.astype(np.int64), some.sum(axis=1).astype(np.int64))
