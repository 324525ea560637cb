"""Building integer formulas in normal form: sums flattened and sorted, multiples divided out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from maskc.core.expr.nodes import Expr, FloorDiv, Max, Min, Mod, Sum


def const(value: int) -> Expr:
    """A literal."""
    return Sum(int(value), ())


def as_const(expr: Expr) -> int | None:
    """The value of a literal, None for anything else."""
    return expr.const if isinstance(expr, Sum) and not expr.terms else None


def split_linear(expr: Expr) -> tuple[int, tuple[tuple[int, Expr], ...]]:
    """(constant, terms) of any integer formula."""
    return (expr.const, expr.terms) if isinstance(expr, Sum) else (0, ((1, expr),))


def linear(constant: int, terms: Iterable[tuple[int, Expr]]) -> Expr:
    """The constant plus the sum of coefficient * term, in normal form."""
    total: dict[Expr, int] = {}
    for factor, term in terms:
        inner_const, inner = split_linear(term)
        constant += factor * inner_const
        for coefficient, atom in inner:
            total[atom] = total.get(atom, 0) + factor * coefficient
    kept = sorted(((c, t) for t, c in total.items() if c), key=lambda pair: pair[1].key)
    if constant == 0 and len(kept) == 1 and kept[0][0] == 1:
        return kept[0][1]
    return Sum(constant, tuple(kept))


def add(*terms: Expr) -> Expr:
    """The sum."""
    return linear(0, ((1, term) for term in terms))


def sub(left: Expr, right: Expr) -> Expr:
    """left - right."""
    return linear(0, ((1, left), (-1, right)))


def scale(factor: int, expr: Expr) -> Expr:
    """factor * expr."""
    return linear(0, ((factor, expr),))


def floordiv(num: Expr, den: int) -> Expr:
    """The formula floor(num / den) for a literal den != 0; multiples of den leave the fraction."""
    if den < 0:
        num, den = scale(-1, num), -den
    constant, terms = split_linear(num)
    if den == 1:
        return num
    whole = [(c // den, t) for c, t in terms if c % den == 0]
    rest = linear(constant % den, ((c, t) for c, t in terms if c % den))
    inner = const(0) if as_const(rest) is not None else FloorDiv(rest, den)
    return linear(constant // den, [*whole, (1, inner)])


def mod(num: Expr, den: int) -> Expr:
    """The formula num mod den for a literal den != 0, with Python's sign.

    Coefficients are those of the smallest magnitude, so that equal residues have equal text and
    need no wide products.
    """
    if den < 0:
        return scale(-1, mod(scale(-1, num), -den))
    constant, terms = split_linear(num)
    rest = linear(constant % den, ((_least(c, den), t) for c, t in terms))
    value = as_const(rest)
    return const(value % den) if value is not None else Mod(rest, den)


def _least(factor: int, den: int) -> int:
    """The number of the smallest magnitude that equals the factor modulo den.

    For den / 2 the factor's sign decides.
    """
    rest = factor % den
    return rest - den if 2 * rest > den - (factor < 0) else rest


def minimum(*args: Expr) -> Expr:
    """The least of them."""
    return _extreme(Min, min, args)


def maximum(*args: Expr) -> Expr:
    """The greatest of them."""
    return _extreme(Max, max, args)


def _extreme(
    node: type[Min] | type[Max], pick: Callable[[Iterable[int]], int], args: tuple[Expr, ...]
) -> Expr:
    flat = chain.from_iterable(arg.args if isinstance(arg, node) else (arg,) for arg in args)
    by_shape: dict[tuple[tuple[int, Expr], ...], list[int]] = {}
    for arg in flat:
        constant, terms = split_linear(arg)
        by_shape.setdefault(terms, []).append(constant)
    best = [linear(pick(values), terms) for terms, values in by_shape.items()]
    return best[0] if len(best) == 1 else node(tuple(sorted(best, key=lambda arg: arg.key)))


def absolute(expr: Expr) -> Expr:
    """|expr|."""
    value = as_const(expr)
    return const(abs(value)) if value is not None else maximum(expr, scale(-1, expr))
