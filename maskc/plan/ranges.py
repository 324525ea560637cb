"""Closed-form tile ranges for kernels, for masks with consecutive live tiles in every row.

The formula's constants stay symbolic, so that masks that differ only there share the text. The full
range may miss full tiles, but must not contain others. For a missed tile the kernel evaluates a
predicate that is always true, and the result is bitwise equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import islpy as isl

from maskc.analysis.tiles import solid_tiles, tile_classes
from maskc.core import expr as E
from maskc.core.bundle import TileLoop
from maskc.core.expr import Expr
from maskc.core.gathering import Span
from maskc.core.problem import TileShape
from maskc.ir.sets import TooHard, Universe, budget
from maskc.plan.recipe import NotALoop, tile_loops


@dataclass(frozen=True, slots=True)
class RowRange:
    """The live and the certainly full tiles of one tile row (or column)."""

    live: Span
    full: Span


_OPERATIONS = 200_000
"""Limit on isl operations for ranges. For masks of grids up to three searches fail, and each would
take a second with five times as many operations."""

NOTHING = Span(E.ALWAYS, E.ZERO, E.ZERO)


def row_ranges(shape: Expr, tile: TileShape) -> tuple[RowRange, RowRange] | None:
    """Ranges per tile row and per tile column of a lifted formula; None if there are none."""
    ranges = _ranges(shape, tile, (0, 1))
    return None if ranges is None else (ranges[0], ranges[1])


def one_range(shape: Expr, tile: TileShape, along: int) -> RowRange | None:
    """The range per tile row (0) or per tile column (1) alone."""
    ranges = _ranges(shape, tile, (along,))
    return None if ranges is None else ranges[0]


@lru_cache(maxsize=1 << 10)
def _ranges(shape: Expr, tile: TileShape, sides: tuple[int, ...]) -> tuple[RowRange, ...] | None:
    if E.arrays(shape):
        return None
    names = sorted(E.symbols(shape) - {"q", "k", "n_q", "n_kv"}, key=lambda name: int(name[1:]))
    universe = Universe(("q", "k"), ("n_q", "n_kv", *names))
    try:
        with budget(_OPERATIONS):
            live = tile_classes(shape, tile, universe).live
            full = solid_tiles(shape, tile, universe)
            return tuple(
                RowRange(_single(live, tile, along), _single(full, tile, along)) for along in sides
            )
    except (TooHard, NotALoop):
        return None


def _single(tiles: isl.Set, tile: TileShape, along: int) -> Span:
    """The one consecutive loop that visits these tiles.

    Raises:
        NotALoop: there is more than one, or it skips tiles.
    """
    hull = isl.Set.from_basic_set(tiles.simple_hull())
    tiles = hull if hull.is_equal(tiles) else tiles
    loops: list[TileLoop] = tile_loops(tiles, tile, True, {}, along)
    if not loops:
        return NOTHING
    if len(loops) > 1 or loops[0].step != 1:
        raise NotALoop("more than one loop, or a stride")
    loop = loops[0]
    return Span(loop.guard, loop.first, E.add(loop.last, E.const(1)))
