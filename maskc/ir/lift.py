"""Lifts numbers out of a formula: masks that differ only there share a kernel.

The constant part of comparisons, of minima and maxima, and what is added under a division or a
remainder become arguments `c0`, `c1`, ...; divisors and coefficients stay, they shape the kernel.
So does zero where nothing is added or compared with, `q == k` or `q // 64 == k // 64`, and so do
the comparisons of two array elements that intervals and trees consist of. Whatever depends on
lengths or parameters becomes an argument wherever it stands, so a predicate reads nothing but q, k
and arguments. Ids are arguments, too, while they are few; more of them are bits that the kernel
reads from an array `ids:0`, `ids:1`, ..., which is made anew for every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from maskc.core import expr as E
from maskc.core.bundle import IdList
from maskc.core.expr import Expr
from maskc.core.widths import ID_LIST, highest, lowest, magnitude
from maskc.ir.id_lists import FEW_RANGES

_NEAR = 4
"""Sum of the coefficients in a value up to which bits for all its values are few."""


@dataclass(frozen=True, slots=True)
class Lifted:
    """A formula and the values of its arguments."""

    shape: Expr
    """Over q, k, arrays and c0, c1, ..."""
    args: tuple[Expr, ...]
    """Value of each argument, over n_q, n_kv and parameters."""
    sources: tuple[tuple[Expr, Expr], ...]
    """(comparison of `shape`, the comparison of the mask it stands for)."""
    rests: tuple[Expr | None, ...] = ()
    """For each argument that occurs in one comparison only, a bound on the absolute value of the
    other terms; None for other arguments."""
    counts: frozenset[str] = frozenset()
    """The arguments that are never negative."""
    lists: tuple[IdList, ...] = ()
    """The ids of `ids:0`, `ids:1`, ..."""


@lru_cache(maxsize=1 << 8)
def lift(keep: Expr, lists: bool = True) -> Lifted:
    """Split a mask into its shape and its arguments.

    Arguments are numbered in an order that ignores their values, so that equal shapes have equal
    text.

    Args:
        lists: whether many ids become bits; they stay comparisons else.
    """
    lifter = _Lifter(lists)
    for atom in _ordered(keep, lists):
        lifter.lifted(atom)
    return Lifted(
        E.transform(keep, lifter.known.get), tuple(lifter.args), tuple(lifter.sources.items()),
        tuple(lifter.rests), frozenset(lifter.counts), tuple(lifter.lists),
    )  # fmt: skip


_HOST = ("n_q", "n_kv")


def _is_host(term: Expr) -> bool:
    """Whether a term is known before the kernel starts."""
    return not E.arrays(term) and all(name in _HOST for name in E.symbols(term))


def _ordered(keep: Expr, lists: bool) -> list[Expr]:
    """Return the comparisons of a formula, with alternatives sorted by their shape without
    constants."""
    if isinstance(keep, (E.All, E.Any)):
        terms = sorted(keep.terms, key=lambda term: (_skeleton(term, lists), term.key))
        return [atom for term in terms for atom in _ordered(term, lists)]
    return [keep] if isinstance(keep, (E.Cmp, E.Member)) else []


def _skeleton(term: Expr, lists: bool) -> str:
    """The text of a term with a blank for every argument."""
    if isinstance(term, (E.All, E.Any)):
        return f"{type(term).__name__}({sorted(_skeleton(part, lists) for part in term.terms)})"
    if isinstance(term, (E.Cmp, E.Member)):
        return _Lifter(lists, blank=True).lifted(term).key
    return term.key


class _Lifter:
    def __init__(self, with_lists: bool, blank: bool = False) -> None:
        self.with_lists, self.blank = with_lists, blank
        self.args: list[Expr] = []
        self.rests: list[Expr | None] = []
        self.counts: set[str] = set()
        self.lists: list[IdList] = []
        self.sources: dict[Expr, Expr] = {}
        self.known: dict[Expr, Expr] = {}
        self.inside: dict[Expr, Expr] = {}

    def _argument(self, value: Expr, rest: Expr | None = None) -> E.Sym:
        """A new argument; offsets between lengths alone are shared."""
        if self.blank:
            return E.Sym("c")
        offset: int = getattr(value, "const", 0)
        constant = E.as_const(value) is not None or offset != 0
        shared = not constant and not E.params(value)
        if shared and value in self.args:
            number = self.args.index(value)
            self.rests[number] = None
            return E.Sym(f"c{number}")
        self.args.append(value)
        self.rests.append(None if rest is None else magnitude(rest))
        return E.Sym(f"c{len(self.args) - 1}")

    def lifted(self, node: Expr) -> Expr:
        """The comparison in lifted form."""
        if node not in self.known:
            match node:
                case E.Member():
                    made = self._member(node)
                case E.Cmp(op):
                    made = E.Cmp(op, self._compared(node))
                case _:
                    raise TypeError(f"not a comparison: {node!r}")
            self.known[node] = made
            self.sources.setdefault(made, node)
        return self.known[node]

    def _member(self, node: E.Member) -> Expr:
        """A bit where there are many ids and each value has one, else comparisons."""
        few, value = len(node.ranges) <= FEW_RANGES, node.value
        host, rest = _split(value)
        if not few and self.with_lists and _is_near(value):
            number = 0 if self.blank else len(self.lists)
            low, high = lowest(value), highest(value)
            if not self.blank:
                self.lists.append(IdList(low, high, node.ranges))
            index = self._inner(E.sub(value, low))
            return E.Cmp("!=" if node.inside else "==", E.Load(f"{ID_LIST}{number}", (index,)))
        if not few:
            return E.Member(self._inner(value), node.ranges, node.inside)
        others = E.linear(0, [(c, self._inner(t)) for c, t in rest])
        tests = [self._within(host, others, *pair) for pair in node.ranges]
        for test in tests:  # before the whole, which is the one that stands for the node
            self.sources.setdefault(test, node)
        member = E.disj(*tests)
        return member if node.inside else E.negate(member)

    def _within(self, host: Expr, rest: Expr, low: int, high: int) -> Expr:
        """Whether host + rest is one of low .. high."""
        above = E.add(self._argument(E.sub(host, E.const(low)), rest), rest)
        if low == high:
            return E.Cmp("==", above)
        below = self._argument(E.sub(E.const(high), host), rest)
        return E.conj(E.Cmp(">=", above), E.Cmp(">=", E.sub(below, rest)))

    def _compared(self, node: E.Cmp) -> Expr:
        host, rest = _split(node.lhs)
        rest = [(c, self._inner(t)) for c, t in rest]
        number = E.as_const(host)
        if number is not None and _is_structure(node.op, number, rest):
            return E.linear(number, rest)
        others = E.linear(0, rest)
        return E.add(self._argument(host, others), others)

    def _inner(self, expr: Expr, below: bool = False) -> Expr:
        """A term inside a comparison: its numbers and length-dependent parts become arguments.

        Args:
            below: whether it is divided, so that a number in it is less than the divisor.
        """
        if _is_host(expr):
            return expr if expr == E.ZERO else self._argument(expr)
        if isinstance(expr, E.Sym):
            return expr
        if isinstance(expr, E.Sum):
            return self._sum(expr, below)
        if expr not in self.inside:  # the same term twice is computed once
            self.inside[expr] = self._term(expr)
        return self.inside[expr]

    def _term(self, expr: Expr) -> Expr:
        match expr:
            case E.Load(array, index):
                return E.Load(array, tuple(map(self._inner, index)))
            case E.FloorDiv(num, den):
                return E.FloorDiv(self._inner(num, True), den)
            case E.Mod(num, den):
                return E.Mod(self._inner(num, True), den)
            case E.Min(args):
                return E.Min(tuple(map(self._inner, args)))
            case E.Max(args):
                return E.Max(tuple(map(self._inner, args)))
        raise TypeError(f"not an integer formula: {expr!r}")

    def _sum(self, expr: Expr, below: bool) -> Expr:
        host, rest = _split(expr)
        if host != E.ZERO:
            known = E.as_const(host) is not None
            argument = self._argument(host)
            host = argument
            if below and known:
                self.counts.add(argument.name)
        return E.linear(0, [(1, host), *((c, self._inner(t)) for c, t in rest)])


def _is_structure(op: str, number: int, rest: list[tuple[int, Expr]]) -> bool:
    """Whether a number belongs to the compared terms: zero in an equality, and the ends of
    intervals in arrays."""
    if op != ">=":
        return number == 0
    return len(rest) > 1 and number in (0, -1) and any(E.arrays(term) for _, term in rest)


def _is_near(value: Expr) -> bool:
    """Whether bits for all values of a sum of q and k are few."""
    terms = [(c, t) for c, t in E.split_linear(value)[1] if not _is_host(t)]
    return all(isinstance(t, E.Sym) for _, t in terms) and sum(abs(c) for c, _ in terms) <= _NEAR


def _split(expr: Expr) -> tuple[Expr, list[tuple[int, Expr]]]:
    """(the part that the host knows, the other terms)."""
    constant, terms = (expr.const, expr.terms) if isinstance(expr, E.Sum) else (0, ((1, expr),))
    host = E.linear(constant, (pair for pair in terms if _is_host(pair[1])))
    return host, [pair for pair in terms if not _is_host(pair[1])]
