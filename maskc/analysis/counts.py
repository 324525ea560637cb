"""Exact numbers of live pairs: at given lengths, and as closed forms in N and the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import lcm, prod
from typing import TYPE_CHECKING

import islpy as isl

from maskc.core import expr as E
from maskc.core.boxes import MAX_ALONG, axis_relations
from maskc.core.expr import Expr
from maskc.ir.grid import grid_mask
from maskc.ir.id_lists import veiled
from maskc.ir.sets import TooHard, budget, mask_set

if TYPE_CHECKING:
    import sympy  # half a second to import, which a count has no use for


def count_pairs(keep: Expr, n_q: int, n_kv: int, params: Mapping[str, int]) -> int | None:
    """The number of live pairs at these lengths, axis by axis of a grid or by isl.

    The result is None if that is too hard, or where the mask reads data or long lists of ids.
    """
    if E.arrays(veiled(keep)):
        return None
    if (counted := _count_on_grid(keep, n_q, n_kv, params)) is not None:
        return counted
    names = E.params(keep)
    values = tuple((name, params.get(name, names[name])) for name in sorted(names))
    return _counted(E.with_values(keep, dict(values)), n_q, n_kv)


@lru_cache(maxsize=1 << 12)
def _counted(keep: Expr, n_q: int, n_kv: int) -> int | None:
    """The number of live pairs of a formula without parameters by isl; None if that is too
    hard."""
    try:
        with budget():
            count = _pairs(keep)
            for name, value in (("n_q", n_q), ("n_kv", n_kv)):
                index = count.find_dim_by_name(isl.dim_type.param, name)
                count = count.fix_val(isl.dim_type.param, index, isl.Val(value))
                count = count.project_out(isl.dim_type.param, index, 1)
            text = count.make_disjoint().count_val().to_str()
            return None if text is None else int(text)
    except TooHard:
        return None


@lru_cache(maxsize=1 << 8)  # objects of islpy leave memory behind: ask once for each formula
def _pairs(keep: Expr) -> isl.Set:
    """The pairs of a formula at all lengths. Call it inside `sets.budget()`."""
    return mask_set(keep)


def _count_on_grid(keep: Expr, n_q: int, n_kv: int, params: Mapping[str, int]) -> int | None:
    """The product of the pairs of each axis; None if the mask or the lengths have no grid."""
    mask = grid_mask(keep)
    if mask is None or n_q != n_kv or n_q % prod(mask.extents):
        return None
    grid = (n_q // prod(mask.extents), *mask.extents)
    if max(grid) > MAX_ALONG:
        return None
    return prod(int(axis.sum()) for axis in axis_relations(mask.axes, grid, params))


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The number of live pairs at n_q = n_kv = N as a polynomial, exact where `valid` says."""

    pairs: sympy.Expr
    """A formula in N and the mask's parameters."""
    least: int
    """The formula holds for N from here on (and for parameters of about the defaults'
    magnitude)."""
    period: int
    """The formula holds for N that are multiples of this."""

    def __str__(self) -> str:
        every = f", N a multiple of {self.period}" if self.period > 1 else ""
        return f"{self.pairs}  (N >= {self.least}{every})"


def closed_form(keep: Expr) -> ClosedForm | None:
    """The number of live pairs as a formula.

    Beyond all constants of the mask the count is a quasi-polynomial of degree 2 (Ehrhart), so a
    polynomial through enough exact counts of one residue class is exact there; three more counts
    check it. None if counting is too hard or the check fails.
    """
    if E.arrays(veiled(keep)):
        return None
    period = lcm(1, *(n.den for n in E.walk(keep) if isinstance(n, (E.Mod, E.FloorDiv))))
    defaults = E.params(keep)
    reach = sum(_constants(keep))
    least = -(-(2 * reach + 2) // period) * period
    if period > 1 << 14 or least > 1 << 26:
        return None
    import sympy

    symbols = [sympy.Symbol(name, integer=True, positive=True) for name in ("N", *defaults)]
    start = (least, *defaults.values())
    monomials = [m for m in product(range(3), repeat=len(symbols)) if sum(m) <= 2]
    points = list(_points(start, period, len(symbols), len(monomials) + 3))
    counts = [
        count_pairs(keep, p[0], p[0], dict(zip(defaults, p[1:], strict=True))) for p in points
    ]
    if any(count is None for count in counts):
        return None
    return _fit(symbols, monomials, points, counts, least, period)


def _constants(keep: Expr) -> Iterator[int]:
    """The magnitudes of the constants and scaled parameters; counts may bend below their sum."""
    for node in E.walk(keep):
        if isinstance(node, E.Sum):
            yield abs(node.const)
            yield from (abs(c) * t.default for c, t in node.terms if isinstance(t, E.Param))
        elif isinstance(node, E.Member):
            yield from (abs(bound) for pair in node.ranges for bound in pair)
        elif isinstance(node, E.Param):
            yield node.default


def _points(
    start: tuple[int, ...], period: int, variables: int, count: int
) -> Iterator[tuple[int, ...]]:
    """A simplex of points that determines degree 2, then a few more."""
    steps = sorted(product(range(4), repeat=variables), key=lambda s: (sum(s), s))
    for step in steps[:count]:
        yield tuple(
            base + jump * (period if index == 0 else 1)
            for index, (base, jump) in enumerate(zip(start, step, strict=True))
        )


def _fit(
    symbols: list[sympy.Symbol],
    monomials: list[tuple[int, ...]],
    points: list[tuple[int, ...]],
    counts: list[int | None],
    least: int,
    period: int,
) -> ClosedForm | None:
    """The polynomial through the counts; None if no polynomial goes through all of them."""
    import sympy

    table = sympy.Matrix([
        [sympy.prod(x**e for x, e in zip(point, m, strict=True)) for m in monomials]
        for point in points
    ])  # fmt: skip
    try:
        solution, free = table.gauss_jordan_solve(sympy.Matrix(counts))
    except ValueError:
        return None
    solution = solution.subs(dict.fromkeys(free, 0))
    pairs = sum(
        c * sympy.prod(s**e for s, e in zip(symbols, m, strict=True))
        for c, m in zip(solution, monomials, strict=True)
    )
    return ClosedForm(sympy.sympify(pairs), least, period)
