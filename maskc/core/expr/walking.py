"""Looking into formulas and rebuilding them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from maskc.core.expr.conditions import at_least_zero, conj, disj, equals_zero, negate
from maskc.core.expr.integers import as_const, floordiv, linear, maximum, minimum, mod
from maskc.core.expr.nodes import (
    All,
    Any,
    Cmp,
    Expr,
    FloorDiv,
    Load,
    Max,
    Member,
    Min,
    Mod,
    Param,
    Sum,
    Sym,
    Truth,
)


def walk(expr: Expr) -> Iterator[Expr]:
    """The formula and all its subformulas, outermost first."""
    yield expr
    for part in expr.parts:
        yield from walk(part)


def symbols(expr: Expr) -> frozenset[str]:
    """The names of the variables in a formula."""
    return frozenset(node.name for node in walk(expr) if isinstance(node, Sym))


def params(expr: Expr) -> dict[str, int]:
    """The names and defaults of a formula's parameters, sorted by name."""
    found = {node.name: node.default for node in walk(expr) if isinstance(node, Param)}
    return dict(sorted(found.items()))


def arrays(expr: Expr) -> tuple[str, ...]:
    """The names of the arrays that a formula reads, sorted."""
    return tuple(sorted({node.array for node in walk(expr) if isinstance(node, Load)}))


def transform(expr: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild the formula bottom-up through the normalising functions.

    `leaf` sees every node first; if it returns a formula, that replaces the whole node.
    """
    replaced = leaf(expr)
    if replaced is not None:
        return replaced

    def inner(part: Expr) -> Expr:
        return transform(part, leaf)

    match expr:
        case Sum(constant, terms):
            return linear(constant, ((c, inner(t)) for c, t in terms))
        case FloorDiv(num, den):
            return floordiv(inner(num), den)
        case Mod(num, den):
            return mod(inner(num), den)
        case Min(args):
            return minimum(*map(inner, args))
        case Max(args):
            return maximum(*map(inner, args))
        case Load(array, index):
            return Load(array, tuple(map(inner, index)))
        case Cmp(op, lhs):
            compared = inner(lhs)
            if op == ">=":
                return at_least_zero(compared)
            equal = equals_zero(compared)
            return equal if op == "==" else negate(equal)
        case Member(value, ranges, inside):
            return _shifted_member(inner(value), ranges, inside)
        case All(terms):
            return conj(*map(inner, terms))
        case Any(terms):
            return disj(*map(inner, terms))
    return expr


def _shifted_member(value: Expr, ranges: tuple[tuple[int, int], ...], inside: bool) -> Expr:
    constant = as_const(value)
    if constant is not None:
        return Truth(any(low <= constant <= high for low, high in ranges) == inside)
    return Member(value, ranges, inside)


def substitute(expr: Expr, values: dict[Expr, Expr]) -> Expr:
    """Replace whole subformulas (usually symbols and parameters)."""
    return transform(expr, values.get)


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The formula with other names for the arrays it reads."""
    if all(old == new for old, new in names.items()):
        return expr

    def load(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        index = tuple(transform(part, load) for part in node.index)
        return Load(names.get(node.array, node.array), index)

    return transform(expr, load)
