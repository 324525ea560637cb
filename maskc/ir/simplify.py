"""Drops what the rest of a formula already says, by proof.

`causal() & window(255)` and `window(255)` end up as the same formula. Terms are tried in their
normal order, so the result depends on the formula only. Where isl's budget ends, the formula
stays as it is.
"""

from __future__ import annotations

from functools import lru_cache

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.id_lists import unveiled, veiled
from maskc.ir.nested import nested
from maskc.ir.sets import TooHard, Universe, budget, domain, token_universe


@lru_cache(maxsize=1 << 10)  # objects of islpy leave memory behind: ask once for each formula
def simplify(keep: Expr) -> Expr:
    """An equivalent formula without redundant terms."""
    keep = veiled(keep)
    if (union := nested(keep)) is not None:
        return union.simplified()
    try:
        with budget():
            universe = token_universe(keep)
            return unveiled(_Simplifier(universe).run(keep, domain(universe)))
    except TooHard:
        return unveiled(keep)


class _Simplifier:
    """Sound with data arrays: assumptions take their upper bound, conclusions their lower."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe

    def _assumed(self, formula: Expr) -> isl.Set:
        return self.universe.set(formula, opaque=True)

    def _implies(self, context: isl.Set, formula: Expr) -> bool:
        return context.is_subset(self.universe.set(formula, opaque=False))

    def run(self, formula: Expr, context: isl.Set) -> Expr:
        """The formula as it may be written where `context` is known to hold."""
        match formula:
            case E.All(terms):
                return self._all(list(terms), context)
            case E.Any(terms):
                return self._any(list(terms), context)
        if isinstance(formula, E.Truth):
            return formula
        if self._implies(context, formula):
            return E.ALWAYS
        if self._implies(context, E.negate(formula)):
            return E.NEVER
        equal = _equality(formula)
        if equal is None or not self._implies(context, E.disj(equal, E.negate(formula))):
            return formula
        return equal

    def _all(self, terms: list[Expr], context: isl.Set) -> Expr:
        for index in reversed(range(len(terms))):
            others = context.intersect(self._assumed(E.conj(*terms[:index], *terms[index + 1 :])))
            terms[index] = self.run(terms[index], others)
        return E.conj(*terms)

    def _any(self, terms: list[Expr], context: isl.Set) -> Expr:
        for index in reversed(range(len(terms))):
            rest = E.disj(*terms[:index], *terms[index + 1 :])
            outside = context.intersect(self._assumed(E.negate(rest)))
            terms[index] = self.run(terms[index], outside)
        return E.disj(*terms)


def _equality(formula: Expr) -> E.Cmp | None:
    """The comparison of two blocks as an equality: where neither is the later one, it is that."""
    if not isinstance(formula, E.Cmp) or formula.op != ">=":
        return None
    floors = sum(isinstance(term, E.FloorDiv) for _, term in E.split_linear(formula.lhs)[1])
    equal = E.equals_zero(formula.lhs)
    return equal if floors > 1 and isinstance(equal, E.Cmp) else None
