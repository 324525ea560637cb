"""Which tiles of a mask are empty, partial or full: projections, symbolic in the lengths.

live = tiles(mask), full = live - tiles(domain - mask), partial = live - full. A tile that reaches
past the lengths is full when all of its real pairs are live, because the domain is clipped too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.ir.sets import Universe, domain


@dataclass(frozen=True)
class TileClasses:
    """Sets of tiles [ti, tj], symbolic in n_q, n_kv and the universe's other parameters.

    isl may need long for all but `live`: they are made when they are first read.
    """

    live: isl.Set
    """Tiles with at least one live pair."""
    keep: Expr
    inside: isl.Set
    """The pairs inside the lengths."""
    universe: Universe
    to_tiles: isl.Map

    @cached_property
    def holed(self) -> isl.Set:
        """Tiles with at least one dead pair inside the lengths.

        The negated formula has far fewer parts than the difference of two sets, whose parts isl
        keeps disjoint: 9 in place of 56 for a dilated neighbourhood on an image.
        """
        dead = self.universe.set(E.negate(self.keep)).intersect(self.inside)
        return dead.apply(self.to_tiles)

    @cached_property
    def full(self) -> isl.Set:
        """The live tiles whose real pairs are all live."""
        return self.live.subtract(self.holed).coalesce()

    @cached_property
    def partial(self) -> isl.Set:
        """The live tiles with a dead pair inside the lengths."""
        return self.live.subtract(self.full).coalesce()


def tile_classes(
    keep: Expr, tile: TileShape, universe: Universe, square: bool = False
) -> TileClasses:
    """Classify the tiles of a mask without data arrays. Call it inside `sets.budget()`.

    Args:
        square: only for n_q = n_kv.

    Raises:
        TooHard: through the budget around it.
    """
    inside = domain(universe)
    if square:
        inside = inside.intersect(universe.set(E.eq(E.N_Q, E.N_KV)))
    mask = universe.set(keep).intersect(inside).coalesce()
    to_tiles = _tile_map(tile, universe)
    live = mask.apply(to_tiles).coalesce()
    return TileClasses(live, keep, inside, universe, to_tiles)


def solid_tiles(keep: Expr, tile: TileShape, universe: Universe) -> isl.Set:
    """The live tiles inside which the formula holds everywhere, even beyond the lengths.

    They are a subset of `full`.
    """
    quadrant = universe.set(E.conj(E.ge(E.Q, E.ZERO), E.ge(E.K, E.ZERO)))
    to_tiles = _tile_map(tile, universe)
    live = universe.set(keep).intersect(domain(universe)).apply(to_tiles)
    holes = quadrant.subtract(universe.set(keep)).apply(to_tiles)
    return live.subtract(holes).coalesce()


def _tile_map(tile: TileShape, universe: Universe) -> isl.Map:
    """{ [q, k] -> [ti, tj] : q in tile row ti, k in tile column tj }"""
    text = (
        f"{{ [q, k] -> [ti, tj] : {tile.q}ti <= q < {tile.q}ti + {tile.q} "
        f"and {tile.k}tj <= k < {tile.k}tj + {tile.k} }}"
    )
    return universe.map(text)
