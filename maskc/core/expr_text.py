"""Formulas as text: one printer with a table per language, and a reader for the Python form.

The Python form is what masks print (`where(...)`), what generated modules hold, and what
`parse_expr` reads back: `(k <= q + 3) & (doc.q[q] == doc.k[k])`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from maskc.core import expr as E
from maskc.core.data import check_name
from maskc.core.errors import BadExpression
from maskc.core.expr import Expr

_ATOM, _PRODUCT, _SUM, _COMPARE, _NOT, _AND, _OR = 7, 6, 5, 4, 3, 2, 1


@dataclass(frozen=True)
class Dialect:
    """How one language spells what differs between languages."""

    conj: str
    disj: str
    true: str
    false: str
    floordiv: Callable[[str, int, bool], tuple[str, int]]
    """(numerator text, denominator, numerator known >= 0) -> text and its binding strength."""
    mod: Callable[[str, int, bool], tuple[str, int]]
    extreme: Callable[[str, list[str]], str]
    """("min" or "max", arguments) -> text."""
    symbol: Callable[[str], str]
    param: Callable[[str, int], str]
    load: Callable[[str, list[str]], str]
    member: Callable[[str, E.Member], str]
    compare_parens: bool
    """Whether a comparison inside & and | needs parentheses."""
    counts: frozenset[str] = frozenset()
    """Further symbols that are never negative."""


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
    """Prints formulas in one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def __call__(self, expr: Expr) -> str:
        return self._print(expr)[0]

    def at(self, expr: Expr, strength: int) -> str:
        """The text, in parentheses where it binds less than `strength`."""
        text, own = self._print(expr)
        return text if own >= strength else f"({text})"

    def _print(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case E.Sum():
                return self._sum(expr)
            case E.Sym(name):
                return self.dialect.symbol(name), _ATOM
            case E.Param(name, default):
                return self.dialect.param(name, default), _ATOM
            case E.FloorDiv(num, den):
                return self.dialect.floordiv(self.at(num, _ATOM), den, self._counts(num))
            case E.Mod(num, den):
                return self.dialect.mod(self.at(num, _ATOM), den, self._counts(num))
            case E.Min(args) | E.Max(args):
                name = "min" if isinstance(expr, E.Min) else "max"
                return self.dialect.extreme(name, [self(arg) for arg in args]), _ATOM
            case E.Load(array, index):
                return self.dialect.load(array, [self(i) for i in index]), _ATOM
        return self._boolean(expr)

    def _counts(self, expr: Expr) -> bool:
        return nonnegative(expr, self.dialect.counts)

    def _boolean(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case E.Truth(value):
                return (self.dialect.true if value else self.dialect.false), _ATOM
            case E.Cmp(op, lhs):
                return self._compare(op, lhs), _COMPARE
            case E.Member():
                return self.dialect.member(self(expr.value), expr), _ATOM
            case E.All(terms) | E.Any(terms):
                own = _AND if isinstance(expr, E.All) else _OR
                word = self.dialect.conj if own == _AND else self.dialect.disj
                least = _ATOM if self.dialect.compare_parens else _COMPARE
                return f" {word} ".join(self.at(term, least) for term in terms), own
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

    def _compare(self, op: str, lhs: Expr) -> str:
        left, word, right = compared(op, lhs)
        return f"{self.at(left, _SUM)} {word} {self.at(right, _SUM)}"


def compared(op: str, lhs: Expr) -> tuple[Expr, str, Expr]:
    """The two sides of `lhs op 0` as printers write them, and what stands between.

    The key, else the query, stands alone: `k <= q + 3` for `q + 3 - k >= 0`.
    """
    constant, terms = (lhs.const, lhs.terms) if isinstance(lhs, E.Sum) else (0, ((1, lhs),))
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


def _python_member(value: str, node: E.Member) -> str:
    ids = ", ".join(f"({low}, {high})" for low, high in node.ranges)
    return f"{'' if node.inside else '~'}member({value}, [{ids}])"


PYTHON = Dialect(
    conj="&",
    disj="|",
    true="True",
    false="False",
    floordiv=lambda num, den, _: (f"{num} // {den}", _PRODUCT),
    mod=lambda num, den, _: (f"{num} % {den}", _PRODUCT),
    extreme=lambda name, args: f"{name}({', '.join(args)})",
    symbol=lambda name: name,
    param=lambda name, default: f"param({name!r}, {default})",
    load=lambda array, index: f"{array}[{', '.join(index)}]",
    member=_python_member,
    compare_parens=True,
)

to_python = Printer(PYTHON)
to_people = Printer(replace(PYTHON, param=lambda name, default: name))
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
    found = read_node(node)
    if E.is_condition(found) != condition:
        raise BadExpression(f"{ast.unparse(node)!r} must be {wanted}")
    return found


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
