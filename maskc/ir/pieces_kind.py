"""The kind of a set of pairs; every answer is a proof by isl, with formulas of the set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.pieces_lattice import lattice
from maskc.ir.pieces_read import pieces_of
from maskc.ir.pieces_space import Space
from maskc.ir.types import Band, Columns, Detail, PieceKind, Rows, Span

_SET = isl.dim_type.set


_Kind = tuple[PieceKind, Detail | None]
CROSSING = (PieceKind.columns, PieceKind.rows)
_NONE: _Kind = (PieceKind.set, None)


def kind_of(
    pairs: isl.Set, space: Space, of: tuple[PieceKind, isl.Set] | None = None, whole: bool = False
) -> _Kind:
    """Return the first kind in the order below that the pairs have; `set` if the tests are too
    hard.

    Args:
        of: the kind and the pairs of what others leave these of.
        whole: the pairs are several conjunctions, which rarely form a lattice: skip that test.
    """
    return (
        space.ask(lambda: _crossing(pairs, space, of), None)
        or space.ask(lambda: _band(pairs, space), None)
        or (None if whole else space.ask(lambda: _lattice(pairs, space), None))
        or _NONE
    )


def _crossing(pairs: isl.Set, space: Space, of: tuple[PieceKind, isl.Set] | None) -> _Kind | None:
    if space.near_diagonal(pairs):
        return None
    for kind in (PieceKind.columns, PieceKind.rows):
        if of is None or of[0] not in CROSSING or of[0] is kind:
            known = of[1] if of and of[0] is kind else pairs
            lines = crossing(pairs, known, space, kind)
            if lines is not None:
                return kind, lines
    return None


def _band(pairs: isl.Set, space: Space) -> _Kind | None:
    return (PieceKind.band, band(pairs, space)) if space.universe.consecutive(pairs) else None


def _lattice(pairs: isl.Set, space: Space) -> _Kind | None:
    recipe = lattice(pairs, space)
    return None if recipe is None else (PieceKind.lattice, recipe)


# ------------------------------------------------------------------ columns and rows


@dataclass(frozen=True)
class _Lines:
    """Lines (columns or rows) and where all of them are kept."""

    lines: isl.Set
    complete: isl.Set


def _lines(pairs: isl.Set, known: isl.Set, space: Space, mine: int) -> _Lines | None:
    """The lines of `known` along dimension `mine`, if there are few (or many with gaps) and
    almost all of what crosses some of them in `pairs` crosses all of them."""
    lines, other = _line(known, mine), _line(known, 1 - mine)
    lasting = space.whatever_lengths(lines).intersect(_line(space.inside, mine))
    if space.few(lasting):
        lines = lasting
    elif not space.few(lines) and space.universe.consecutive(lines):
        return None
    grid = other.flat_product(lines) if mine == 1 else lines.flat_product(other)
    missing = _line(grid.intersect(space.inside).subtract(pairs), 1 - mine)
    complete = other.subtract(missing).coalesce()
    if space.few(complete.intersect_params(space.square)):
        return None
    if not space.few(missing.intersect(_line(pairs, 1 - mine))):
        return None
    somewhere = isl.Set.from_basic_set(complete.params().simple_hull())
    return _Lines(lines.gist_params(somewhere).coalesce(), complete)


def _line(pairs: isl.Set, dim: int) -> isl.Set:
    return pairs.project_out(_SET, 1 - dim, 1)


def crossing(
    pairs: isl.Set, known: isl.Set, space: Space, kind: PieceKind
) -> Columns | Rows | None:
    """Return the pairs as columns (or rows), if they are: a few keys, or many with gaps, that
    almost all queries see."""
    lines = _lines(pairs, known, space, int(kind is PieceKind.columns))
    if lines is None:
        return None
    if kind is PieceKind.columns:
        return Columns(space.keys_formula(lines.lines), space.queries_formula(lines.complete))
    return Rows(space.queries_formula(lines.lines), space.keys_formula(lines.complete))


def joined(left: Detail | None, right: Detail | None, space: Space) -> Columns | Rows | None:
    """Two disjoint sets of columns (or rows) as one, if nearly the same queries (or keys) cross
    each of them whole."""
    if isinstance(left, Columns) and isinstance(right, Columns):
        common = _common(left.queries, right.queries, space)
        lines = E.disj(left.keys, right.keys)
        return None if common is None else Columns(lines, space.queries_formula(_line(common, 0)))
    if isinstance(left, Rows) and isinstance(right, Rows):
        common = _common(left.keys, right.keys, space)
        lines = E.disj(left.queries, right.queries)
        return None if common is None else Rows(lines, space.keys_formula(_line(common, 1)))
    return None


def _common(left: Expr, right: Expr, space: Space) -> isl.Set | None:
    one, two = (space.universe.set(f).intersect(space.inside) for f in (left, right))
    dim = 0 if "q" in E.symbols(E.disj(left, right)) else 1
    somewhere = one.params().intersect(two.params())
    few = (
        space.few(_line(a.subtract(b).intersect_params(somewhere), dim))
        for a, b in ((one, two), (two, one))
    )
    return one.intersect(two).coalesce() if all(few) else None


# ------------------------------------------------------------------ bands


def band(pairs: isl.Set, space: Space) -> Band:
    """The first and last key of each query, given that its keys are consecutive."""
    keys = isl.Map.from_domain(pairs).move_dims(isl.dim_type.out, 0, isl.dim_type.in_, 1, 1)
    spans = []
    for where_low, low in _cases(keys.dim_min(0).coalesce(), False, space):
        for where_high, high in _cases(keys.dim_max(0).coalesce(), True, space):
            where = where_low.intersect(where_high).coalesce()
            if not where.is_empty():
                spans.append(Span(space.queries_formula(where), low, high))
    spans.sort(key=lambda span: (span.first.key, span.last.key, span.rows.key))
    return Band(tuple(spans), space.universe.shifts(pairs, space.inside))


_Bound = tuple[isl.PwAff, Expr]


def _cases(value: isl.PwAff, upper: bool, space: Space) -> list[tuple[isl.Set, Expr]]:
    """A bound as one formula where `min` and `max` can say it, else case by case."""
    cases = [(where, what, space.of_query.integer(what)) for where, what in pieces_of(value)]
    distinct = {formula: isl.PwAff.from_aff(what) for _, what, formula in cases}
    ordered = sorted(((made, f) for f, made in distinct.items()), key=lambda pair: pair[1].key)
    for made, formula in _nestings(ordered, upper):
        if made.intersect_domain(value.domain()).is_equal(value):
            return [(value.domain(), formula)]
    return [(where, formula) for where, _, formula in cases]


def _nestings(bounds: list[_Bound], upper: bool) -> Iterator[_Bound]:
    """Orders in which bounds may nest: the usual one of an upper bound first, then the rest.

    For a lower bound min and max are swapped.
    """
    outer, inner = (_least, _greatest) if upper else (_greatest, _least)
    yield reduce(outer, bounds)
    if len(bounds) > 2:
        for index, bound in enumerate(bounds):
            yield outer(bound, reduce(inner, bounds[:index] + bounds[index + 1 :]))
    if len(bounds) > 1:
        yield reduce(inner, bounds)


def _least(left: _Bound, right: _Bound) -> _Bound:
    return left[0].min(right[0]), E.minimum(left[1], right[1])


def _greatest(left: _Bound, right: _Bound) -> _Bound:
    return left[0].max(right[0]), E.maximum(left[1], right[1])
