"""Building conditions in normal form: comparisons against zero, negation at the leaves."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, product
from math import gcd, prod

from maskc.core.expr.integers import as_const, const, linear, mod, split_linear, sub
from maskc.core.expr.nodes import ALWAYS, NEVER, All, Any, Cmp, Expr, Member, Mod, Truth


def at_least_zero(expr: Expr) -> Expr:
    """The condition expr >= 0, divided by the gcd of its coefficients."""
    constant, terms = split_linear(expr)
    if not terms:
        return Truth(constant >= 0)
    common = gcd(*(c for c, _ in terms))
    return Cmp(">=", linear(constant // common, ((c // common, t) for c, t in terms)))


def equals_zero(expr: Expr) -> Expr:
    """The condition expr == 0, with residues of one sign and common factors removed."""
    constant, terms = split_linear(expr)
    if not terms:
        return Truth(constant == 0)
    if len(terms) == 1 and abs(terms[0][0]) == 1 and isinstance(terms[0][1], Mod):
        return _residue(terms[0][1], -constant * terms[0][0])
    common = gcd(*(c for c, _ in terms))
    if constant % common:
        return NEVER
    sign = -common if terms[0][0] < 0 else common
    return Cmp("==", linear(constant // sign, ((c // sign, t) for c, t in terms)))


def _residue(node: Mod, value: int) -> Expr:
    """The condition num mod den == value, as (num - value) mod den == 0 with one sign of num."""
    if not 0 <= value < node.den:
        return NEVER
    constant, terms = split_linear(node.num)
    sign = -1 if terms and terms[0][0] < 0 else 1
    moved = mod(linear(sign * (constant - value), ((sign * c, t) for c, t in terms)), node.den)
    known = as_const(moved)
    return Cmp("==", moved) if known is None else Truth(known == 0)


def ge(left: Expr, right: Expr) -> Expr:
    """left >= right."""
    return at_least_zero(sub(left, right))


def le(left: Expr, right: Expr) -> Expr:
    """left <= right."""
    return at_least_zero(sub(right, left))


def gt(left: Expr, right: Expr) -> Expr:
    """left > right."""
    return at_least_zero(linear(-1, ((1, left), (-1, right))))


def lt(left: Expr, right: Expr) -> Expr:
    """left < right."""
    return gt(right, left)


def eq(left: Expr, right: Expr) -> Expr:
    """left == right."""
    return equals_zero(sub(left, right))


def ne(left: Expr, right: Expr) -> Expr:
    """left != right."""
    return negate(eq(left, right))


def member(value: Expr, ids: Iterable[int]) -> Expr:
    """Whether value is one of the ids."""
    ranges: list[tuple[int, int]] = []
    for item in sorted(set(map(int, ids))):
        if ranges and item == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], item)
        else:
            ranges.append((item, item))
    if not ranges:
        return NEVER
    if len(ranges) == 1:
        low, high = ranges[0]
        return (
            eq(value, const(low))
            if low == high
            else conj(ge(value, const(low)), le(value, const(high)))
        )
    constant, terms = split_linear(value)
    if constant:
        ranges = [(low - constant, high - constant) for low, high in ranges]
    if terms and terms[0][0] < 0:
        terms = tuple((-c, t) for c, t in terms)
        ranges = [(-high, -low) for low, high in reversed(ranges)]
    return Member(linear(0, terms), tuple(ranges))


def conj(*terms: Expr) -> Expr:
    """The conjunction of all terms, normalised."""
    return _join(All, NEVER, ALWAYS, terms)


def disj(*terms: Expr) -> Expr:
    """The disjunction of all terms, normalised."""
    return _join(Any, ALWAYS, NEVER, terms)


def xor(left: Expr, right: Expr) -> Expr:
    """The condition that exactly one of both holds."""
    return disj(conj(left, negate(right)), conj(negate(left), right))


def _join(
    node: type[All] | type[Any], absorbing: Truth, unit: Truth, terms: tuple[Expr, ...]
) -> Expr:
    flat = set(chain.from_iterable(t.terms if isinstance(t, node) else (t,) for t in terms))
    flat.discard(unit)
    if absorbing in flat or any(negate(term) in flat for term in flat):
        return absorbing
    dual = Any if node is All else All
    kept = [
        t for t in flat
        if not (isinstance(t, dual) and any(part in flat for part in t.terms))
    ]  # fmt: skip
    if not kept:
        return unit
    return kept[0] if len(kept) == 1 else node(tuple(sorted(kept, key=lambda term: term.key)))


@lru_cache(maxsize=1 << 14)  # joining asks for the negation of every term, at every level
def negate(expr: Expr) -> Expr:
    """The logical negation, pushed down to the comparisons."""
    match expr:
        case Truth(value):
            return Truth(not value)
        case Cmp(">=", lhs):
            return at_least_zero(linear(-1, ((-1, lhs),)))
        case Cmp(op, lhs):
            return Cmp("!=" if op == "==" else "==", lhs)
        case Member(value, ranges, inside):
            return Member(value, ranges, not inside)
        case All(terms):
            return disj(*map(negate, terms))
        case Any(terms):
            return conj(*map(negate, terms))
    raise TypeError(f"not a boolean formula: {expr!r}")


def alternatives(node: Expr, most: int) -> list[Expr] | None:
    """The formula as an `or` of at most `most` formulas without one; None where there are more."""
    if isinstance(node, Any):
        parts = _each(node.terms, most)
        if parts is None or sum(map(len, parts)) > most:
            return None
        return [term for part in parts for term in part]
    if isinstance(node, All):
        choices = _each(node.terms, most)
        if choices is None or prod(map(len, choices)) > most:
            return None
        return [conj(*chosen) for chosen in product(*choices)]
    return [node]


def _each(terms: tuple[Expr, ...], most: int) -> list[list[Expr]] | None:
    """The alternatives of every term; None where one of them has too many."""
    found = []
    for term in terms:
        of_term = alternatives(term, most)
        if of_term is None:
            return None
        found.append(of_term)
    return found
