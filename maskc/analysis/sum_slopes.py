"""Derivatives of score formulas that add terms to the score, as ALiBi and biases do.

They need no algebra, and sympy, which differentiates all other formulas, takes longer to import
than a mask to compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.score import Slopes


@lru_cache(maxsize=64)
def slope(logit: S.Real) -> Slopes:
    """d logit / d s."""
    slopes = _of_sum(logit, (S.Score(),))
    if slopes is None:
        from maskc.analysis import score_slopes

        slopes = score_slopes.slope(logit)
    return slopes


@lru_cache(maxsize=64)
def table_slopes(logit: S.Real) -> Slopes:
    """d logit / d (entry of a table), one for each of `reads(logit)`."""
    slopes = _of_sum(logit, tuple(S.reads(logit)))
    if slopes is None:
        from maskc.analysis import score_slopes

        slopes = score_slopes.table_slopes(logit)
    return slopes


def _of_sum(logit: S.Real, variables: tuple[S.Real, ...]) -> Slopes | None:
    """Return what sympy would; None unless each variable is a term of the sum or one of the two
    factors of a term, and occurs nowhere else."""
    if any(isinstance(part, S.Call) and part.function == "log" for part in E.walk(logit)):
        return None
    results = []
    for variable in variables:
        of_terms = [(term, sign) for term, sign in _terms(logit) if variable in E.walk(term)]
        if len(of_terms) != 1:
            return None
        result = _of_term(*of_terms[0], variable)
        if result is None:
            return None
        results.append(result)
    shared = [result for result in results if not isinstance(result, S.Number)]
    return Slopes((), tuple(results)) if len(shared) == len(set(shared)) else None


def _terms(node: S.Real, sign: float = 1.0) -> Iterator[tuple[S.Real, float]]:
    """Yield the terms of a sum, each with its sign."""
    match node:
        case S.Call("add", (left, right)):
            yield from _terms(left, sign)
            yield from _terms(right, sign)
        case S.Call("sub", (left, right)):
            yield from _terms(left, sign)
            yield from _terms(right, -sign)
        case S.Call("neg", (term,)):
            yield from _terms(term, -sign)
        case _:
            yield node, sign


def _of_term(term: S.Real, sign: float, variable: S.Real) -> S.Real | None:
    """Return the derivative of `term`, or of `-term` if the sign is below 0."""
    if term == variable:
        return S.Number(sign)
    match term:
        case S.Call("mul", (left, right)) if variable in (left, right) and left != right:
            factor = right if left == variable else left
            if variable not in E.walk(factor) and isinstance(factor, S.Whole | S.Read | S.Score):
                return factor if sign > 0 else S.Call("neg", (factor,))
    return None
