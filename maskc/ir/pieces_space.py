"""The pairs of a mask as isl sees them, and the questions every kind of piece asks about them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.pieces_read import PieceReader
from maskc.ir.sets import (
    TooHard,
    budget,
    domain,
    greatest,
    isl_names,
    least,
    token_universe,
)

_PARAM, _SET = isl.dim_type.param, isl.dim_type.set


_OPERATIONS = 60_000
"""isl's budget for one question: about .06 s."""

_PATIENCE = 3
"""Number of questions that may fail by budget before later ones are skipped."""

_Answer = TypeVar("_Answer")


class Space:
    """The pairs [q, k] of one mask's lengths and parameters, and isl's budget for them."""

    def __init__(self, keep: Expr) -> None:
        self.defaults = E.params(keep)
        self.universe = token_universe(keep)
        self.inside = domain(self.universe)
        self.reader = PieceReader(("q", "k"), self.defaults)
        self.of_query, self.of_key = (
            PieceReader(("q",), self.defaults),
            PieceReader(("k",), self.defaults),
        )
        self._patience = _PATIENCE

    def ask(self, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """Return the answer, or `otherwise` if it is too hard or too many questions were."""
        if not self._patience:
            return otherwise
        try:
            with budget(_OPERATIONS):
                return question()
        except TooHard:
            self._patience -= 1
            return otherwise

    @cached_property
    def square(self) -> isl.Set:
        """The points where lengths are equal."""
        return isl.Set(self.universe.prefix + "{ : n_q = n_kv }")

    @cached_property
    def all_queries(self) -> isl.Set:
        return self.inside.project_out(_SET, 1, 1)

    @cached_property
    def all_keys(self) -> isl.Set:
        return self.inside.project_out(_SET, 0, 1)

    def queries_formula(self, queries: isl.Set) -> Expr:
        """A set of [q] inside the lengths as a formula over q."""
        return self.of_query.condition(_known(queries, self.all_queries))

    def keys_formula(self, keys: isl.Set) -> Expr:
        """A set of [k] as a formula over k."""
        return self.of_key.condition(_known(keys, self.all_keys))

    def formula(self, pairs: isl.Set) -> Expr:
        """A set of pairs inside the lengths as a formula over q and k."""
        return self.reader.condition(_known(pairs, self.inside))

    def single(self, pairs: isl.Set) -> isl.BasicSet | None:
        """The one conjunction a set is, if it is one."""
        hull = pairs.simple_hull()
        if isl.Set.from_basic_set(hull).is_subset(pairs):
            return hull
        return None

    # ------------------------------------------------------------ shapes

    def _by_default(self, points: isl.Set) -> isl.Set:
        """The hull of a set, its parameters at their defaults."""
        points = isl.Set.from_basic_set(points.simple_hull())
        for name, default in self.defaults.items():
            where = points.find_dim_by_name(_PARAM, *isl_names([name]))
            points = points.fix_val(_PARAM, where, isl.Val(default))
        return points

    def few(self, points: isl.Set) -> bool:
        """Whether a set of [x] has a bounded spread, whatever the lengths."""
        if points.is_empty():
            return True
        points = self._by_default(points)
        deltas = isl.Map.from_domain_and_range(points, points).deltas()
        deltas = deltas.project_out(_PARAM, 0, deltas.dim(_PARAM))
        return deltas.is_empty() or greatest(deltas, 0).is_int()

    def near_diagonal(self, pairs: isl.Set) -> bool:
        """Whether q - k, or position - k, is bounded, whatever the lengths."""
        hull = self._by_default(pairs)
        for offset in ("n_kv - n_q", "0"):
            deltas = hull.apply(self.universe.map(f"{{ [q, k] -> [q + {offset} - k] }}"))
            deltas = deltas.project_out(_PARAM, 0, deltas.dim(_PARAM))
            if deltas.is_empty() or (greatest(deltas, 0).is_int() and least(deltas, 0).is_int()):
                return True
        return False

    def whatever_lengths(self, points: isl.Set) -> isl.Set:
        """The points that a set holds at some lengths, at all lengths."""
        some = points.project_out(_PARAM, 0, 2)
        return some.align_params(self.inside.get_space())


def _known(points: isl.Set, inside: isl.Set) -> isl.Set:
    return points.coalesce().gist(inside).coalesce()
