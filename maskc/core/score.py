"""Score formulas: real numbers over the score of a pair, its place and the call's tables.

A formula turns s = scale * q . k into the logit that softmax sees. `dsl/score_tracer` traces it
from the user's function, `analysis/score_slopes` differentiates it, `emit/score_text` prints it.
What passes between these stages is `Formula`: a tree of frozen nodes and the slots that it reads.

Indices and conditions on places are the integer formulas of `core/expr`, here also over the
sequence b; three nodes that masks lack join them (`Trunc`, `Product`, `Entry`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from maskc.core import expr as E
from maskc.core.expr import Expr, Pick, Term, transform, walk
from maskc.core.expr_text import Printer
from maskc.core.source import SourceLoc
from maskc.core.widths import INDEX

B = E.Sym("b")
"""The sequence of a pair, in addition to q, k and h of core/expr."""
MAX_SLOTS = 8
"""The most tables and parameters that a formula may read."""
MAX_RANK = 4
"""The most dimensions of a table."""


class Real(Term):
    """A formula whose value is a real number."""


class Test(Term):
    """A condition that is not one on integers alone."""


# ------------------------------------------------------------------ real numbers


@dataclass(frozen=True)
class Score(Real):
    """s: scale * q . k of the pair."""


@dataclass(frozen=True)
class Number(Real):
    """A literal."""

    value: float


@dataclass(frozen=True)
class Whole(Real):
    """An integer formula as a real number."""

    number: Expr


@dataclass(frozen=True)
class Read(Real):
    """An entry of a table; without indices, a parameter."""

    slot: str
    index: tuple[Expr, ...]


@dataclass(frozen=True)
class Call(Real):
    """One of FUNCTIONS of one or two real numbers."""

    function: str
    args: tuple[Real, ...]


@dataclass(frozen=True)
class Choice(Real):
    """`then` where the condition holds, `other` elsewhere."""

    condition: Term
    then: Real
    other: Real


@dataclass(frozen=True)
class Shared(Real):
    """A value that was computed before, by its number."""

    number: int


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the logit, ready to be printed."""

    shared: tuple[Real, ...]
    """Values that the others read as `Shared(0)`, `Shared(1)`, ..., each over those before."""
    results: tuple[Real, ...]
    """The results, one for each request."""


FUNCTIONS = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "min": 2, "max": 2, "neg": 1, "abs": 1, "exp": 1,
    "log": 1, "tanh": 1, "sqrt": 1, "sigmoid": 1, "erf": 1, "gelu": 1, "sin": 1, "cos": 1,
    "floor": 1, "sign": 1, "step": 1,
}  # fmt: skip
"""Names and numbers of arguments. step is 0 below 0, 1 above, and a half at 0."""


# ------------------------------------------------------------------ conditions


@dataclass(frozen=True)
class Less(Test):
    """left < right."""

    left: Real
    right: Real


@dataclass(frozen=True)
class Logic(Test):
    """`and` or `or` of two conditions, or `not` of one."""

    word: str
    terms: tuple[Term, ...]


def negated(condition: Term) -> Term:
    """The condition that it does not hold."""
    return E.negate(condition) if isinstance(condition, Expr) else Logic("not", (condition,))


def joined(word: str, one: Term, two: Term) -> Term:
    """Return the condition that both hold ("and"), or that one of them holds ("or")."""
    if isinstance(one, Expr) and isinstance(two, Expr):
        return E.conj(one, two) if word == "and" else E.disj(one, two)
    return Logic(word, (one, two))


# ------------------------------------------------------------------ integers that masks lack


@dataclass(frozen=True)
class Trunc(Expr):
    """A real number rounded towards zero."""

    value: Real


@dataclass(frozen=True)
class Product(Expr):
    """The product of two integers that vary."""

    left: Expr
    right: Expr


@dataclass(frozen=True)
class Entry(Expr):
    """An entry of a table of integers; without indices, an integer parameter."""

    slot: str
    index: tuple[Expr, ...]


# ------------------------------------------------------------------ the formula


@dataclass(frozen=True)
class Slot:
    """A table or a parameter that calls give."""

    name: str
    rank: int
    """Dimensions; 0 is a parameter."""
    integer: bool = False
    """Whether it holds integers, which only indices and conditions read."""


@dataclass(frozen=True)
class Formula:
    """The logit of a pair. Equal formulas share their kernels, so names here are plain numbers."""

    logit: Real
    slots: tuple[Slot, ...] = ()
    loc: SourceLoc | None = field(default=None, compare=False, repr=False)
    """The place where the user wrote it."""


def reads(node: Real) -> tuple[Read, ...]:
    """The entries of tables of real numbers that a formula reads, each once, in order."""
    return tuple(dict.fromkeys(part for part in walk(node) if isinstance(part, Read)))


def pair_read(logit: Real) -> Read | None:
    """Return the first read of a table with an entry for each pair: `bias[q, k]`, with heads and
    sequences in any order in front. Rows of such a table run along the keys."""

    def by_pair(index: tuple[Expr, ...]) -> bool:
        outer = index[:-2]
        return index[-2:] == (E.Q, E.K) and {*outer} <= {E.H, B} and len({*outer}) == len(outer)

    return next((read for read in reads(logit) if by_pair(read.index)), None)


def added(logit: Real) -> tuple[Real, ...]:
    """The terms that a formula adds to s, if that is all it does."""
    match logit:
        case Call("add", (left, right)):
            scored, other = (left, right) if by_score(left) else (right, left)
            if by_score(other) or not (scored == Score() or added(scored)):
                return ()
            return (*added(scored), other)
    return ()


def by_length(node: Term) -> bool:
    """Whether the value depends on the lengths, as distances of aligned positions do."""
    return any(part in (E.N_Q, E.N_KV) for part in walk(node))


def by_score(node: Term) -> bool:
    """Whether the value depends on the score."""
    return any(isinstance(part, Score) for part in walk(node))


def by_distance(node: Term) -> bool:
    """Whether it has one value for all pairs of a head with the same q - k."""
    if node in (E.Q, E.K):
        return False
    if isinstance(node, E.Sum):
        factors = {term: factor for factor, term in node.terms}
        if factors.pop(E.Q, 0) + factors.pop(E.K, 0):
            return False
        return all(map(by_distance, factors))
    return all(map(by_distance, node.parts))


def shift(logit: Real) -> Real | None:
    """Return the term that a formula adds to s, if that is all it does and pairs of a head with
    equal q - k get the same."""

    def adds(node: Real) -> bool:
        match node:
            case Score():
                return True
            case Call("add", (left, right)):
                scored, other = (left, right) if by_score(left) else (right, left)
                return not by_score(other) and adds(scored)
            case Call("sub", (left, right)):
                return not by_score(right) and adds(left)
        return False

    if not adds(logit) or not by_distance(logit):
        return None
    return transform(logit, lambda part: Number(0.0) if isinstance(part, Score) else None)


def cap(logit: Real) -> tuple[Real, Real] | None:
    """(height, rate) of a formula height * tanh(rate * s), where both are the same for all pairs of
    a head; None of any other."""

    def steady(node: Term) -> bool:
        return not any(isinstance(part, Score) or part in (E.Q, E.K) for part in walk(node))

    def factor(node: Real, of: Callable[[Real], bool]) -> tuple[Real, Real] | None:
        """(what is steady, what `of` accepts) of their product."""
        if of(node):
            return Number(1.0), node
        match node:
            case Call("mul", (left, right)):
                scored, other = (left, right) if by_score(left) else (right, left)
                if steady(other) and (factored := factor(scored, of)):
                    return Call("mul", (other, factored[0])), factored[1]
            case Call("div", (left, right)) if steady(right) and (factored := factor(left, of)):
                return Call("div", (factored[0], right)), factored[1]
        return None

    outer = factor(logit, lambda part: isinstance(part, Call) and part.function == "tanh")
    if outer is None or not isinstance(outer[1], Call):
        return None
    inner = factor(outer[1].args[0], lambda part: isinstance(part, Score))
    return None if inner is None else (outer[0], inner[0])


def capped(logit: Real) -> tuple[float | None, float, float] | None:
    """Return (cap, factor, shift) of a formula cap * tanh(factor * s / cap) + shift of literals, or
    (None, factor, shift) of factor * s + shift; None of any other."""

    def line(node: Real, of: Callable[[Real], bool]) -> tuple[float, float] | None:
        """(a, b) of a formula a * x + b, where `of` accepts x."""
        if of(node):
            return 1.0, 0.0
        if isinstance(node, Number):
            return 0.0, node.value
        if not isinstance(node, Call):
            return None
        lines = [line(arg, of) for arg in node.args]
        match node.function, lines:
            case "neg", [(a, b)]:
                return -a, -b
            case "add", [(a, b), (c, d)]:
                return a + c, b + d
            case "sub", [(a, b), (c, d)]:
                return a - c, b - d
            case "mul", [(a, b), (0.0, d)]:
                return a * d, b * d
            case "mul", [(0.0, b), (c, d)]:
                return b * c, b * d
            case "div", [(a, b), (0.0, d)] if d:
                return a / d, b / d
        return None

    tanh = next((x for x in walk(logit) if isinstance(x, Call) and x.function == "tanh"), None)
    inner = line(tanh.args[0] if tanh else logit, lambda x: isinstance(x, Score))
    outer = line(logit, lambda x: x == tanh) if tanh else (1.0, 0.0)
    if inner is None or outer is None or not all(map(math.isfinite, inner + outer)):
        return None
    (rate, inside), (height, shift) = inner, outer
    if tanh is None:
        return (None, rate, inside) if rate else None
    return (height, height * rate, shift) if height > 0 and rate and not inside else None


FAR = 2.0**20
"""Logits from here on are far from 0: in fp32 they have no digits left for weights."""


def _depends_on_place(node: Term) -> bool:
    """Return whether a query's or key's index occurs in a formula."""
    return any(part in (E.Q, E.K) for part in walk(node))


def may_be_far(logit: Real) -> bool:
    """Whether entries of tables, or literals, may take logits far from 0, as masks of `finfo.min`
    do. Numbers of a whole head, such as the slopes of ALiBi, count where they are added."""

    def steady(node: Real) -> bool:
        return isinstance(node, Read) and not _depends_on_place(node)

    match logit:
        case Number(value):
            return math.isfinite(value) and abs(value) >= FAR
        case Read():
            return True
        case Call("mul" | "div", args):
            return any(may_be_far(arg) for arg in args if not steady(arg))
        case Call("add" | "sub" | "neg" | "abs" | "min" | "max", args):
            return any(map(may_be_far, args))
        case Choice(_, then, other):
            return may_be_far(then) or may_be_far(other)
    return False


def numbered(formula: Formula) -> tuple[Formula, dict[str, str]]:
    """The formula with slots called table0, table1, ..., and the new names by the old ones."""
    names = {slot.name: f"table{number}" for number, slot in enumerate(formula.slots)}

    def change(part: Any) -> Any:
        if isinstance(part, (Read, Entry)):
            index = tuple(transform(index, change) for index in part.index)
            return type(part)(names[part.slot], index)
        return None

    slots = tuple(replace(slot, name=names[slot.name]) for slot in formula.slots)
    return Formula(transform(formula.logit, change), slots, formula.loc), names


# ------------------------------------------------------------------ ranges

Range = tuple[float, float]
_EVERYTHING: Range = (-math.inf, math.inf)
_EXTENTS: Mapping[str, int] = {}


def of_whole(expr: Expr, extents: Mapping[str, int] = _EXTENTS) -> Range:
    """The values that an integer formula may have.

    Args:
        extents: how many queries (q), keys (k), heads (h) and sequences (b) there are, and the
            lengths n_q and n_kv; those that are not known are at most INDEX.
    """

    def of(part: Expr) -> Range:
        return of_whole(part, extents)

    match expr:
        case E.Sum(constant, terms):
            low = high = float(constant)
            for factor, term in terms:
                ends = [factor * end for end in of(term)]
                low, high = low + min(ends), high + max(ends)
            return low, high
        case E.Sym(name):
            most = extents.get(name, INDEX)
            return (0.0, float(most - 1)) if name in "qkhb" else (float(extents.get(name, 0)), most)
        case E.FloorDiv(num, den):
            low, high = of(num)
            return low // den, high // den
        case E.Mod(_, den):
            return 0.0, float(den - 1)
        case E.Max(args):
            ranges = list(map(of, args))
            low = max(low for low, _ in ranges)
            if any(E.add(a, b) == E.ZERO for a in args for b in args):
                low = max(low, 0.0)  # |x|
            return low, max(high for _, high in ranges)
        case E.Min(args):
            ranges = list(map(of, args))
            return min(low for low, _ in ranges), min(high for _, high in ranges)
        case Pick(_, then, other):
            (a, b), (c, d) = of(then), of(other)
            return min(a, c), max(b, d)
        case Product(left, right):
            ends = [x * y if x and y else 0.0 for x in of(left) for y in of(right)]
            return min(ends), max(ends)
    return _EVERYTHING


# ------------------------------------------------------------------ what belongs to slots


class PlaceTable(ABC):
    """Numbers of places that no formula says: a table, made when a call has lengths."""

    at: SourceLoc | None
    """The line of the part that it stands for."""

    @abstractmethod
    def of_call(self, batch: int, heads: int, n_q: int, n_kv: int) -> Any:
        """The NumPy array for a call; the same object where nothing has changed."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a formula, as calls pass them."""

    formula: Formula
    names: tuple[str, ...]
    """The names of the slots."""
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    """Values of parameters that calls leave out."""
    captured: Mapping[str, Any] = field(default_factory=dict)
    """Arrays that the user's function holds, by name; calls do not give them."""
    text: str = "s"
    """The formula with the user's names."""

    @classmethod
    def of(cls, formula: Formula) -> Inputs:
        """Return the inputs by the names of the formula's own slots."""
        return cls(formula, tuple(slot.name for slot in formula.slots))

    @cached_property
    def placed(self) -> PlaceTable | None:
        """A table that is computed for the lengths of a call; None if there is none."""
        return next((x for x in self.captured.values() if isinstance(x, PlaceTable)), None)

    @cached_property
    def without_tensors(self) -> Inputs:
        """These inputs without captured tensors of torch, for calls that pass them."""
        held = {name: x for name, x in self.captured.items() if not hasattr(x, "data_ptr")}
        return self if len(held) == len(self.captured) else replace(self, captured=held)

    def held(self, batch: int, heads: int, n_q: int, n_kv: int) -> Mapping[str, Any]:
        """The arrays of `captured` in a call of so many sequences, heads, queries and keys."""
        if self.placed is None:
            return self.captured
        size = batch, heads, n_q, n_kv
        return {
            name: x.of_call(*size) if isinstance(x, PlaceTable) else x
            for name, x in self.captured.items()
        }

    @property
    def trainable(self) -> tuple[str, ...]:
        """Tables and parameters that may require grad."""
        pairs = zip(self.names, self.formula.slots, strict=True)
        return tuple(name for name, slot in pairs if not slot.integer)


# ------------------------------------------------------------------ text

_ATOM, _PRODUCT, _SUM, _COMPARE, _AND, _OR = 7, 6, 5, 4, 2, 1


class ScorePrinter(Printer):
    """Prints score formulas as Python; languages of kernels derive from it."""

    infix = {"add": ("+", _SUM), "sub": ("-", _SUM), "mul": ("*", _PRODUCT), "div": ("/", _PRODUCT)}
    tests = _ATOM
    """The least strength of operands of a Logic."""

    def _print(self, node: Any) -> tuple[str, int]:
        match node:
            case Score():
                return "s", _ATOM
            case Number(value):
                text = self.number(value)
                return text, _SUM if text.startswith("-") else _ATOM
            case Whole(number):
                return self.whole(number)
            case Read(slot, index):
                return self.read(slot, index, False), _ATOM
            case Entry(slot, index):
                return self.read(slot, index, True), _ATOM
            case Call("neg", (value,)):
                return f"-{self.at(value, _PRODUCT)}", _SUM
            case Call(function, (left, right)) if function in self.infix:
                sign, strength = self.infix[function]
                tighter = strength + (function in ("sub", "div"))
                return f"{self.at(left, strength)} {sign} {self.at(right, tighter)}", strength
            case Call(function, args):
                return self.call(function, [self(arg) for arg in args]), _ATOM
            case Choice(condition, then, other) | Pick(condition, then, other):
                return self.choice(condition, then, other, isinstance(node, Pick))
            case Shared(number):
                return f"x{number}", _ATOM
            case Less(left, right):
                return f"{self.at(left, _SUM)} < {self.at(right, _SUM)}", _COMPARE
            case Logic("not", (part,)):
                return f"{self.negation}({self(part)})", _ATOM
            case Logic(word, parts):
                sign, strength = (self.conj, _AND) if word == "and" else (self.disj, _OR)
                return f" {sign} ".join(self.at(part, self.tests) for part in parts), strength
            case Trunc(value):
                return self.trunc(value), _ATOM
            case Product(left, right):
                return f"{self.at(left, _PRODUCT)} * {self.at(right, _ATOM)}", _PRODUCT
        return super()._print(node)

    def number(self, value: float) -> str:
        """A literal."""
        return repr(int(value)) if abs(value) < 1e6 and value.is_integer() else repr(value)

    def whole(self, number: Expr) -> tuple[str, int]:
        """An integer as a real number."""
        return self._print(number)

    def read(self, slot: str, index: tuple[Expr, ...], integer: bool) -> str:
        """An entry of a table."""
        return f"{slot}[{', '.join(map(self, index))}]" if index else slot

    def call(self, function: str, args: list[str]) -> str:
        """A function."""
        return f"{function}({', '.join(args)})"

    def choice(self, condition: Term, then: Term, other: Term, integers: bool) -> tuple[str, int]:
        """`then` or `other`."""
        return f"where({self(condition)}, {self(then)}, {self(other)})", _ATOM

    def trunc(self, value: Real) -> str:
        """A real number rounded towards zero."""
        return f"int({self(value)})"


to_score_text = ScorePrinter()
