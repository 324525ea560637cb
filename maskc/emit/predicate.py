"""A lifted formula as the lines of one C expression, each with the user's term above it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from maskc.core import expr as E
from maskc.core.data import LISTED
from maskc.core.expr import Expr
from maskc.core.expr_text import Printer
from maskc.core.gathering import Span
from maskc.core.widths import magnitude, reach
from maskc.emit.c_printer import CPrinter
from maskc.emit.spec import DataEnds, DataRows, PredicateLine
from maskc.ir.lift import Lifted
from maskc.ir.types import MaskIR, Origin
from maskc.plan.data_intervals import RUN, DataIntervals, tamed
from maskc.plan.ranges import RowRange


def predicate_lines(
    ir: MaskIR, lifted: Lifted, arrays: tuple[str, ...], tiled: bool
) -> tuple[PredicateLine, ...]:
    """The predicate over q, k and `Mask m`; `tiled` as for `CPrinter`."""
    return tuple(_Writer(ir, lifted, arrays, tiled).lines(lifted.shape, "", ""))


class _Writer:
    def __init__(self, ir: MaskIR, lifted: Lifted, arrays: tuple[str, ...], tiled: bool) -> None:
        lists = frozenset(d.name for d in ir.data if d.kind in LISTED)
        self.printer: Printer = CPrinter(arrays, lists, tiled, lifted.counts)
        self.mask_of = dict(lifted.sources)
        self.origin_of = dict(ir.origins)
        self.last = ""

    def lines(self, node: Expr, opening: str, closing: str) -> Iterator[PredicateLine]:
        """The node's lines; parentheses open on its first line and close on its last."""
        if not isinstance(node, (E.All, E.Any)):
            text = f"{opening}{self.printer(node)}{closing}"
            comment = self._comment(node)
            for line in wrapped(text, 90).splitlines():
                yield PredicateLine(line, comment)
                comment = ""
            return
        word = " &&" if isinstance(node, E.All) else " ||"
        for index, term in enumerate(node.terms):
            last = index + 1 == len(node.terms)
            nested = isinstance(term, (E.All, E.Any))
            yield from self.lines(
                term,
                (opening if index == 0 else "") + ("(" if nested else ""),
                (")" if nested else "") + (closing if last else word),
            )

    def _comment(self, atom: Expr) -> str:
        """The term this comparison came from, where it is not the line above's."""
        source = self.mask_of.get(atom, atom)
        origin = self.origin_of.get(source) or self.origin_of.get(E.negate(source))
        text = comment_of(origin) if origin else ""
        if text == self.last:
            return ""
        self.last = text
        return text


def comment_of(origin: Origin) -> str:
    """`line 12: window(255)`; names the user chose are left out."""
    term = re.sub(r"'[^']*'", "...", origin.term)
    return f"line {origin.loc.line}: {term}" if origin.loc else term


def range_text(row: RowRange) -> tuple[str, str, str, str]:
    """C text of a row's first and past-last live tile, and of the same for its full ones."""
    printer = CPrinter(())
    return (*_ends(row.live, printer, "list.first"), *_ends(row.full, printer, "list.full_first"))


def bounds_text(span: Span, nothing: str) -> tuple[str, str]:
    """Return C text of the first index and of the end; the end is `nothing` for an empty range."""
    return _ends(span, CPrinter(()), nothing)


def reach_of(span: Span) -> Iterator[Expr]:
    """Bounds on everything that is computed of a range's ends, see core/widths."""
    for formula in (span.guard, span.first, span.last):
        yield from reach(formula)
    for end in (span.first, span.last):  # kernels subtract a token, or the other end
        yield E.add(magnitude(end), E.maximum(E.N_Q, E.N_KV))


def data_rows(data: DataIntervals, arrays: tuple[str, ...], column: str) -> DataRows:
    """C text of intervals whose ends data tell; `column` is the name of a column, k or q."""
    printer = CPrinter(arrays, counts=frozenset({"run", "before"}))
    columns = data.columns
    before: dict[Expr, Expr] = {E.Sym(column): E.Sym("before")}
    return DataRows(
        tuple(
            DataEnds(
                "" if interval.span.guard == E.ALWAYS else wrapped(printer(interval.span.guard)),
                wrapped(printer(interval.span.first)), wrapped(printer(interval.span.last)),
                columns.index(interval.column) if interval.column in columns else -1,
            )
            for interval in data.intervals
        ),
        tuple(wrapped(printer(column)) for column in columns),
        wrapped(" || ".join(printer(E.ne(x, E.substitute(x, before))) for x in data.alike)),
    )  # fmt: skip


def ends_of_query(span: Span, values: dict[str, str]) -> DataEnds | None:
    """C text of the keys of a call's only query; None if they depend on other elements.

    Args:
        values: names of the variables that have the query's elements, by array.
    """
    query = E.Sym("ti")
    known: dict[Expr, Expr] = {E.Load(name, (query,)): E.Sym(x) for name, x in values.items()}
    here = span.substituted(known).substituted({query: E.ZERO})
    ends = (here.guard, here.first, here.last)
    if any(E.arrays(end) for end in ends):
        return None
    guard, first, last = (wrapped(CPrinter()(end)) for end in ends)
    return DataEnds("" if here.guard == E.ALWAYS else guard, first, last, -1)


def reach_of_data(data: DataIntervals) -> Iterator[Expr]:
    """Return bounds on the values computed from these ends, in addition to those of the mask's
    formula."""
    tokens: dict[Expr, Expr] = {E.Sym("ti"): E.Q, E.Sym("tj"): E.K, RUN: E.ZERO}
    for interval in data.intervals:
        ends = (
            E.substitute(tamed(end), tokens) for end in (interval.span.first, interval.span.last)
        )
        yield from reach_of(Span(E.ALWAYS, *ends))


def _ends(span: Span, printer: Printer, nothing: str) -> tuple[str, str]:
    """First tile and past-last tile; the latter is `nothing` where there are no tiles."""
    first, last = printer(span.first), printer(span.last)
    if span.guard != E.ALWAYS:
        last = f"{printer(span.guard)} ? {last} : {nothing}"
    return wrapped(first), wrapped(last)


def wrapped(text: str, width: int = 62) -> str:
    """Long expressions on several lines."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))
