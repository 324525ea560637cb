"""Lifts constants out of a formula: masks that differ only there share a kernel.

The constant part of every comparison with q or k becomes an argument `c0`, `c1`, ...; divisors,
residues and coefficients stay, they shape the kernel. Whatever depends on lengths or parameters
becomes an argument wherever it stands, so a predicate reads nothing but q, k and arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.expr import Expr


@dataclass(frozen=True, slots=True)
class Lifted:
    """A formula and the values of its arguments."""

    shape: Expr
    """Over q, k, arrays and c0, c1, ..."""
    args: tuple[Expr, ...]
    """Value of each argument, over n_q, n_kv and parameters."""
    sources: tuple[tuple[Expr, Expr], ...]
    """(comparison of `shape`, the comparison of the mask it stands for)."""


def lift(keep: Expr) -> Lifted:
    """Split a mask into its shape and its arguments.

    Arguments are numbered in an order that ignores their values, so that equal shapes have equal
    text.
    """
    lifter = _Lifter()
    for atom in _ordered(keep):
        lifter.lifted(atom)
    return Lifted(
        E.transform(keep, lifter.known.get), tuple(lifter.args), tuple(lifter.sources.items())
    )


_HOST = ("n_q", "n_kv")


def _is_host(term: Expr) -> bool:
    """Whether a term is known before the kernel starts."""
    return not E.arrays(term) and all(name in _HOST for name in E.symbols(term))


def _ordered(keep: Expr) -> list[Expr]:
    """The comparisons of a formula, alternatives sorted by what they are without constants."""
    if isinstance(keep, (E.All, E.Any)):
        terms = sorted(keep.terms, key=lambda term: (_skeleton(term), term.key))
        return [atom for term in terms for atom in _ordered(term)]
    return [keep] if isinstance(keep, (E.Cmp, E.Member)) else []


def _skeleton(term: Expr) -> str:
    """Text of a term with a blank for every argument."""
    if isinstance(term, (E.All, E.Any)):
        return f"{type(term).__name__}({sorted(map(_skeleton, term.terms))})"
    if isinstance(term, (E.Cmp, E.Member)):
        return _Lifter(blank=True).lifted(term).key
    return term.key


class _Lifter:
    def __init__(self, blank: bool = False) -> None:
        self.blank = blank
        self.args: list[Expr] = []
        self.sources: dict[Expr, Expr] = {}
        self.known: dict[Expr, Expr] = {}

    def _argument(self, value: Expr) -> Expr:
        """A new argument; offsets between lengths alone are shared."""
        if self.blank:
            return E.Sym("c")
        constant = E.as_const(value) is not None or getattr(value, "const", 0)
        shared = not constant and not E.params(value)
        if shared and value in self.args:
            return E.Sym(f"c{self.args.index(value)}")
        self.args.append(value)
        return E.Sym(f"c{len(self.args) - 1}")

    def lifted(self, node: Expr) -> Expr:
        """What a comparison becomes."""
        if node not in self.known:
            if isinstance(node, E.Member):
                made: Expr = E.Member(self._inner(node.value), node.ranges, node.inside)
            else:
                made = E.Cmp(node.op, self._compared(node))
            self.known[node] = made
            self.sources.setdefault(made, node)
        return self.known[node]

    def _compared(self, node: E.Cmp) -> Expr:
        host, rest = _split(node.lhs)
        rest = [(c, self._inner(t)) for c, t in rest]
        reads = any(E.arrays(term) for _, term in rest)
        number = E.as_const(host)
        if number is not None and (reads or node.op != ">="):
            return E.linear(number, rest)
        return E.add(self._argument(host), E.linear(0, rest))

    def _inner(self, expr: Expr) -> Expr:
        """A term inside a comparison: its length-dependent parts become arguments."""
        if _is_host(expr):
            return expr if E.as_const(expr) is not None else self._argument(expr)
        match expr:
            case E.Sym():
                return expr
            case E.Load(array, index):
                return E.Load(array, tuple(map(self._inner, index)))
            case E.FloorDiv(num, den):
                return E.FloorDiv(self._inner(num), den)
            case E.Mod(num, den):
                return E.Mod(self._inner(num), den)
            case E.Min(args):
                return E.Min(tuple(map(self._inner, args)))
            case E.Max(args):
                return E.Max(tuple(map(self._inner, args)))
        host, rest = _split(expr)
        if E.as_const(host) is None:
            host = self._argument(host)
        return E.linear(0, [(1, host), *((c, self._inner(t)) for c, t in rest)])


def _split(expr: Expr) -> tuple[Expr, list[tuple[int, Expr]]]:
    """(part known on the host, the other terms)."""
    constant, terms = (expr.const, expr.terms) if isinstance(expr, E.Sum) else (0, ((1, expr),))
    host = E.linear(constant, (pair for pair in terms if _is_host(pair[1])))
    return host, [pair for pair in terms if not _is_host(pair[1])]
