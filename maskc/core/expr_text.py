"""Formulas as text: a printer, from which printers of languages derive, and a parser of the Python
form.

The Python form is what masks print (`where(...)`), what generated modules hold, and what
`parse_expr` reads back: `(k <= q + 3) & (doc.q[q] == doc.k[k])`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from maskc.core import expr as E
from maskc.core.data import check_name
from maskc.core.errors import BadExpression
from maskc.core.expr import Expr

_ATOM, _PRODUCT, _SUM, _COMPARE, _AND, _OR = 7, 6, 5, 4, 2, 1


_COUNTS = frozenset({"q", "k", "h", "n_q", "n_kv", "ti", "tj"})


def nonnegative(expr: Expr, counts: frozenset[str] = frozenset()) -> bool:
    """Whether the value is certainly >= 0; q, k, ti, tj and lengths are, and so are `counts`."""
    match expr:
        case E.Sum(constant, terms):
            return constant >= 0 and all(c > 0 and nonnegative(t, counts) for c, t in terms)
        case E.Sym(name):
            return name in _COUNTS or name in counts
        case E.FloorDiv(num, _):
            return nonnegative(num, counts)
        case E.Min(args):
            return all(nonnegative(arg, counts) for arg in args)
        case E.Max(args):
            return any(nonnegative(arg, counts) for arg in args)
    return isinstance(expr, E.Mod)


class Printer:
    """Prints formulas as Python; printers of other languages override what they spell differently.

    Texts come with their binding strengths, by which parentheses are set.
    """

    conj, disj, negation = "&", "|", "~"
    true, false = "True", "False"
    joint = _ATOM
    """The least strength of operands of conj and disj."""
    counts: frozenset[str] = frozenset()
    """Further symbols that are never negative."""

    def __call__(self, expr: Any) -> str:
        return self._print(expr)[0]

    def at(self, expr: Any, strength: int) -> str:
        """The text, in parentheses where it binds less than `strength`."""
        text, binding = self._print(expr)
        return text if binding >= strength else f"({text})"

    # -------------------------------------------------------------- what languages spell

    def symbol(self, name: str) -> str:
        """A variable."""
        return name

    def param(self, name: str, default: int) -> str:
        """A parameter."""
        return f"param({name!r}, {default})"

    def load(self, array: str, index: list[str]) -> str:
        """An element of an array."""
        return f"{array}[{', '.join(index)}]"

    def floordiv(self, num: str, den: int, nonnegative: bool) -> tuple[str, int]:
        """A quotient; whether the numerator is certainly not negative is known."""
        return f"{num} // {den}", _PRODUCT

    def mod(self, num: str, den: int, nonnegative: bool) -> tuple[str, int]:
        """A remainder, likewise."""
        return f"{num} % {den}", _PRODUCT

    def extreme(self, name: str, args: list[str]) -> str:
        """The `min` or `max` of some numbers."""
        return f"{name}({', '.join(args)})"

    def member(self, value: str, node: E.Member) -> str:
        """Whether a value is among ranges."""
        ids = ", ".join(f"({low}, {high})" for low, high in node.ranges)
        return f"{'' if node.inside else self.negation}member({value}, [{ids}])"

    # -------------------------------------------------------------- the walk

    def _print(self, expr: Any) -> tuple[str, int]:
        match expr:
            case E.Sum():
                return self._sum(expr)
            case E.Sym(name):
                return self.symbol(name), _ATOM
            case E.Param(name, default):
                return self.param(name, default), _ATOM
            case E.FloorDiv(num, den):
                return self.floordiv(self.at(num, _ATOM), den, nonnegative(num, self.counts))
            case E.Mod(num, den):
                return self.mod(self.at(num, _ATOM), den, nonnegative(num, self.counts))
            case E.Min(args) | E.Max(args):
                name = "min" if isinstance(expr, E.Min) else "max"
                return self.extreme(name, list(map(self, args))), _ATOM
            case E.Load(array, index):
                return self.load(array, list(map(self, index))), _ATOM
            case E.Truth(value):
                return (self.true if value else self.false), _ATOM
            case E.Cmp(op, lhs):
                left, word, right = compared(op, lhs)
                return f"{self.at(left, _SUM)} {word} {self.at(right, _SUM)}", _COMPARE
            case E.Member(value):
                return self.member(self(value), expr), _ATOM
            case E.All(terms):
                return f" {self.conj} ".join(self.at(term, self.joint) for term in terms), _AND
            case E.Any(terms):
                return f" {self.disj} ".join(self.at(term, self.joint) for term in terms), _OR
        raise TypeError(f"no printer for {type(expr).__name__}")

    def _sum(self, expr: E.Sum) -> tuple[str, int]:
        ordered = sorted(expr.terms, key=lambda pair: pair[0] < 0)
        text = ""
        for coefficient, term in ordered:
            factor = "" if abs(coefficient) == 1 else f"{abs(coefficient)} * "
            sign = "-" if coefficient < 0 else "+"
            alone = not factor and (text or sign == "+")
            item = factor + self.at(term, _PRODUCT if alone else _ATOM)
            text = f"{text} {sign} {item}" if text else (f"-{item}" if sign == "-" else item)
        if expr.const or not text:
            sign = "-" if expr.const < 0 else "+"
            text = f"{text} {sign} {abs(expr.const)}" if text else str(expr.const)
        if len(expr.terms) == 1 and not expr.const and expr.terms[0][0] > 0:
            return text, _PRODUCT
        return text, _ATOM if not expr.terms and expr.const >= 0 else _SUM


def compared(op: str, lhs: Expr) -> tuple[Expr, str, Expr]:
    """Return the two sides of `lhs op 0` for printing, and the operator between them.

    The key, or else the query, is alone on the left: `k <= q + 3` for `q + 3 - k >= 0`.
    """
    constant, terms = E.split_linear(lhs)
    alone = next((t for t in (E.K, E.Q) if (1, t) in terms or (-1, t) in terms), None)
    left = [(c, t) for c, t in terms if (t == alone if alone else c > 0)]
    right = [(-c, t) for c, t in terms if (c, t) not in left]
    if not left or (alone and left[0][0] < 0):
        op = "<=" if op == ">=" else op
        left, right = [(-c, t) for c, t in left], [(-c, t) for c, t in right]
        constant = -constant
    if not left:
        left, right = [(-c, t) for c, t in right], []
    limit = -constant
    strict = {(">=", 1): (">", 0), ("<=", -1): ("<", 0)}
    if right:
        op, limit = strict.get((op, limit), (op, limit))
    elif op == "<=" and limit >= 0:
        op, limit = "<", limit + 1
    return E.linear(0, left), op, E.linear(limit, right)


class _ForPeople(Printer):
    def param(self, name: str, default: int) -> str:
        return name


to_python = Printer()
to_people = _ForPeople()
"""The printer for reports: parameters appear by their bare names."""


# ------------------------------------------------------------------ reading


def parse_expr(text: str) -> Expr:
    """Read the Python form back. Executes nothing.

    Raises:
        BadExpression: the text is not such a formula.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise BadExpression(f"{error.msg} in {text!r}") from None
    return read_node(tree)


_COMPARE_OPS: dict[type[ast.cmpop], Callable[[Expr, Expr], Expr]] = {
    ast.GtE: E.ge, ast.LtE: E.le, ast.Gt: E.gt, ast.Lt: E.lt, ast.Eq: E.eq, ast.NotEq: E.ne,
}  # fmt: skip


def read_node(node: ast.expr) -> Expr:
    """The formula a Python syntax tree spells.

    Raises:
        BadExpression: the text is no such formula (MC115).
    """
    match node:
        case ast.Constant(value=bool() as value):
            return E.Truth(value)
        case ast.Constant(value=int() as value):
            return E.const(value)
        case ast.Name(id=name):
            return E.Sym(name)
        case ast.Attribute(value=ast.Name(id="mc" | "maskc"), attr=name):
            return E.Sym(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return E.scale(-1, _integer(operand))
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return E.negate(_condition(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _LOGIC_OPS:
            return _LOGIC_OPS[type(op)](_condition(left), _condition(right))
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(_integer(left), op, _integer(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE_OPS:
            return _COMPARE_OPS[type(op)](_integer(left), _integer(right))
        case ast.Subscript(value=array, slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            return E.Load(ast.unparse(array), tuple(map(_integer, parts)))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=[]):
            return _call(name, args)
    raise BadExpression(f"{ast.unparse(node)!r} is not part of the formula language")


_LOGIC_OPS: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.BitAnd: E.conj, ast.BitOr: E.disj, ast.BitXor: E.xor,
}  # fmt: skip


def _integer(node: ast.expr) -> Expr:
    return _typed(node, False, "an integer")


def _condition(node: ast.expr) -> Expr:
    return _typed(node, True, "a condition such as q >= k")


def _typed(node: ast.expr, condition: bool, wanted: str) -> Expr:
    typed = read_node(node)
    if E.is_condition(typed) != condition:
        raise BadExpression(f"{ast.unparse(node)!r} must be {wanted}")
    return typed


def _arithmetic(left: Expr, op: ast.operator, right: Expr) -> Expr:
    match op:
        case ast.Add():
            return E.add(left, right)
        case ast.Sub():
            return E.sub(left, right)
    number = E.as_const(right)
    if isinstance(op, ast.Mult):
        factor = E.as_const(left)
        if factor is not None:
            return E.scale(factor, right)
        if number is not None:
            return E.scale(number, left)
    if number and isinstance(op, ast.FloorDiv):
        return E.floordiv(left, number)
    if number and isinstance(op, ast.Mod):
        return E.mod(left, number)
    needs = {ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}.get(type(op))
    if needs:
        raise BadExpression(f"{needs} needs a plain integer other than 0 on one side")
    raise BadExpression(f"{type(op).__name__} is not part of the formula language")


def _call(name: str, args: list[ast.expr]) -> Expr:
    match name, args:
        case "min" | "max", [_, *_]:
            return (E.minimum if name == "min" else E.maximum)(*map(_integer, args))
        case "abs", [arg]:
            return E.absolute(_integer(arg))
        case "param", [ast.Constant(value=str() as label), default]:
            number = E.as_const(_integer(default))
            if number is not None:
                return E.Param(check_name(label, None), number)
        case "member", [value, ranges]:
            pairs = tuple((int(a), int(b)) for a, b in ast.literal_eval(ranges))
            return E.Member(_integer(value), pairs)
    raise BadExpression(f"{name}(...) is not part of the formula language")
