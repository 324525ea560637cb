"""Masks from text, without executing any of it: an allow-list over Python's own syntax tree."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import numpy as np

from maskc.core import expr as E
from maskc.core.captured import ANY_LENGTHS, Captured, Lengths
from maskc.core.data import DataDecl, constant
from maskc.core.errors import BadExpression, IntegerTooWide, MaskcError
from maskc.core.expr import Expr
from maskc.core.expr_text import read_node
from maskc.core.source import SourceLoc, caller, keep_text, written_at
from maskc.core.widths import INT64, widest
from maskc.dsl import combinators as C
from maskc.dsl import data_atoms as D
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.meant import closest
from maskc.dsl.traced import Traced

Made = TypeVar("Made")

_CALLS: dict[str, Callable[..., Mask]] = {name: getattr(C, name) for name in C.__all__}
_CALLS |= {
    function.__name__: function
    for function in (D.documents, D.flags, D.intervals, D.tree, D.block_table, D.key_lists)
}
_CALLS |= {
    f"window.{convention}": getattr(C.window, convention)
    for convention in ("hf", "hf_bidirectional", "longformer", "jax", "flash", "gym")
}


_FILE = "--expr"
"""The name of the text in messages."""


def parse(text: str) -> Mask:
    """Read a mask expression such as `causal() & (sinks(4) | window(1023))`; nothing is executed.

    Args:
        text: combinators with literal arguments, `where(lambda q, k: ...)` with a formula, & | - ^
            ~ and parentheses. The text of any mask without captured objects can be read back.

    Returns:
        The mask.

    Raises:
        BadExpression: something in the text is not part of the mask language (MC115).
        MaskcError: a combinator refuses its arguments (MC1xx).
    """
    text = text.strip()
    keep_text(_FILE, text)
    try:
        return _mask(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError) as error:
        at = None
        if isinstance(error, SyntaxError) and error.lineno:
            at = SourceLoc(_FILE, error.lineno, error.offset or len(text) + 1, 0)
        raise BadExpression(getattr(error, "msg", str(error)), at=at) from None
    except (RecursionError, MemoryError):
        raise BadExpression("it is nested too deeply") from None


_without_content: ContextVar[bool] = ContextVar("without_content", default=False)


def parse_emptied(text: str) -> Mask:
    """Read the text of a mask whose formulas read arrays without content, see `dsl/slots`.

    Raises:
        As `parse`.
    """
    token = _without_content.set(True)
    try:
        return parse(text)
    finally:
        _without_content.reset(token)


def _mask(node: ast.expr) -> Mask:
    place = _place(node)
    with written_at(place):
        try:
            return _read(node)
        except BadExpression as error:
            error.at = error.at or place
            raise


def _place(node: ast.expr) -> SourceLoc:
    """Convert a column of Python's parser (bytes from 0) to characters from 1."""
    line = linecache.getline(_FILE, node.lineno).encode()
    first, last = (
        1 + len(line[:column].decode(errors="ignore"))
        for column in (node.col_offset, node.end_col_offset or 0)
    )
    return SourceLoc(_FILE, node.lineno, first, last if node.end_lineno == node.lineno else 0)


def _read(node: ast.expr) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _mask(left) & _mask(right)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _mask(left) | _mask(right)
        case ast.BinOp(left=left, op=ast.BitXor(), right=right):
            return _mask(left) ^ _mask(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _mask(left) - _mask(right)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_mask(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _mask(left) + _mask(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _mask(left) * _mask(right)
        case ast.BoolOp():
            raise BadExpression("`and` and `or` drop a mask; use & and |")
        case ast.Attribute(value=value, attr="rows" | "columns" as side):
            inner = _mask(value)
            if isinstance(inner, (N.GlobalTokens, N.GlobalFlags)):
                return inner.rows if side == "rows" else inner.columns
        case ast.Call(func=func, args=args, keywords=keywords):
            return _call(func, args, keywords)
    raise BadExpression(f"{ast.unparse(node)!r} is not a mask")


def _call(func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Mask:
    name = ast.unparse(func).removeprefix("mc.").removeprefix("maskc.")
    if name == "where" and len(args) == 1 and isinstance(args[0], ast.Lambda):
        return _where(args[0], keywords)
    if name not in _CALLS:
        near = closest(name, _CALLS)
        meant = f"did you mean {near}? " if near else ""
        known = f"{meant}known: {', '.join(sorted(_CALLS))}"
        raise BadExpression(f"{name!r} is not a combinator; {known}")
    return _apply(_CALLS[name], args, keywords)


def _apply(build: Callable[..., Made], args: list[ast.expr], keywords: list[ast.keyword]) -> Made:
    named = {_keyword(word): _value(word.value) for word in keywords}
    try:
        return build(*map(_value, args), **named)
    except MaskcError:
        raise
    except TypeError as error:
        # window is an object: "_Window.__call__() missing ..." becomes "window() missing ..."
        finding = re.sub(r"^_(\w+)\.__call__", lambda name: name[1].lower(), str(error))
        raise BadExpression(finding) from None


def _keyword(word: ast.keyword) -> str:
    if word.arg is None:
        raise BadExpression("** is not part of the mask language")
    return word.arg


def _value(node: ast.expr) -> object:
    """An argument: a mask, a literal, or an integer formula in lengths and parameters."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        pass
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "positions":
        return _apply(D.positions, node.args, node.keywords)
    try:
        formula = read_node(node)
    except BadExpression:
        return _mask(node)
    number = E.as_const(formula)
    return Traced(formula) if number is None else number


_PARAMETERS = ("q, k", "h, q, k")


def _where(function: ast.Lambda, keywords: list[ast.keyword]) -> Mask:
    if ast.unparse(function.args) not in _PARAMETERS:
        raise BadExpression("where takes lambda q, k: ... or lambda h, q, k: ...")
    known = set(ast.unparse(function.args).split(", ")) | {"n_q", "n_kv"}
    made = next((_lengths(word) for word in keywords if word.arg == "made_for"), ANY_LENGTHS)
    arrays = (word for word in keywords if word.arg != "made_for")
    given = {_keyword(word): _constant_array(word) for word in arrays}
    formula, tables = _loaded(read_node(function.body), given)
    if unknown := sorted(E.symbols(formula) - known):
        names = ", ".join(sorted(known))
        raise BadExpression(f"{unknown[0]!r} is not defined here; known: {names}")
    if wide := [n for n in map(widest, E.walk(formula)) if abs(n) > INT64]:
        raise IntegerTooWide("where", wide[0], at=caller())
    if not E.is_condition(formula):
        raise BadExpression("where needs a condition such as q >= k, found an integer")
    return N.Where(formula, tables, made)


def _lengths(word: ast.keyword) -> Lengths:
    """Read the numbers of queries and keys for which a formula is valid."""
    try:
        n_q, n_kv = ast.literal_eval(word.value)
    except (TypeError, ValueError):
        n_q = n_kv = -1
    if not all(n is None or (type(n) is int and n >= 0) for n in (n_q, n_kv)):
        raise BadExpression("made_for must be (queries, keys), integers or None")
    return n_q, n_kv


def _constant_array(word: ast.keyword) -> Captured:
    try:
        array = np.array(ast.literal_eval(word.value))
    except ValueError:  # a ragged list
        array = np.zeros(())
    if not array.ndim or array.dtype.kind not in "biu":
        raise BadExpression(f"{word.arg!r} must be a list, or a list of lists, of integers")
    return Captured(array)


def _loaded(formula: Expr, given: dict[str, Captured]) -> tuple[Expr, tuple[DataDecl, ...]]:
    """Return the formula and its numbered arrays. Dimensions before the ones it reads are sequences
    and heads, see `maskc.core.captured.Held`.
    """
    ranks: dict[str, int] = {}
    for node in E.walk(formula):
        if not isinstance(node, E.Load):
            continue
        rank = ranks.setdefault(node.array, len(node.index))
        if _without_content.get() and not given:
            continue
        dims = len(given[node.array].shape) if node.array in given else 0
        if rank != len(node.index) or not rank <= dims <= rank + 1 + (rank > 1):
            known = ", ".join(sorted(given)) or "none"
            raise BadExpression(f"{node.array}[...] is not an array given here; given: {known}")
    if _without_content.get() and not given:
        return formula, tuple(constant(name, rank) for name, rank in sorted(ranks.items()))
    names: dict[str, str] = {}
    tables: list[DataDecl] = []
    for name, rank in ((name, ranks[name]) for name in given if name in ranks):
        decls = (d for d in tables if d.rank == rank and d.values == given[name])
        decl = next(decls, None)
        if decl is None:
            decl = constant(f"table{len(tables)}", rank, given[name])
            tables.append(decl)
        names[name] = decl.name
    return E.renamed(formula, names), tuple(tables)
