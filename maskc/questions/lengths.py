"""Lengths that follow from a mask's own constants and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.layout import MAX_LENGTH

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.ir.types import MaskIR


ANY_LENGTH = range(MAX_LENGTH + 1)


def lengths_of(*masks: Mask) -> tuple[range, range]:
    """The numbers of queries and of keys that masks hold for, all of them together.

    A range is empty if no number fits, and ANY_LENGTH where every one does.
    """
    from maskc.dsl.nodes import Where, walk

    sides = [ANY_LENGTH, ANY_LENGTH]
    for mask in masks:
        if (fitting := fixed_lengths(mask)) is not None:
            sides = list(map(_common, sides, fitting))
        for node in walk(mask):
            made = node.lengths if isinstance(node, Where) else (None, None)
            exact = (ANY_LENGTH if n is None else range(n, n + 1) for n in made)
            sides = list(map(_common, sides, exact))
    return sides[0], sides[1]


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def fixed_lengths(mask: Mask) -> tuple[range, range] | None:
    """The lengths that fit the tables written in a mask; None if it has none."""
    from maskc.core.data import DataKind
    from maskc.dsl.nodes import walk

    tables = [
        decl for node in walk(mask) for decl in node.decls
        if decl.kind is DataKind.table and decl.values
    ]  # fmt: skip
    if not tables:
        return None
    sides = []
    for axis in (-2, -1):
        least = max((decl.shape[axis] - 1) * decl.block + 1 for decl in tables)
        most = min(decl.shape[axis] * decl.block for decl in tables)
        sides.append(range(least, most + 1))
    return sides[0], sides[1]


def constants(mask: Mask, n_heads: int | None, params: Mapping[str, int]) -> Iterator[int]:
    """Positions and distances, in tokens, at which a formula of the mask can change."""
    from maskc.ir.lower import differs_by_head
    from maskc.ir.lowered import lowered

    heads = range(n_heads or 1) if differs_by_head(mask) else range(1)
    for head in heads:
        yield from _of_head(lowered(mask, head, n_heads), params)


def _of_head(ir: MaskIR, params: Mapping[str, int]) -> Iterator[int]:
    for decl in ir.data:
        yield decl.block * (decl.options[0] + 1 if decl.kind.value == "random" else 1)
    for selection in ir.selections:
        yield selection.block * (selection.k + 2)  # one more than are selected, and the query's own
        yield selection.q_block
        for formula in selection.allowed:
            yield from _of_formula(formula, params)
    yield from _of_formula(ir.keep, params)


def _of_formula(formula: Expr, params: Mapping[str, int]) -> Iterator[int]:
    for node in E.walk(formula):
        match node:
            case E.Sum(terms=terms):
                yield abs(_value(node, params)) * max((_unit(term) for _, term in terms), default=1)
            case E.FloorDiv() | E.Mod():
                yield _unit(node) if isinstance(node, E.FloorDiv) else node.den * _unit(node.num)
            case E.Member(value, ranges):
                ends = [abs(end) for bounds in ranges for end in bounds]
                yield from (end * _unit(value) for end in ends)


def _value(total: E.Sum, params: Mapping[str, int]) -> int:
    """The constant part, parameters included."""
    return total.const + sum(
        factor * params.get(term.name, term.default)
        for factor, term in total.terms
        if isinstance(term, E.Param)
    )


def _unit(expr: Expr) -> int:
    """The number of tokens for which 1 of this number stands: 64 for k // 64."""
    inner = max(map(_unit, expr.parts), default=1)
    return expr.den * inner if isinstance(expr, E.FloorDiv) else inner
