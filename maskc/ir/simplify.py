"""Drop terms that the rest of a formula implies, by proof.

`causal() & window(255)` and `window(255)` end up as the same formula. Terms are tried in their
normal order, so the result depends on the formula only. If isl's budget ends, the formula
stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import islpy as isl
import numpy as np

from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.ir.id_lists import unveiled, veiled
from maskc.ir.nested import nested
from maskc.ir.sampled_points import sampled_points
from maskc.ir.sets import TooHard, budget, domain, token_universe


@lru_cache(maxsize=1 << 10)  # objects of islpy leave memory behind: ask once for each formula
def simplify(keep: Expr) -> Expr:
    """An equivalent formula without redundant terms."""
    keep = veiled(keep)
    if (union := nested(keep)) is not None:
        return union.simplified()
    try:
        with budget():
            simplifier = _Simplifier(keep)
            return unveiled(simplifier.run(keep, simplifier.everywhere()))
    except TooHard:
        return unveiled(keep)


@dataclass(frozen=True)
class _Context:
    """Known conditions, as points at which they hold and as a set."""

    points: np.ndarray
    """bool, one for each sampled point."""
    set: Callable[[], isl.Set]
    """Made when it is first asked for: isl is asked nothing that the points refute."""


class _Simplifier:
    """Sound with data arrays: assumptions take their upper bound, conclusions their lower."""

    def __init__(self, keep: Expr) -> None:
        self.universe = token_universe(keep)
        self.points = sampled_points(keep)
        self.inside = domain(self.universe)
        self.known: dict[Expr, np.ndarray] = {}

    def everywhere(self) -> _Context:
        """Conditions that hold at all lengths."""
        q, k, n_q, n_kv = (self.points[name] for name in ("q", "k", "n_q", "n_kv"))
        return _Context((q >= 0) & (q < n_q) & (k >= 0) & (k < n_kv), lambda: self.inside)

    def holds(self, formula: Expr) -> np.ndarray:
        """bool: at which points a formula holds; its terms are looked at once."""
        if formula not in self.known:
            match formula:
                case E.All(terms):
                    truth = np.logical_and.reduce([self.holds(term) for term in terms])
                case E.Any(terms):
                    truth = np.logical_or.reduce([self.holds(term) for term in terms])
                case _:
                    shape = self.points["q"].shape
                    truth = np.broadcast_to(evaluate(formula, self.points), shape)
            self.known[formula] = truth
        return self.known[formula]

    def _with(self, context: _Context, assumed: Expr) -> _Context:
        """The context where a formula holds too."""
        upper = E.assume_reads(assumed, True)
        made = cache(lambda: context.set().intersect(self.universe.set(assumed, opaque=True)))
        return _Context(context.points & self.holds(upper), made)

    def _implies(self, context: _Context, formula: Expr) -> bool:
        refuted = (context.points & ~self.holds(E.assume_reads(formula, False))).any()
        return not refuted and self._proves(context, formula)

    def _proves(self, context: _Context, formula: Expr) -> bool:
        """Ask isl, first whether the lengths alone imply the formula: that is quickly found."""
        implied = self.universe.set(formula, opaque=False)
        return self.inside.is_subset(implied) or context.set().is_subset(implied)

    def run(self, formula: Expr, context: _Context) -> Expr:
        """Return a simpler formula that is equal wherever `context` holds."""
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

    def _all(self, terms: list[Expr], context: _Context) -> Expr:
        for index in reversed(range(len(terms))):
            others = self._with(context, E.conj(*terms[:index], *terms[index + 1 :]))
            terms[index] = self.run(terms[index], others)
        return E.conj(*terms)

    def _any(self, terms: list[Expr], context: _Context) -> Expr:
        """Terms lose what others keep, and then may keep all of a term that was tried before."""
        before: list[Expr] = []
        while terms != before:
            before = list(terms)
            for index in reversed(range(len(terms))):
                rest = E.disj(*terms[:index], *terms[index + 1 :])
                outside = self._with(context, E.negate(rest))
                terms[index] = self.run(terms[index], outside)
        return E.disj(*terms)


def _equality(formula: Expr) -> E.Cmp | None:
    """The comparison of two blocks as an equality: where neither is the later one, it is that."""
    if not isinstance(formula, E.Cmp) or formula.op != ">=":
        return None
    floors = sum(isinstance(term, E.FloorDiv) for _, term in E.split_linear(formula.lhs)[1])
    equal = E.equals_zero(formula.lhs)
    return equal if floors > 1 and isinstance(equal, E.Cmp) else None
