"""Formulas as integer sets: the only place where formulas meet isl.

Data are unknown to isl. An upper bound takes every comparison that reads a data array as true, a
lower bound takes it as false. Without data both are the mask itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from threading import RLock

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.forks import wait_before_fork

LOCK = RLock()
"""isl's context is not thread-safe: hold this around every use."""
wait_before_fork(LOCK)

OPERATIONS = 1_000_000
"""Default budget of isl operations for one question."""


class TooHard(Exception):
    """isl ran out of its budget; an exact numeric path decides instead."""


@contextmanager
def budget(operations: int = OPERATIONS) -> Iterator[None]:
    """Stop isl after so many operations.

    Raises:
        TooHard: the budget is spent.
    """
    context = isl.DEFAULT_CONTEXT
    with LOCK:
        context.set_max_operations(operations)
        context.reset_operations()
        try:
            yield
        except isl.Error as error:
            raise TooHard(str(error)) from None
        finally:
            context.set_max_operations(0)


def least(points: isl.Set, axis: int) -> isl.Val:
    """The smallest coordinate; minus infinity where there is none, infinity of an empty set.

    isl's dim_min_val is wrong for unions that have an empty part, where isl has not noticed that it
    is empty (islpy 2026.2.2): q = 0 was the least of a set with 3 <= q.
    """
    lows = (part.dim_min_val(axis) for part in convex_parts(points))
    return reduce(isl.Val.min, lows, isl.Val.infty(isl.DEFAULT_CONTEXT))


def greatest(points: isl.Set, axis: int) -> isl.Val:
    """The largest coordinate; infinity where there is none, minus infinity of an empty set."""
    highs = (part.dim_max_val(axis) for part in convex_parts(points))
    return reduce(isl.Val.max, highs, isl.Val.neginfty(isl.DEFAULT_CONTEXT))


def convex_parts(points: isl.Set) -> list[isl.Set]:
    """The parts of a union that have points."""
    return [isl.Set.from_basic_set(x) for x in points.get_basic_sets() if not x.is_empty()]


@contextmanager
def unstopped() -> Iterator[None]:
    """Let isl finish one question that it must not be stopped in, inside a budget or outside.

    isl's generator of loops frees an expression twice when its operations run out (seen with
    islpy 2026.2.2), which ends the process. What the question costs still counts: a budget around
    it is found to be spent once the question is answered.

    Raises:
        TooHard: through the budget around it.
    """
    context = isl.DEFAULT_CONTEXT
    with LOCK:
        before = context.get_max_operations()
        context.set_max_operations(0)
        try:
            yield
        finally:
            context.set_max_operations(before)
        isl.Val.zero(context)  # isl counts allocations: this one fails where the budget is spent


_MARK = "'"
"""The end of a parameter's name in isl, where no name of a user can have it: a parameter `x` is not
the x of a set."""


def isl_names(params: Iterable[str]) -> tuple[str, ...]:
    """The names of a mask's parameters in isl."""
    return tuple(name + _MARK for name in params)


def param_of(name: str) -> str | None:
    """The parameter that has this name in isl; None if it is a length or a constant."""
    return name.removesuffix(_MARK) if name.endswith(_MARK) else None


class Universe:
    """A space of integer points with named dimensions and parameters, and formulas in it."""

    def __init__(
        self, dims: tuple[str, ...], params: tuple[str, ...], counts: tuple[str, ...] = ()
    ) -> None:
        """`params` as isl has them; `counts`: the mask's parameters, which are never negative."""
        self.dims, self.params, self.counts = dims, params, counts
        self.space = isl.Space.create_from_names(
            isl.DEFAULT_CONTEXT, set=list(dims), params=list(params)
        )
        local = isl.LocalSpace.from_space(self.space)
        self._zero = isl.Aff.zero_on_domain(local)
        kinds = [(isl.dim_type.param, params), (isl.dim_type.set, dims)]
        self._symbols = {
            name: isl.PwAff.from_aff(isl.Aff.var_on_domain(local, kind, index))
            for kind, names in kinds
            for index, name in enumerate(names)
        }
        self.prefix = f"[{', '.join(params)}] -> "
        """Prefix of isl's texts of sets and maps over these parameters."""
        self._maps: dict[str, isl.Map] = {}

    def map(self, text: str) -> isl.Map:
        """A map over the parameters, from isl's text."""
        if text not in self._maps:
            self._maps[text] = isl.Map(self.prefix + text)
        return self._maps[text]

    def consecutive(self, pairs: isl.Set) -> bool:
        """Whether the last dimension of a set has no gap, whatever the others are."""
        *others, last = (f"i{number}" for number in range(pairs.dim(isl.dim_type.set)))
        line = "".join(f"{name}, " for name in others)
        text = f"{{ [{line}{last}] -> [{line}x] : x "
        after, before = (self.map(f"{text}{sign} {last} }}") for sign in (">=", "<="))
        return pairs.apply(after).intersect(pairs.apply(before)).is_subset(pairs)

    def shifts(self, pairs: isl.Set, inside: isl.Set) -> bool:
        """Whether pairs [q, k] depend on q - k alone, inside the lengths."""
        on = self.map("{ [q, k] -> [q + 1, k + 1] }")
        moved, back = (pairs.apply(way).intersect(inside) for way in (on, on.reverse()))
        return moved.is_subset(pairs) and back.is_subset(pairs)

    def set(self, formula: Expr, opaque: bool | None = None) -> isl.Set:
        """The points where the formula holds.

        Args:
            opaque: truth value of comparisons that read data arrays; None raises an error for them.
        """
        match formula:
            case E.Truth(value):
                return isl.Set.universe(self.space) if value else isl.Set.empty(self.space)
            case E.All(terms):
                return reduce(isl.Set.intersect, (self.set(t, opaque) for t in terms))
            case E.Any(terms):
                return reduce(isl.Set.union, (self.set(t, opaque) for t in terms)).coalesce()
        if opaque is not None and E.arrays(formula):
            return self.set(E.Truth(opaque))
        match formula:
            case E.Cmp(op, lhs):
                side = self.integer(lhs)
                if op == "!=":
                    return side.non_zero_set()
                return side.zero_set() if op == "==" else side.nonneg_set()
            case E.Member(of, ranges, inside):
                members = self._member(self.integer(of), ranges)
                return members if inside else members.complement()
        raise TypeError(f"not a condition: {formula!r}")

    def _member(self, value: isl.PwAff, ranges: tuple[tuple[int, int], ...]) -> isl.Set:
        members = isl.Set.empty(self.space)
        for low, high in ranges:
            inside = value.ge_set(self._const(low)).intersect(value.le_set(self._const(high)))
            members = members.union(inside)
        return members

    def _const(self, value: int) -> isl.PwAff:
        return isl.PwAff.from_aff(self._zero.add_constant_val(isl.Val(value)))

    def integer(self, expr: Expr) -> isl.PwAff:
        """The value of an integer formula at every point."""
        match expr:
            case E.Sum(constant, terms):
                total = self._const(constant)
                for coefficient, term in terms:
                    total = total.add(self.integer(term).scale_val(isl.Val(coefficient)))
                return total
            case E.Sym(name):
                return self._symbols[name]
            case E.Param(name):
                return self._symbols[name + _MARK]
            case E.FloorDiv(num, den):
                return self.integer(num).scale_down_val(isl.Val(den)).floor()
            case E.Mod(num, den):
                return self.integer(num).mod_val(isl.Val(den))
            case E.Min(args):
                return reduce(isl.PwAff.min, map(self.integer, args))
            case E.Max(args):
                return reduce(isl.PwAff.max, map(self.integer, args))
        raise TypeError(f"isl cannot hold {type(expr).__name__}")


def token_universe(keep: Expr) -> Universe:
    """The space of pairs [q, k] with the lengths and the formula's parameters."""
    names = tuple(E.params(keep))
    return Universe(("q", "k"), ("n_q", "n_kv", *isl_names(names)), names)


def domain(universe: Universe) -> isl.Set:
    """The set 0 <= q < n_q, 0 <= k < n_kv; parameters of masks are >= 0."""
    inside = E.conj(E.ge(E.Q, E.ZERO), E.lt(E.Q, E.N_Q), E.ge(E.K, E.ZERO), E.lt(E.K, E.N_KV))
    counts = (E.ge(E.Param(name, 0), E.ZERO) for name in universe.counts)
    return universe.set(E.conj(inside, *counts))


def mask_set(
    keep: Expr, opaque: bool | None = None, params: Mapping[str, int] | None = None
) -> isl.Set:
    """The mask as a set of [q, k], symbolic in the lengths and in parameters not given."""
    keep = E.with_values(keep, params) if params else keep
    universe = token_universe(keep)
    return universe.set(keep, opaque).intersect(domain(universe)).coalesce()
