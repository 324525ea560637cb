"""Proved facts about a mask. Every fact is a proof; undecided questions stay unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import reduce

import islpy as isl
import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.id_lists import veiled
from maskc.ir.sampled_rows import TRIED, UNEQUAL, have_gaps, move_along, sampled_rows
from maskc.ir.sets import TooHard, Universe, budget, domain, token_universe
from maskc.ir.types import MaskIR


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about a mask and how it was decided."""

    name: str
    holds: bool | None
    """The answer; None if it is unknown."""
    where: str
    """The lengths for which the fact holds: "all lengths" or "n_q = n_kv"."""
    proof: str
    """The set inclusion that was decided."""

    def __str__(self) -> str:
        verdict = {True: "yes", False: "no", None: "unknown"}[self.holds]
        return f"{self.name}: {verdict} ({self.where}; {self.proof})"


@dataclass(frozen=True, slots=True)
class MaskFacts:
    """The facts a plan may rely on."""

    causal: Fact
    no_empty_row: Fact
    contiguous_rows: Fact
    translation_invariant: Fact

    def __iter__(self) -> Iterator[Fact]:
        yield from (getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class _View:
    """Lower and upper bounds of a mask; equal if it reads no data."""

    lower: isl.Set
    upper: isl.Set
    inside: isl.Set
    universe: Universe
    keep: Expr


_Test = Callable[[_View], bool]


def analyse(ir: MaskIR) -> MaskFacts:
    """Decide the facts of one head's mask."""
    keep = veiled(ir.keep)
    exact, views = not E.arrays(keep), _Views(keep)
    refuted = _refuted(keep, TRIED) if exact else frozenset()
    unequal = _refuted(keep, UNEQUAL) if exact else frozenset()
    return MaskFacts(*(
        Fact(name, False, "all lengths", proof) if name in refuted
        else _fact(views, exact, name, proof, test, name in unequal)
        for name, proof, test in (
            (_CAUSAL, "mask - {k <= p} is empty", _causal),
            (_NO_EMPTY_ROW, "rows - projection(mask) is empty", _no_empty_row),
            (_CONTIGUOUS, "row hull - mask is empty", _contiguous),
            (_SHIFTS, "mask shifted by (1, 1) stays in mask", _shifts),
        )
    ))  # fmt: skip


_CAUSAL, _NO_EMPTY_ROW = "causal", "no empty row"
_CONTIGUOUS, _SHIFTS = "contiguous rows", "translation invariant"


def _refuted(keep: Expr, lengths: tuple[tuple[int, int], ...]) -> frozenset[str]:
    """Names of facts that some rows of a mask without data contradict at some lengths."""
    wrong: set[str] = set()
    for positions, rows, after in sampled_rows(keep, E.params(keep), lengths):
        if (rows & (np.arange(rows.shape[1]) > positions[:, None])).any():
            wrong.add(_CAUSAL)
        if not rows.any(axis=1).all():
            wrong.add(_NO_EMPTY_ROW)
        if have_gaps(rows):
            wrong.add(_CONTIGUOUS)
        if not move_along(rows, after):
            wrong.add(_SHIFTS)
    return frozenset(wrong)


class _Views:
    """A mask's sets at all lengths and at equal ones, made once for all facts."""

    def __init__(self, keep: Expr) -> None:
        self._keep = keep
        self._made: dict[bool, _View | None] = {}

    def at(self, square: bool) -> _View:
        """The sets at all lengths >= 1, or at equal ones only.

        Raises:
            TooHard: isl needs too many operations.
        """
        if square not in self._made:
            self._made[square] = None  # unless it succeeds
            with budget():
                self._made[square] = _view(self._keep, square)
        view = self._made[square]
        if view is None:
            raise TooHard
        return view


def _fact(
    views: _Views, exact: bool, name: str, proof: str, test: _Test, only_square: bool = False
) -> Fact:
    """Try all lengths, then equal ones.

    Args:
        views: of the mask.
        exact: whether the mask reads no data: only then does a failed test refute the fact.
        name, proof: what the fact says.
        test: decides it.
        only_square: whether it is known not to hold at all lengths.
    """
    answer: bool | None = None
    for where, square in (("all lengths", False), ("n_q = n_kv", True))[only_square:]:
        try:
            view = views.at(square)
            with budget():
                answer = test(view) or (False if exact else None)
        except TooHard:
            answer = None
        if answer:
            return Fact(name, True, where, proof)
    return Fact(name, answer, "all lengths", proof)


def _view(keep: Expr, square: bool) -> _View:
    """The mask at all lengths >= 1, or at equal ones only."""
    universe = token_universe(keep)
    inside = domain(universe)
    if square:
        inside = inside.intersect(universe.set(E.eq(E.N_Q, E.N_KV)))
    lower = universe.set(keep, opaque=False).intersect(inside)
    reads = E.arrays(keep)
    upper = universe.set(keep, opaque=True).intersect(inside) if reads else lower
    return _View(lower, upper, inside, universe, keep)


def _causal(view: _View) -> bool:
    past = view.universe.set(E.le(E.K, E.add(E.Q, E.N_KV, E.scale(-1, E.N_Q))))
    return view.upper.is_subset(past)


def _no_empty_row(view: _View) -> bool:
    rows = _blind_to_own_keys(view)
    seen = view.lower.intersect(rows)
    left, right = (pairs.project_out(isl.dim_type.set, 1, 1) for pairs in (rows, seen))
    return left.is_subset(right)


def _blind_to_own_keys(view: _View) -> isl.Set:
    """Pairs of the rows that may not see the key at their own position; all pairs if no term of
    the mask keeps all these keys.

    Most masks keep these keys. A term without k is a small set, the projection of a mask a large
    one.
    """
    position = E.add(E.Q, E.N_KV, E.scale(-1, E.N_Q))
    terms = [E.substitute(term, {E.K: position}) for term in E.conjuncts(view.keep)]
    hiding = [term for term in terms if not view.inside.is_subset(view.universe.set(term, False))]
    if len(hiding) == len(terms):
        return view.inside
    blind = (E.negate(term) for term in (E.ge(position, E.ZERO), *hiding))
    return reduce(isl.Set.union, (view.universe.set(x, True) for x in blind)).intersect(view.inside)


def _contiguous(view: _View) -> bool:
    return view.lower.is_equal(view.upper) and view.universe.consecutive(view.lower)


def _shifts(view: _View) -> bool:
    same = view.lower.is_equal(view.upper)
    return same and view.universe.shifts(view.lower, view.inside)
