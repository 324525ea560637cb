"""Express a mask as a few intervals per row, which kernels turn into bits without testing pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.gathering import Span
from maskc.core.problem import TileShape
from maskc.ir.lift import Lifted
from maskc.ir.sampled_rows import have_gaps, sampled_rows
from maskc.ir.selecting import chosen
from maskc.ir.types import MaskIR
from maskc.layout.tiles.relative_bits import parts_by_distance
from maskc.plan.ranges import one_range, row_ranges

MAX_TERMS = 6
"""Intervals per row up to which building bits from them is cheaper than testing pairs."""

CELL = 8
"""Columns that a quad of threads shares, two each. Blocks of a multiple of it map to whole bits of
each thread."""

_PAIR = TileShape(1, 1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Consecutive pairs: intervals of one mask may overlap."""

    keys: Span
    """The keys of a query, which the formulas call `ti`."""
    queries: Span
    """The queries of a key, `tj`."""
    chosen: bool | None = None
    """True: only chosen pairs of it count; False: only pairs that were not chosen; None: all
    pairs."""
    behind_floors: bool = False
    """Whether its bounds were only found after floors were moved to one side of comparisons."""


@lru_cache(maxsize=1 << 8)
def intervals(
    shape: Expr, atom: Expr | None = None, args: tuple[Expr, ...] = ()
) -> tuple[Interval, ...] | None:
    """Return intervals that add up to the mask, per query and per key; None if there are too many,
    or a term has gaps.

    Args:
        shape: a lifted formula; its constants stay symbolic.
        atom: the comparison that is true for chosen pairs, if intervals may depend on it; see
            `chosen_atom`.
        args: values of its constants in one mask. Terms with gaps at these values are rejected
            without isl.
    """
    if set(E.arrays(shape)) - set(E.arrays(atom) if atom else ()):
        return None
    terms = E.alternatives(_without_extremes(shape), MAX_TERMS)
    if terms is None:
        return None
    if atom is None:
        return _of_all(terms, args)
    return _of_chosen(terms, atom, args)


def chosen_atom(ir: MaskIR, lifted: Lifted) -> Expr | None:
    """Return the comparison that reads the selection of a mask, if it has exactly one, with blocks
    of a multiple of CELL columns."""
    if len(ir.selections) != 1 or ir.selections[0].table[1] % CELL:
        return None
    source = chosen(ir.selections[0])
    for made, original in lifted.sources:
        if original in (source, E.negate(source)):
            return made if original == source else E.negate(made)
    return None


def _of_chosen(
    terms: Iterable[Expr], atom: Expr, args: tuple[Expr, ...]
) -> tuple[Interval, ...] | None:
    """Return the intervals of terms that may require chosen pairs, or pairs that were not
    chosen."""
    intervals: list[Interval] = []
    for term in terms:
        if term == E.NEVER:
            continue
        wanted = next((taken for taken in (True, False) if _asks(term, atom, taken)), None)
        static = term if wanted is None else E.assume(term, atom, wanted)
        interval = None if _has_gaps(static, args) else _interval(static, wanted)
        if interval is None:
            return None
        intervals.append(interval)
    return tuple(intervals)


@lru_cache(maxsize=1 << 10)
def _has_gaps(term: Expr, args: tuple[Expr, ...]) -> bool:
    """Whether some row has gaps at the values `args` of the constants."""
    if not args or E.arrays(term):
        return False
    known: dict[Expr, Expr] = {E.Sym(f"c{number}"): arg for number, arg in enumerate(args)}
    formula = E.substitute(term, known)
    return any(have_gaps(rows) for _, rows, _ in sampled_rows(formula, E.params(formula)))


def _without_floors(term: Expr, token: str) -> Expr:
    """Rewrite a formula so that comparisons divide no sums with this token; this exposes its
    bounds.

    floor(a / d) + r >= 0 is a + d * r >= 0, and r - floor(a / d) >= 0 is d * r + d - 1 - a >= 0.
    """

    def spread(node: Expr) -> Expr | None:
        if not isinstance(node, E.Cmp) or node.op not in (">=", "=="):
            return None
        if node.op == "==":
            above, below = spread(E.ge(node.lhs, E.ZERO)), spread(E.le(node.lhs, E.ZERO))
            return None if above is None or below is None else E.conj(above, below)
        terms = node.lhs.terms if isinstance(node.lhs, E.Sum) else ()
        floors = [
            (sign, x) for sign, x in terms if isinstance(x, E.FloorDiv) and token in E.symbols(x)
        ]
        if len(floors) != 1 or abs(floors[0][0]) != 1:
            return None
        ((sign, floor),) = floors
        rest = E.scale(floor.den, E.sub(node.lhs, E.scale(sign, floor)))
        if token in E.symbols(rest):
            return None
        scaled = E.scale(sign, floor.num)
        return E.ge(E.add(rest, scaled, *([] if sign > 0 else [E.const(floor.den - 1)])), E.ZERO)

    return E.transform(term, spread)


def _without_extremes(shape: Expr) -> Expr:
    """Return the formula with `or` in place of maxima and minima where a comparison allows it."""

    def spread(node: Expr) -> Expr | None:
        if not isinstance(node, E.Cmp) or node.op != ">=":
            return None
        constant, terms = E.split_linear(node.lhs)
        for index, (factor, term) in enumerate(terms):
            if isinstance(term, E.Max if factor > 0 else E.Min):
                others = terms[:index] + terms[index + 1 :]
                sides = (E.linear(constant, (*others, (factor, side))) for side in term.args)
                return _without_extremes(E.disj(*map(E.at_least_zero, sides)))
        return None

    return E.transform(shape, spread)


def _asks(term: Expr, atom: Expr, taken: bool) -> bool:
    """Whether a term requires that a pair was selected, or that it was not."""
    return bool(E.arrays(term)) and E.assume(term, atom, not taken) == E.NEVER


@lru_cache(maxsize=1 << 8)
def intervals_alongside(keep: Expr, lifted: Lifted) -> tuple[Interval, ...] | None:
    """Return the intervals of the rest of a mask, after its part by distance, which is stored as
    bits."""
    if E.arrays(keep):
        return None
    shape_of = {source: made for made, source in lifted.sources}
    rest = parts_by_distance(keep)[1]
    if len(rest) > MAX_TERMS:
        return None
    return _of_all([E.substitute(term, shape_of) for term in rest], lifted.args)


def _of_all(terms: Iterable[Expr], args: tuple[Expr, ...]) -> tuple[Interval, ...] | None:
    intervals = []
    for term in terms:
        if _has_gaps(term, args):
            return None
        ranges = row_ranges(term, _PAIR)
        if ranges is not None:
            intervals.append(Interval(ranges[0].live, ranges[1].live))
            continue
        interval = _interval(term)
        if interval is None:
            return None
        intervals.append(replace(interval, behind_floors=True))
    return tuple(intervals)


def _interval(term: Expr, wanted: bool | None = None) -> Interval | None:
    """The one interval of a conjunction, with floors left out that hide its bounds."""
    keys, queries = (
        one_range(_without_floors(term, token), _PAIR, along) for along, token in enumerate("kq")
    )
    if keys is None or queries is None:
        return None
    return Interval(keys.live, queries.live, wanted)
