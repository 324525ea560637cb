"""Express masks that read arrays as a few intervals per row, in runs of columns with equal data.

For one query, an array element at the query is a constant: `lo[q] <= k` bounds its keys. An array
element at a key is constant in a run of keys with equal elements, so the keys of a query in a run
are intervals too. Packed documents and segments have long runs. A condition on the key alone, such
as a flag, becomes one bit per key. All of this holds for any values: isl has a parameter for each
element, and kernels find the runs.

The same goes for the queries of a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.gathering import Span
from maskc.core.problem import TileShape
from maskc.core.widths import INDEX
from maskc.plan.ranges import one_range

MAX_TERMS = 4
"""Intervals per row up to which building bits from them is cheaper than testing pairs."""
RUN = E.Sym("run")
"""The symbol for the first column of a run."""
_PAIR = TileShape(1, 1)
_ROWS = ((E.Q, E.K, E.Sym("ti")), (E.K, E.Q, E.Sym("tj")))
"""(token of a row, of a column, the row in formulas of intervals): rows are queries, or keys."""


@dataclass(frozen=True, slots=True)
class DataInterval:
    """An interval of columns of a row inside a run, with a condition on single columns."""

    span: Span
    """Over ti (a query) or tj (a key), `run`, and elements of arrays there."""
    column: Expr
    """The condition under which a column counts, over k (over q if rows are keys)."""


@dataclass(frozen=True, slots=True)
class DataIntervals:
    """Intervals whose union is the mask; they may overlap."""

    intervals: tuple[DataInterval, ...]
    alike: tuple[Expr, ...]
    """Formulas over k (over q if rows are keys) with one value in a run. None: a tile is one
    run."""

    @property
    def columns(self) -> tuple[Expr, ...]:
        """The distinct conditions on columns, without those that always hold."""
        columns = dict.fromkeys(interval.column for interval in self.intervals)
        return tuple(column for column in columns if column != E.ALWAYS)


def data_intervals(shape: Expr, along: int) -> DataIntervals | None:
    """Return the intervals of every query (along 0) or of every key (1); None if there are too
    many, or a formula has no solution as an interval.

    Args:
        shape: a lifted formula; its constants stay symbolic.
    """
    if not E.arrays(shape):
        return None
    terms = E.alternatives(shape, MAX_TERMS)
    if terms is None:
        return None
    alike: dict[Expr, None] = {}
    of_terms = [_of_term(term, along, alike) for term in terms if term != E.NEVER]
    intervals = tuple(of_term for of_term in of_terms if of_term is not None)
    if not of_terms or len(intervals) < len(of_terms):
        return None
    return DataIntervals(intervals, tuple(alike))


def _of_term(term: Expr, along: int, alike: dict[Expr, None]) -> DataInterval | None:
    """Return the one interval of a conjunction; adds the constants of a run of its columns to
    `alike`."""
    row, column, place = _ROWS[along]
    guards: list[Expr] = []
    solved: list[Expr] = []
    alone: list[Expr] = []
    for part in E.conjuncts(term):
        of_row = row.name in E.symbols(part)
        read = any(column.name in E.symbols(load) for load in _loads(part))
        if read and not of_row:
            alone.append(part)
        elif column.name in E.symbols(_without_loads(part)):
            solved.append(part)
        else:
            guards.append(part)
    for part in (*guards, *solved):
        of_run = _of_run(part, row.name, column.name)
        if of_run is None:
            return None
        alike.update(dict.fromkeys(of_run))
    span = _solved(solved, along)
    if span is None:  # strides, for one, are conditions on columns
        alone += [part for part in solved if row.name not in E.symbols(part)]
        span = _solved([part for part in solved if part not in alone], along)
    if span is None:
        return None
    here: dict[Expr, Expr] = {row: place, column: RUN}
    guard = E.substitute(E.conj(*guards), here)
    return DataInterval(Span(E.conj(guard, span.guard), span.first, span.last), E.conj(*alone))


def _loads(expr: Expr) -> Iterable[E.Load]:
    """Return the array elements that a formula reads, without elements used only as indices."""
    if isinstance(expr, E.Load):
        yield expr
        return
    for part in expr.parts:
        yield from _loads(part)


def _without_loads(expr: Expr) -> Expr:
    return E.transform(expr, lambda node: E.ZERO if isinstance(node, E.Load) else None)


def _of_run(part: Expr, row: str, column: str) -> list[Expr] | None:
    """Return the formulas that must be constant in a run so that the elements in a formula are;
    None if unknown."""
    factors: list[Expr] = []
    for load in _loads(part):
        names = E.symbols(load)
        if column not in names:
            continue
        if row not in names:
            factors.append(load)
            continue
        own_indices = [index for index in load.index if column in E.symbols(index)]
        if any(row in E.symbols(index) for index in own_indices):
            return None
        factors += own_indices
    return factors


def _solved(parts: list[Expr], along: int) -> Span | None:
    """Solve a conjunction for the columns of a row with isl, with a parameter for each element;
    None if the columns are not consecutive."""
    row, column, place = _ROWS[along]
    term = E.conj(*parts)
    taken = [int(name[1:]) for name in E.symbols(term) if name[0] == "c"]
    loads = sorted(set(_loads(term)), key=lambda load: load.key)
    names: dict[Expr, E.Sym] = {
        load: E.Sym(f"c{max(taken, default=-1) + 1 + i}") for i, load in enumerate(loads)
    }
    known = one_range(E.transform(term, names.get), _PAIR, along)
    if known is None:
        return None
    back: dict[Expr, Expr] = {
        name: E.substitute(load, {row: place, column: RUN}) for load, name in names.items()
    }
    guard, first, last = known.live.guard, known.live.first, known.live.last
    if any(name in E.walk(guard) for name in back):
        return None
    if any(name in E.walk(end) for end in (first, last) for name in back):
        first, last = (_end(E.substitute(_spread(end), back)) for end in (first, last))
    return Span(guard, first, last)


def _spread(end: Expr, more: int = 0) -> Expr:
    """The end plus a number, which is added to the alternatives of minima and maxima."""
    match end:
        case E.Min(args):
            return E.minimum(*(_spread(arg, more) for arg in args))
        case E.Max(args):
            return E.maximum(*(_spread(arg, more) for arg in args))
        case E.Sum(constant, ((1, E.Min() | E.Max() as inner),)):
            return _spread(inner, more + constant)
    return E.add(end, E.const(more))


def _end(end: Expr) -> Expr:
    """Limit an end to 0 and above, and to 32 bits for every value of an element."""

    def within(node: Expr) -> Expr | None:
        match node:
            case E.Sum(1, ((1, E.Load() as load),)):
                return E.add(E.minimum(load, E.const(INDEX)), E.const(1))
            case E.Sum(-1, ((1, E.Load() as load),)):
                return E.add(E.maximum(load, E.const(-INDEX)), E.const(-1))
            case E.Load():
                return node
        return None

    return E.maximum(E.transform(end, within), E.ZERO)


def tamed(end: Expr) -> Expr:
    """Return the end without the elements that `_end` keeps within 32 bits, to check the rest."""

    def known(node: Expr) -> Expr | None:
        match node:
            case E.Min(args) | E.Max(args):
                if any(isinstance(arg, E.Load) for arg in args):
                    rest = [tamed(arg) for arg in args if not isinstance(arg, E.Load)]
                    make = E.minimum if isinstance(node, E.Min) else E.maximum
                    return make(*rest) if rest else E.ZERO
            case E.Load():
                return node
        return None

    return E.ZERO if isinstance(end, E.Load) else E.transform(end, known)
