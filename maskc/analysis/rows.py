"""Lengths of a mask's rows, and whether the mask consists of blocks; used to choose the height of a
tile.

All answers are about the set alone, with the parameters at their defaults.
"""

from __future__ import annotations

import islpy as isl

from maskc.analysis.tiles import tile_classes
from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.ir.id_lists import veiled
from maskc.ir.sampled_rows import cross_blocks, sampled_rows
from maskc.ir.sets import TooHard, budget, greatest, mask_set, token_universe

_OPERATIONS = 50_000
"""isl's budget for one question: some hundredths of a second, because only speed hangs on it."""


def longest_row(keep: Expr, beyond: int = 0) -> int | None:
    """The most keys from a query's first to its last one, at any lengths.

    Comparisons that read data, and long lists of ids, count as true: this is a bound whatever they
    are.

    Args:
        beyond: keys below it do not count.

    Returns:
        None if there is no bound, or no proof of one within isl's budget.
    """
    try:
        with budget(_OPERATIONS):
            seen = mask_set(veiled(keep), opaque=True, params=E.params(keep))
            keys = isl.Map.from_domain(seen.lower_bound_val(isl.dim_type.set, 1, isl.Val(beyond)))
            keys = keys.move_dims(isl.dim_type.out, 0, isl.dim_type.in_, 1, 1)
            deltas = keys.reverse().apply_range(keys).deltas()
            deltas = deltas.project_out(isl.dim_type.param, 0, deltas.dim(isl.dim_type.param))
            if deltas.is_empty():
                return 0
            most = greatest(deltas, 0)
            return int(most.to_str()) + 1 if most.is_int() else None
    except TooHard:
        return None


def comes_in(block: TileShape, keep: Expr, data: tuple[DataDecl, ...]) -> bool:
    """Whether it is proved that no block of this shape is partial at n_q = n_kv.

    Tables may be read where their own blocks lie inside these; other data makes it False.
    """
    tables = (DataKind.table, DataKind.random)
    if any(d.kind not in tables or d.block % max(block.q, block.k) for d in data):
        return False
    if veiled(keep) != keep:
        return False
    keep = E.with_values(keep, E.params(keep))
    if not data and any(cross_blocks(rows, block.k) for _, rows, _ in sampled_rows(keep, {})):
        return False
    universe = token_universe(keep)
    try:
        with budget(_OPERATIONS):
            return all(
                tile_classes(
                    E.assume_reads(keep, value), block, universe, square=True
                ).partial.is_empty()
                for value in ((True, False) if data else (True,))
            )
    except TooHard:
        return False


def tiles_alone(tile: TileShape, keep: Expr) -> bool:
    """Whether every live tile is alone in its tile row and in its tile column at n_q = n_kv, as far
    as can be proved, of a mask that reads no data."""
    if veiled(keep) != keep:
        return False
    keep = E.with_values(keep, E.params(keep))
    try:
        with budget(_OPERATIONS):
            live = tile_classes(keep, tile, token_universe(keep), square=True).live
            rows = isl.Map.from_domain(live).move_dims(isl.dim_type.out, 0, isl.dim_type.in_, 1, 1)
            return rows.is_single_valued() and rows.is_injective()
    except TooHard:
        return False
