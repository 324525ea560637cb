"""Compare a plan with dense attention: pairs, FLOPs, bytes, and the length from which it wins.

Dense attention means causal attention if the mask is proved to be causal, and attention over all
pairs otherwise. All numbers are for one head at n_q = n_kv = N.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from maskc.analysis.counts import closed_form, count_pairs
from maskc.core import expr as E
from maskc.core.coefficients import card_of
from maskc.core.expr import Expr
from maskc.core.problem import Direction
from maskc.core.selection import Selection
from maskc.ir.types import MaskIR
from maskc.plan.cost import USUAL_HEADS
from maskc.plan.explain import SCORES, wrapped
from maskc.plan.predict import milliseconds
from maskc.plan.types import KernelPlan

_N = sympy.Symbol("N", integer=True, positive=True)
_SHARES = ((1, "fewer"), (2, "half"), (10, "a tenth"))
_STEP = 128
"""Lengths at which predictions are compared are multiples of this."""
_LONGEST, _LONGEST_COUNTED = 1 << 16, 1 << 12
"""The longest length for predictions; and if tiles are counted because there are no closed
forms."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The number of pairs per head, in N and the mask's parameters."""

    formula: sympy.Expr
    least: int
    """The formula holds for N from here on."""
    period: int
    """It holds for multiples of this."""
    exact: bool
    """Whether it is an exact count instead of an upper bound."""

    @property
    def order(self) -> str:
        """The growth for long sequences, as O(N*w)."""
        leading = _leading(self.formula)
        _, factors = leading.as_coeff_Mul()
        return f"O({factors})"

    @property
    def degree(self) -> int:
        """The power of N in it."""
        return int(sympy.Poly(self.formula, _N).degree()) if self.formula != 0 else 0


def pairs_of(ir: MaskIR) -> Pairs | None:
    """Return the pairs of one mask; for run-time selections the largest number they keep. None if
    the mask reads other data, or there is no closed form."""
    rest = _unchosen(ir)
    form = None if rest is None else closed_form(rest)
    if form is None:
        return None
    kept = sum(selection.k * selection.block for selection in ir.selections) * _N
    return Pairs(sympy.expand(form.pairs + kept), form.least, form.period, not ir.selections)


def kept_at_most(ir: MaskIR, n_q: int, n_kv: int) -> int | None:
    """Return a bound on the pairs of a head that a mask with run-time selections keeps, with
    parameters at their defaults; None if the mask reads other data, or counting is too hard."""
    rest = _unchosen(ir)
    total = None if rest is None else count_pairs(rest, n_q, n_kv, {})
    for selection in ir.selections:
        if total is None:
            return None
        most = selection.k * selection.block * n_q
        counts = [
            None if E.arrays(one) else count_pairs(one, n_q, n_kv, {}) for one in selection.allowed
        ]
        candidates = [most if count is None else count for count in counts]
        total += min(most, max(candidates))
    return total


def _unchosen(ir: MaskIR) -> Expr | None:
    """Return the mask without chosen pairs, in which selections remove nothing; None if it reads
    other data."""
    names = {selection.name for selection in ir.selections}

    def known(node: Expr) -> Expr | None:
        reads = isinstance(node, E.Cmp) and names.intersection(E.arrays(node))
        return E.Truth(node.op == "==") if isinstance(node, E.Cmp) and reads else None

    return E.transform(ir.keep, known) if names.issuperset(E.arrays(ir.keep)) else None


def compared_with_dense(
    plan: KernelPlan, irs: tuple[MaskIR, ...], dense: KernelPlan, name: str
) -> Iterator[str]:
    """Yield lines that compare a plan with the plan of dense attention for the same problem.

    Args:
        irs: the distinct masks before planning, with their selections.
        dense: the plan of a mask without data, parameters and differences between heads.
        name: its name.
    """
    problem = plan.problem
    whole = pairs_of(dense.masks[0].ir)
    for selection in {one.name: one for ir in irs for one in ir.selections}.values():
        yield from wrapped("keeps", _kept(plan, selection))
    if whole is None:
        return
    flops = sympy.expand(2 * (problem.head_dim + problem.head_dim_v) * whole.formula)
    yield from wrapped("dense", f"{name}: {whole.formula} pairs, {whole.order}; forward {flops}")
    for index, ir in enumerate(irs):
        pairs = pairs_of(ir)
        if pairs is None:
            continue
        head = ""
        if len(irs) > 1:
            heads = [str(h) for h, which in enumerate(plan.of_head) if which == index]
            head = f"head{'s' * (len(heads) > 1)} {', '.join(heads)}: "
        yield from wrapped("sparse", head + _reduction(ir, pairs, whole))
    size = problem.dtype.itemsize
    yield from wrapped(
        "naive", f"unfused attention stores {size * _N**2} bytes of scores per head, and "
        "as many of weights; maskc stores neither",
    )  # fmt: skip
    same = all(ir.keep == dense.masks[0].ir.keep for ir in irs)
    if text := "" if same else _predicted(plan, dense, name):
        yield from wrapped("wins", text)


def _kept(plan: KernelPlan, one: Selection) -> str:
    """Describe the cost of a selection: pairs kept, pairs ranked, and the kernels that run."""
    most = one.k * one.block
    forms = [closed_form(allowed) if not E.arrays(allowed) else None for allowed in one.allowed]
    ranked = "its candidates" if forms[0] is None else f"{forms[0].pairs} pairs"
    if plan.gathering is not None:
        runs = "its keys are gathered, so what runs is what is kept"
    elif plan.thresholds:
        runs = "the tiles of all candidates run"
    else:
        runs = "tiles with a chosen key run whole"
    by = SCORES[one.score]
    kept = f"at most {most} keys a query, {most * _N} pairs"
    return f"{one.name}: {kept}; ranks {ranked} by {by}; {runs}"


def _reduction(ir: MaskIR, pairs: Pairs, whole: Pairs) -> str:
    """Return by which factor pairs are reduced, and from which lengths."""
    if pairs.formula == 0:
        return "no pairs"
    ratio = sympy.cancel(_leading(whole.formula) / _leading(pairs.formula))
    most = "" if pairs.exact else "at most "
    text = f"{most}{pairs.formula} pairs, {pairs.order}"
    if ratio == 1:
        return f"{text}: as many for long sequences"
    text += f": {ratio} x fewer for long sequences"
    values = {sympy.Symbol(n, integer=True, positive=True): v for n, v in E.params(ir.keep).items()}
    formula = pairs.formula.subs(values)
    lengths = [
        f"{word} from N = {n}"
        for share, word in _SHARES
        if (n := _from(share, formula, pairs, whole, ir)) is not None
    ]
    every = f", for multiples of {pairs.period}" if pairs.period > 1 else ""
    return f"{text}; {', '.join(lengths)}{every}" if lengths else text


def _from(share: int, formula: sympy.Expr, pairs: Pairs, whole: Pairs, ir: MaskIR) -> int | None:
    """Return the least N, a multiple of the period, from which the mask has at most 1 / share of
    dense attention's pairs (for share 1: fewer pairs); None if there is none."""
    difference = sympy.Poly(whole.formula - share * formula, _N)
    if difference.LC() <= 0:
        return None
    last = max(map(sympy.floor, sympy.real_roots(difference)), default=sympy.Integer(0))
    step = pairs.period
    n = max(int(last), 0) // step * step
    while n < 1 or difference.eval(n) < (1 if share == 1 else 0):
        n += step
    least = -(-max(pairs.least, whole.least) // step) * step
    if n > least or not pairs.exact:
        return max(n, least)
    return _counted(share, pairs, whole, ir)


def _counted(share: int, kept: Pairs, whole: Pairs, ir: MaskIR) -> int | None:
    """Find the crossover at lengths below the range of the formula, by exact counts."""
    n = max(kept.least, whole.least) // kept.period * kept.period
    low, high = 0, n  # in low it is not so; from high on it is
    while high - low > kept.period:
        middle = (low + high) // 2 // kept.period * kept.period
        middle = middle if middle > low else low + kept.period
        pairs = count_pairs(ir.keep, middle, middle, {})
        if pairs is None:
            return None
        dense = int(whole.formula.subs(_N, middle))
        fewer = pairs < dense if share == 1 else share * pairs <= dense
        low, high = (low, middle) if fewer else (middle, high)
    return high


def _leading(formula: sympy.Expr) -> sympy.Expr:
    """The terms of the highest power of N."""
    poly = sympy.Poly(formula, _N)
    factor = poly.LC()
    if names := sorted(factor.free_symbols, key=str):
        inner = sympy.Poly(factor, *names)
        terms = (
            value * sympy.prod(x**e for x, e in zip(names, powers, strict=True))
            for powers, value in inner.terms() if sum(powers) == inner.total_degree()
        )  # fmt: skip
        factor = sum(terms)
    return factor * _N ** poly.degree()


def _predicted(plan: KernelPlan, dense: KernelPlan, name: str) -> str:
    """The length from which predicted times are shorter; empty if nothing is predicted."""
    card = card_of(plan.target.name)
    if card is None or plan.chooser is not None or plan.gathering is not None:
        return ""
    heads = plan.problem.n_heads or USUAL_HEADS
    times: dict[int, bool | None] = {}

    def wins(n: int) -> bool | None:
        if n not in times:
            sparse, other = (
                milliseconds(candidate, Direction.forward, n, n, heads)
                for candidate in (plan, dense)
            )
            times[n] = None if sparse is None or other is None else sparse < other
        return times[n]

    closed = all(mask.recipe.loops is not None for mask in plan.masks)
    n = longest = _LONGEST if closed else _LONGEST_COUNTED
    if wins(n) is None:
        return ""
    where = f"predicted for an {card.name}, {heads} heads, forward"
    if not wins(n):
        return f"{where}: not faster than {name} at N = {longest}"
    while n > _STEP and wins(n // 2):
        n //= 2
    low, high = n // 2 // _STEP, n // _STEP
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle * _STEP) else (middle, high)
    return f"{where}: faster than {name} from about N = {high * _STEP} on"
