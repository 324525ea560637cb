"""Runs of keys or queries that a mask treats alike: one test serves the whole run."""

from __future__ import annotations

from math import gcd

from maskc.core import expr as E
from maskc.core.expr import Expr, Sym

MAX_RUN = 128
"""Longest run worth knowing: that of the largest tile."""


def run_length(keep: Expr, symbol: Sym) -> int:
    """Return the largest power of two R up to MAX_RUN such that the formula treats `symbol` and
    `symbol // R * R` alike.

    It does if every `symbol` occurs in floor(symbol / d) with d a multiple of R, or in a comparison
    with multiples of R.
    """
    if isinstance(keep, E.FloorDiv) and keep.num == symbol:
        return gcd(MAX_RUN, keep.den)
    if isinstance(keep, E.Cmp) and (threshold := _threshold(keep, symbol)):
        return threshold
    if keep == symbol:
        return 1
    return gcd(MAX_RUN, *(run_length(part, symbol) for part in keep.parts))


def _threshold(node: E.Cmp, symbol: Sym) -> int:
    """The run length of symbol >= x or symbol <= x - 1 with x a sum of multiples; 0 where the
    comparison is something else."""
    lhs = node.lhs
    if node.op != ">=" or not isinstance(lhs, E.Sum):
        return 0
    factors = [factor for factor, term in lhs.terms if term == symbol]
    others = [(factor, term) for factor, term in lhs.terms if term != symbol]
    if factors not in ([1], [-1]) or any(symbol.name in E.symbols(term) for _, term in others):
        return 0
    return gcd(MAX_RUN, lhs.const + (factors == [-1]), *(factor for factor, _ in others))
