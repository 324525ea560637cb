"""A score formula as C and CUDA: the logit, its slope, and the gradients of tables.

One printer serves both languages, which differ in how the argument block is reached. Integers have
32 bits where no intermediate can leave them, whatever the lengths, and 64 elsewhere. Tensor-core
kernels have 16-bit inputs, so they use reciprocals for quotients. Integer conversions are slow
there, so functions of q - k use `q_minus_k`, which is q - k in fp32: exact up to 2^24 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from maskc.analysis.score_places import spread
from maskc.analysis.sum_slopes import slope, table_slopes
from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.expr import Expr
from maskc.core.expr_text import compared
from maskc.core.score import Slopes, of_whole
from maskc.core.widths import INT32
from maskc.emit.c_printer import CPrinter, nested
from maskc.emit.predicate import wrapped
from maskc.emit.spec import EntryText, PairText, ScoreText, TableText

_SLOT = "table"
_SYMBOLS = {"h": "head", "b": "batch", "n_q": "all_queries(p)", "n_kv": "all_keys(p)"}
_FUNCTIONS = (
    "min", "max", "exp", "log", "tanh", "sqrt", "sigmoid", "erf", "gelu", "sin", "cos",
    "abs", "floor", "sign", "step",
)  # fmt: skip


class ScoreCPrinter(S.ScorePrinter, CPrinter):
    """Prints formulas as C over q, k, head, batch and the argument block p."""

    tests = 5

    def __init__(self, at: str, fast: bool = False, pair: S.Read | None = None) -> None:
        """`pair`: the entry that the formula is given."""
        super().__init__()
        self.at_member, self._wide, self._fast, self._pair = at, False, fast, pair
        if fast:
            self.infix = {name: sign for name, sign in self.infix.items() if name != "div"}

    def symbol(self, name: str) -> str:
        text = _SYMBOLS.get(name, name)
        return f"(i64){text}" if self._wide else text

    def function(self, name: str) -> str:
        return f"{name}_{self._type}"

    def floordiv(self, num: str, den: int, nonnegative: bool) -> tuple[str, int]:
        return f"quotient_{self._type}({num}, {den})", 7

    def mod(self, num: str, den: int, nonnegative: bool) -> tuple[str, int]:
        return f"remainder_{self._type}({num}, {den})", 7

    @property
    def _type(self) -> str:
        return "i64" if self._wide else "i32"

    def _print(self, node: Any) -> tuple[str, int]:
        match node:
            case S.Read() if node == self._pair:
                return "pair", 7
            case S.Call("div", (left, S.Number(right))) if self._fast and _has_reciprocal(right):
                return super()._print(S.Call("mul", (left, S.Number(1 / right))))
        if isinstance(node, Expr) and not self._wide and _leaves(node):
            self._wide = True
            try:
                return super()._print(node)
            finally:
                self._wide = False
        return super()._print(node)

    def number(self, value: float) -> str:
        if math.isinf(value):
            infinite = "INFINITE" if self.at_member == "->" else "PLUS_INFINITY"
            return infinite if value > 0 else f"-{infinite}"
        return f"{float(value)!r}f"

    def whole(self, number: Expr) -> tuple[str, int]:
        text = self._by_distance(number) if self._fast else None
        if text is None:
            return f"(float)({self._own(number)})", 7
        return text, 4 if " " in text else 7

    def _by_distance(self, number: Expr) -> str | None:
        """The text of a number made of `q_minus_k`, where q and k occur in it in no other way."""
        match number:
            case E.Sum(constant, terms):
                factors = {term: factor for factor, term in terms}
                factor = factors.pop(E.Q, 0)
                if not factor or factor + factors.pop(E.K, 0) or not {E.N_Q, E.N_KV} >= {*factors}:
                    return None
                signs = {1: "q_minus_k", -1: "-q_minus_k"}
                text = signs.get(factor) or f"{self.number(float(factor))} * q_minus_k"
                rest = E.linear(constant, [(factor, term) for term, factor in factors.items()])
                added = (
                    self.number(float(constant)) if not factors else f"(float)({self._own(rest)})"
                )
                return f"{text} + {added}" if factors or constant else text
            case E.Max((one, two)) if E.add(one, two) == E.ZERO:
                sides = [self._by_distance(side) for side in (one, two)]
                return sides[0] and f"score_abs({min(map(str, sides), key=len)})"
            case E.Max(args) | E.Min(args):
                texts = [self._by_distance(arg) or self._literal(arg) for arg in args]
                if None in texts or all(map(self._literal, args)):
                    return None
                return nested("fmaxf" if isinstance(number, E.Max) else "fminf", map(str, texts))
        return None

    def _literal(self, number: Expr) -> str | None:
        value = E.as_const(number)
        return None if value is None else self.number(float(value))

    def _own(self, node: Any) -> str:
        """Print a part with its own integer width, inside a part that may have another width."""
        before, self._wide = self._wide, False
        try:
            return self(node)
        finally:
            self._wide = before

    def read(self, slot: str, index: tuple[Expr, ...], integer: bool) -> str:
        kind = "entry" if integer else "read"
        args = "".join(f", {self._own(part)}" for part in index)
        text = f"score_{kind}_{slot.removeprefix(_SLOT)}(p{args})"
        return f"(i64){text}" if integer and self._wide else text

    def call(self, function: str, args: list[str]) -> str:
        if function == "div":
            return f"score_over({', '.join(args)})"
        if function not in _FUNCTIONS:
            raise TypeError(f"no C for {function}")
        return f"score_{function}({', '.join(args)})"

    def choice(
        self, condition: E.Term, then: E.Term, other: E.Term, integers: bool
    ) -> tuple[str, int]:
        return f"({self._own(condition)} ? {self(then)} : {self(other)})", 7

    def trunc(self, value: S.Real) -> str:
        text = f"score_trunc({self._own(value)})"
        return f"(i64){text}" if self._wide else text


def _leaves(node: Expr) -> bool:
    """Whether something that is computed of an integer formula may leave 32 bits."""
    match node:
        case E.Sum(constant, terms):
            low = high = 0.0
            for factor, term in sorted(terms, key=lambda pair: pair[0] < 0):
                ends = [factor * end for end in of_whole(term)]
                low, high = low + min(ends), high + max(ends)
                if abs(factor) > INT32 or max(*map(abs, ends), abs(low), abs(high)) > INT32:
                    return _known(node)
            if max(abs(constant), abs(low + constant), abs(high + constant)) > INT32:
                return _known(node)
        case S.Product():
            return max(map(abs, of_whole(node))) > INT32
        case E.Cmp(op, lhs):
            left, _, right = compared(op, lhs)
            return _leaves(left) or _leaves(right)
        case E.Pick(_, then, other):
            return _leaves(then) or _leaves(other)
        case S.Entry() | S.Trunc():
            return False
    return any(_leaves(part) for part in node.parts)


def _known(node: E.Sum) -> bool:
    """Whether it is a sum at all: an entry of a table alone has 32 bits."""
    return bool(node.terms) and not (len(node.terms) == 1 and node.terms[0][0] == 1
                                     and node.const == 0)  # fmt: skip


def _has_reciprocal(number: float) -> bool:
    """Whether 1 / number is a usual number of 32 bits."""
    return 2.0**-100 < abs(number) < 2.0**100


def score_text(
    formula: S.Formula, language: str, line: int | None, fast: bool = False
) -> ScoreText:
    """The text of a formula.

    Args:
        formula: over slots called table0, table1, ...
        language: "c" or "cuda".
        line: where the user wrote it.
        fast: for tensor cores.
    """
    at, params = ("->", "const struct Attention *p") if language == "c" else (
        ".", "const struct Attention &p"
    )  # fmt: skip
    printer, far = ScoreCPrinter(at, fast), S.may_be_far(formula.logit)
    by_score, by_table = slope(formula.logit), table_slopes(formula.logit)
    shift, cap = (S.shift(formula.logit), S.cap(formula.logit)) if fast else (None, None)
    added = "" if shift is None else printer(shift)
    place = "" if line is None else f"line {line}: "
    numbers = {slot.name: number for number, slot in enumerate(formula.slots)}
    return ScoreText(
        tuple(wrapped(f"{place}{S.to_score_text(formula.logit)}", 90).splitlines()),
        tuple(TableText(n, slot.rank, slot.integer) for n, slot in enumerate(formula.slots)),
        _return(printer(formula.logit)),
        tuple(_lines(printer, by_score.shared)),
        _return(printer(by_score.results[0])),
        tuple(_lines(printer, by_table.shared)),
        tuple(
            EntryText(
                numbers[read.slot], _place(printer, numbers[read.slot], read),
                _indented(f"const float share = dlogit * ({printer(result)});", 12),
                spread(read),
            )
            for read, result in zip(S.reads(formula.logit), by_table.results, strict=True)
        ),
        params, at, by_score.results[0] != S.Number(1.0), far, fast,
        _return(f"near_logit({added})" if far else added) if added else "",
        (_return(printer(cap[0])), _return(printer(cap[1]))) if cap else None,
        _pair_text(formula, at, by_score, numbers) if fast else None,
    )  # fmt: skip


def _pair_text(
    formula: S.Formula, at: str, slope: Slopes, numbers: dict[str, int]
) -> PairText | None:
    """The table with an entry for each pair; None if there is none."""
    read = S.pair_read(formula.logit)
    if read is None:
        return None
    printer = ScoreCPrinter(at, True, read)
    of_slot = [x for x in E.walk(formula.logit) if isinstance(x, S.Read) and x.slot == read.slot]
    return PairText(
        numbers[read.slot],
        tuple(map(printer, read.index[:-2])),
        _return(printer(formula.logit)),
        tuple(_lines(printer, slope.shared)),
        _return(printer(slope.results[0])),
        len(of_slot) == 1 and read in S.added(formula.logit),
    )


def _lines(printer: ScoreCPrinter, shared: tuple[S.Real, ...]) -> Iterator[str]:
    for number, value in enumerate(shared):
        yield _indented(f"const float x{number} = {printer(value)};")


def _place(printer: ScoreCPrinter, slot: int, read: S.Read) -> str:
    """The place where the gradient of an entry is added."""
    if not read.index:
        return "const i64 place = 0;"
    index = "".join(f", {printer(part)}" for part in read.index)
    steps = f"p{printer.at_member}score_gradient_step"
    return _indented(f"const i64 place = score_place_{slot}(p, {steps}{index});", 12)


def _return(text: str) -> str:
    return _indented(f"return {text};")


def _indented(text: str, by: int = 8) -> str:
    return wrapped(text, 86).replace("\n", "\n" + " " * by)
