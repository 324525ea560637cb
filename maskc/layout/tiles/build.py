"""A recipe, lengths, parameters and data become the live tiles, exact to the tile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.errors import BadBlock, DataMissing, DataRange, DataShape
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import BlockLayout
from maskc.core.problem import TileShape
from maskc.core.widths import INT32, SAFE
from maskc.layout.inputs.call_data import check_lengths
from maskc.layout.tiles import matching
from maskc.layout.tiles import row_sweep as rows
from maskc.layout.tiles import toeplitz as diagonals
from maskc.layout.tiles.bounds import Analyst, whole_box
from maskc.layout.tiles.elements import Elements, magnitude
from maskc.layout.tiles.expand import RowLists, layout_of
from maskc.layout.tiles.loops import loop_rows
from maskc.layout.tiles.refine import UndecidedTiles, count_pairs, refined_rows

Arrays = Mapping[str, np.ndarray]

_LARGEST_BLOCK = 1 << 16

_PATIENCE = 1 << 10
"""Tiles whose pairs are looked at, besides two for every tile row and column, before another way to
a layout is tried."""


def tile_shape(block: object) -> TileShape:
    """The tile for `block=(queries, keys)`.

    Raises:
        BadBlock: not two integers in 1..65536.
    """
    sides = tuple(block) if isinstance(block, (tuple, list)) else ()
    if len(sides) != 2 or not all(
        isinstance(side, (int, np.integer))
        and not isinstance(side, bool)
        and 1 <= side <= _LARGEST_BLOCK
        for side in sides
    ):
        raise BadBlock(repr(block), at="block")
    return TileShape(int(sides[0]), int(sides[1]))


def build(
    recipe: LayoutRecipe, n_q: int, n_kv: int, params: Mapping[str, int], arrays: Arrays,
    exact: bool = True,
) -> BlockLayout:  # fmt: skip
    """The live tiles of one sequence and head.

    The first way that applies: the recipe's closed forms; a table over k - q; bounds of the
    formula on boxes of tiles, and the formula itself where bounds do not decide. Where they decide
    little: where the live stretches of every row begin and end, or which blocks hold which ids.

    Args:
        recipe: the mask and its tile.
        n_q, n_kv: lengths, 0 to 2^30.
        params: values of parameters; others keep their defaults.
        arrays: int32, one sequence's and one head's: vectors [N], tables [rows, cols].
        exact: whether the formula is evaluated where bounds do not decide; else such tiles are
            partial, which is right for a kernel and much faster for data that change all the time.

    Raises:
        BadLength, BadBlock, TooManyTiles: sizes out of range.
        DataMissing, DataShape, DataRange: the formula reads what the arrays do not hold.
    """
    n_q, n_kv = check_lengths(n_q, n_kv)
    tile = tile_shape((recipe.tile.q, recipe.tile.k))
    grid = -(-n_q // tile.q), -(-n_kv // tile.k)
    if 0 in grid:
        nothing = np.zeros(grid[0], np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8)
        return layout_of(n_q, n_kv, tile, [RowLists(*nothing)])
    values = values_of(recipe, n_q, n_kv, params)
    if loops_hold(recipe, values):
        return layout_of(n_q, n_kv, tile, [loop_rows(recipe.loops or (), values, *grid)])
    keep = E.with_values(recipe.keep, values)
    check_loads(keep, n_q, n_kv, arrays)
    check_width(keep, n_q, n_kv, arrays)
    formula = diagonals.of_difference(keep) if n_q + n_kv <= diagonals.MAX_TABLE else None
    if formula is not None:
        live = diagonals.live_differences(formula, arrays, n_q, n_kv)
        parts = [diagonals.difference_rows(live, n_q, n_kv, tile)]
    else:
        mask = Elements(keep, arrays, n_q, n_kv)
        find = _exact_rows if exact else partial(refined_rows, exact=False)
        parts = find(mask, n_q, n_kv, tile)
    return layout_of(n_q, n_kv, tile, parts)


def _exact_rows(mask: Elements, n_q: int, n_kv: int, tile: TileShape) -> list[RowLists]:
    """Tile rows by bounds where those leave few tiles undecided; else from stretches of keys, or
    from all tiles at once; by bounds and pairs, however many, for other masks."""
    most = _PATIENCE + 2 * sum(-(-n // side) for n, side in ((n_q, tile.q), (n_kv, tile.k)))
    scattered = matching.scattered(mask, n_q, n_kv, tile)
    if not scattered:
        try:
            return refined_rows(mask, n_q, n_kv, tile, most=most)
        except UndecidedTiles:
            pass
    tile_rows = rows.tile_rows(mask.keep, mask.arrays, n_q, n_kv, tile)
    if tile_rows is None and scattered:
        tile_rows = matching.tile_rows(mask, n_q, n_kv, tile)
    return refined_rows(mask, n_q, n_kv, tile) if tile_rows is None else tile_rows


def count(
    recipe: LayoutRecipe, n_q: int, n_kv: int, params: Mapping[str, int], arrays: Arrays
) -> int:
    """Count the live pairs of one sequence and head exactly, without anything of size n_q * n_kv.

    Arguments and errors are those of `build`; the recipe's tile and loops do not matter.
    """
    n_q, n_kv = check_lengths(n_q, n_kv)
    if not n_q or not n_kv:
        return 0
    keep = E.with_values(recipe.keep, values_of(recipe, n_q, n_kv, params))
    check_loads(keep, n_q, n_kv, arrays)
    check_width(keep, n_q, n_kv, arrays)
    formula = diagonals.of_difference(keep) if n_q + n_kv <= diagonals.MAX_TABLE else None
    if formula is not None:
        live = diagonals.live_differences(formula, arrays, n_q, n_kv)
        return diagonals.count_differences(live, n_q, n_kv)
    pairs = rows.count_pairs(keep, arrays, n_q, n_kv)
    if pairs is not None:
        return pairs
    mask = Elements(keep, arrays, n_q, n_kv)
    pairs = matching.count_pairs(mask, n_q, n_kv)
    return count_pairs(mask, n_q, n_kv) if pairs is None else pairs


def loops_hold(recipe: LayoutRecipe, values: Mapping[str, int]) -> bool:
    """Whether the recipe's closed forms speak of these lengths and parameters."""
    fits = not recipe.square or values["n_q"] == values["n_kv"]
    same = all(values[name] == value for name, value in recipe.fixed)
    return recipe.loops is not None and fits and same


def values_of(
    recipe: LayoutRecipe, n_q: int, n_kv: int, params: Mapping[str, int]
) -> dict[str, int]:
    """Numbers for everything but q, k and ti."""
    return {**E.params(recipe.keep), **params, "n_q": n_q, "n_kv": n_kv}


# ------------------------------------------------------------------ reads


def check_loads(keep: Expr, n_q: int, n_kv: int, arrays: Arrays) -> None:
    """Raise an error if a formula may read beyond its arrays, because a kernel evaluates every
    term.

    Args:
        keep: the mask over q, k and arrays; lengths and parameters are numbers by now.
        n_q, n_kv: lengths, at least 1.
        arrays: one sequence's and one head's.

    Raises:
        DataMissing, DataShape: an array is absent, or has another rank than its index.
        DataRange: an index may lie outside.
    """
    domain = whole_box(n_q, n_kv)
    analyst = Analyst(arrays)
    for load in E.loads(keep):
        if load.array not in arrays:
            raise DataMissing(load.array, f"an array of {len(load.index)} dimensions")
        shape = arrays[load.array].shape
        if len(shape) != len(load.index):
            wanted = f"{len(load.index)} dimensions: those of one sequence and one head"
            raise DataShape(load.array, shape, wanted, at=load.array)
        for axis, (index, size) in enumerate(zip(load.index, shape, strict=True)):
            low, high = (int(end) for end in analyst.bounds(index, domain))
            if low < 0 or high >= size:
                low, high = _exact_bounds(index, n_q, n_kv, arrays) or (low, high)
            if low < 0 or high >= size:
                finding = f"dimension {axis} is read at {low}..{high}, it has {size} entries"
                hint = "give a longer array, or clamp the index with min() and max()"
                raise DataRange(load.array, finding, hint, at=load.array)


def check_width(keep: Expr, n_q: int, n_kv: int, arrays: Arrays) -> None:
    """Raise an error if a value may exceed 64 bits; arguments as above.

    Raises:
        DataRange: the message has the largest possible magnitude.
    """
    any_array = dict.fromkeys(E.arrays(keep), np.array([-INT32 - 1]))
    if magnitude(keep, {"q": n_q, "k": n_kv}, any_array) <= SAFE:
        return
    most = magnitude(keep, {"q": n_q, "k": n_kv}, arrays)
    if most > SAFE:
        finding = f"its formula may reach {most} at n_q={n_q}, n_kv={n_kv}, beyond {SAFE}"
        raise DataRange("the mask", finding, "use smaller coefficients, parameters or data")


def _exact_bounds(index: Expr, n_q: int, n_kv: int, arrays: Arrays) -> tuple[int, int] | None:
    """Least and greatest index where it depends on q, on k or on k - q alone, else None."""
    used = E.symbols(index)
    if used == {"q"}:
        values = evaluate(index, {**arrays, "q": np.arange(n_q)})
    elif used == {"k"}:
        values = evaluate(index, {**arrays, "k": np.arange(n_kv)})
    elif (formula := diagonals.of_difference(index)) is not None:
        values = evaluate(formula, {**arrays, diagonals.DIFFERENCE.name: np.arange(1 - n_q, n_kv)})
    else:
        return None
    return int(np.min(values)), int(np.max(values))
