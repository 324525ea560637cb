"""Lattices: pairs of residue classes, read in coordinates in which the congruence is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import lcm

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.pieces_read import PieceReader, whole
from maskc.ir.pieces_space import Space
from maskc.ir.sets import greatest, least
from maskc.ir.types import Lattice

_PARAM = isl.dim_type.param

_LARGEST = 1 << 16
"""Strides above this are not tried."""

C, J, T_Q, T_K = (E.Sym(name) for name in ("c", "j", "t_q", "t_k"))


@dataclass(frozen=True, slots=True)
class _Grouping:
    """q = queries(c, j, t_q), k = keys(c, j, t_k), for 0 <= c < classes and 0 <= j < width."""

    stride: int
    query_phase: int | None
    key_phase: int | None
    difference: int | None
    width: int
    classes: int
    position: Expr
    """The query's position over c, j, t_q."""
    keys: Expr
    from_end: bool
    """Whether positions are aligned at the end."""

    @property
    def queries(self) -> Expr:
        offset = E.sub(E.N_KV, E.N_Q) if self.from_end else E.ZERO
        return E.sub(self.position, offset)


def lattice(pairs: isl.Set, space: Space) -> Lattice | None:
    """The pairs as a lattice of the least stride that makes a band of them."""
    for stride in _strides(pairs):
        for way in _groupings(pairs, stride, space):
            grouped = pairs.apply(_coordinates(way, space)).coalesce()
            if space.universe.consecutive(grouped):
                recipe = _described(way, grouped, space)
                if not _congruent(recipe.band):
                    return recipe
    return None


def _congruent(band: Expr) -> bool:
    """Whether a formula still tests the residue of a class."""
    return any(
        isinstance(node, (E.Mod, E.FloorDiv)) and E.symbols(node) & {C.name, J.name}
        for node in E.walk(band)
    )


def _strides(pairs: isl.Set) -> list[int]:
    """The denominators of the floors in a set, and their common multiples, ascending."""
    strides: set[int] = set()
    for part in pairs.compute_divs().get_basic_sets():
        for constraint in part.get_constraints():
            value = constraint.get_aff()
            floors = map(value.get_div, range(value.dim(isl.dim_type.div)))
            strides |= {
                whole(floor.get_denominator_val()) for floor in floors if not floor.is_nan()
            }
    strides |= {lcm(a, b) for a, b in combinations(sorted(strides), 2)}
    return [stride for stride in sorted(strides) if 1 < stride <= _LARGEST]


_POSITIONS = ((True, "q + n_kv - n_q"), (False, "q"))
"""(aligned at the end, text of a query's position)"""


def _groupings(pairs: isl.Set, stride: int, space: Space) -> Iterator[_Grouping]:
    """The ways to group by residue: queries and keys, keys, their difference, queries."""
    of_key = _residues(pairs, "k", stride, space)
    if of_key and of_key[1] == 1:
        for from_end, p in _POSITIONS:
            of_query = _residues(pairs, p, stride, space)
            if of_query and of_query[1] == 1:
                a, b = of_query[0], of_key[0]
                position, keys = _spread(stride, T_Q, a), _spread(stride, T_K, b)
                yield _Grouping(stride, a, b, None, 1, 1, position, keys, from_end)
    if of_key:
        b, width = of_key
        keys = E.add(_spread(stride, T_K, b), J if width > 1 else E.ZERO)
        yield _Grouping(stride, None, b, None, width, 1, T_Q, keys, False)
    for from_end, p in _POSITIONS:
        of_distance = _residues(pairs, f"{p} - k", stride, space)
        if of_distance:
            r, width = of_distance
            position = E.add(_spread(stride, T_Q, r), C, J if width > 1 else E.ZERO)
            keys = E.add(_spread(stride, T_K, 0), C)
            yield _Grouping(stride, None, None, r, width, stride, position, keys, from_end)
    for from_end, p in _POSITIONS:
        of_query = _residues(pairs, p, stride, space)
        if of_query:
            a, width = of_query
            position = E.add(_spread(stride, T_Q, a), J if width > 1 else E.ZERO)
            yield _Grouping(stride, a, None, None, width, 1, position, T_K, from_end)


def _spread(stride: int, by: Expr, phase: int) -> Expr:
    return E.linear(phase, [(stride, by)])


def _residues(pairs: isl.Set, value: str, stride: int, space: Space) -> tuple[int, int] | None:
    """(the smallest, how many) residues of a value where they are consecutive and not all."""
    there = pairs.apply(space.universe.map(f"{{ [q, k] -> [({value}) mod {stride}] }}"))
    there = there.project_out(_PARAM, 0, there.dim(_PARAM)).coalesce()
    everything = isl.Set(f"{{ [m] : 0 <= m < {stride} }}")
    least, most = _ends(there)
    if isl.Set(f"{{ [m] : {least} <= m <= {most} }}").is_subset(there):
        return (least, most - least + 1) if most - least + 1 < stride else None
    gap = everything.subtract(there)
    least, most = _ends(gap)
    if isl.Set(f"{{ [m] : {least} <= m <= {most} }}").is_subset(gap):
        return most + 1, stride - (most - least + 1)
    return None


def _ends(points: isl.Set) -> tuple[int, int]:
    return whole(least(points, 0)), whole(greatest(points, 0))


def _coordinates(way: _Grouping, space: Space) -> isl.Map:
    """{ [q, k] -> [c, j, t_q, t_k] }"""
    s, width = way.stride, way.width
    position = "q + n_kv - n_q" if way.from_end else "q"
    if way.difference is not None:
        query = f"{position} = {s}*t_q + c + j + {way.difference} and k = {s}*t_k + c"
    else:
        a, b = way.query_phase, way.key_phase
        lane_q, lane_k = ("j", "0") if b is None else ("0", "j")
        query = f"{position} = {s}*t_q + {a} + {lane_q}" if a is not None else "q = t_q"
        query += f" and k = {s}*t_k + {b} + {lane_k}" if b is not None else " and k = t_k"
    inside = f"0 <= c < {way.classes} and 0 <= j < {width}"
    return space.universe.map(f"{{ [q, k] -> [c, j, t_q, t_k] : {query} and {inside} }}")


def _described(way: _Grouping, grouped: isl.Set, space: Space) -> Lattice:
    inside = space.inside.apply(_coordinates(way, space))
    known = grouped.gist(inside).coalesce()
    reader = PieceReader(("c", "j", "t_q", "t_k"), space.defaults)
    return Lattice(
        way.stride, way.query_phase, way.key_phase, way.difference, way.width,
        way.queries, way.keys, reader.condition(known),
    )  # fmt: skip
