"""Masks from text, without executing any of it: an allow-list over Python's own syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable

import numpy as np

from maskc.core.data import DataKind
from maskc.core.errors import BadExpression
from maskc.core.expr_text import read_node
from maskc.dsl import combinators as C
from maskc.dsl import data_atoms as D
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.traced import Traced, param

_CALLS: dict[str, Callable[..., Mask]] = {
    function.__name__: function
    for function in (
        C.full, C.causal, C.dilated, C.offsets, C.strided, C.sinks, C.prefix, C.global_tokens,
        C.block_diagonal, C.chunked, C.random_blocks, C.per_head, C.heads, C.topk, D.documents,
        D.flags, D.intervals, D.tree, D.block_table,
    )
} | {"window": C.window}  # fmt: skip

_WINDOWS = ("hf", "hf_bidirectional", "longformer", "jax", "flash", "gym")


def parse_mask(text: str) -> Mask:
    """Read a mask expression such as `causal() & (sinks(4) | window(1023))`.

    Raises:
        BadExpression: something in the text is not part of the mask language.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise BadExpression(f"{error} in {text!r}") from None
    except RecursionError:
        raise BadExpression("it is nested too deeply") from None
    return _mask(tree)


def _mask(node: ast.expr) -> Mask:
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
        case ast.BoolOp():
            raise BadExpression("`and` and `or` drop a mask; use & and |")
        case ast.Attribute(value=value, attr="rows" | "columns" as side):
            inner = _mask(value)
            if isinstance(inner, N.GlobalTokens):
                return inner.rows if side == "rows" else inner.columns
        case ast.Call(func=func, args=args, keywords=keywords):
            return _call(func, args, keywords)
    raise BadExpression(f"{ast.unparse(node)!r} is not a mask")


def _call(func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Mask:
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        if func.value.id == "window" and func.attr in _WINDOWS:
            return _apply(getattr(C.window, func.attr), args, keywords)
        if func.value.id in ("mc", "maskc"):
            func = ast.Name(id=func.attr)
    name = func.id if isinstance(func, ast.Name) else ast.unparse(func)
    if name == "where" and len(args) == 1 and isinstance(args[0], ast.Lambda):
        return _where(args[0], keywords)
    if name not in _CALLS:
        raise BadExpression(f"{name!r} is not a combinator; known: {', '.join(sorted(_CALLS))}")
    return _apply(_CALLS[name], args, keywords)


def _apply(build: Callable[..., Mask], args: list[ast.expr], keywords: list[ast.keyword]) -> Mask:
    named = {word.arg: _value(word.value) for word in keywords if word.arg}
    try:
        return build(*map(_value, args), **named)
    except TypeError as error:
        raise BadExpression(str(error)) from None


def _value(node: ast.expr) -> object:
    """An argument: a mask, a literal, or an integer formula in lengths and parameters."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        pass
    match node:
        case ast.Call(func=ast.Name(id="param"), args=[name, default]):
            return param(ast.literal_eval(name), ast.literal_eval(default))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
    try:
        return Traced(read_node(node))
    except BadExpression:
        return _mask(node)


_PARAMETERS = {("q", "k"): 2, ("h", "q", "k"): 3}


def _where(function: ast.Lambda, keywords: list[ast.keyword]) -> Mask:
    names = tuple(arg.arg for arg in function.args.args)
    if names not in _PARAMETERS:
        raise BadExpression("where takes lambda q, k: ... or lambda h, q, k: ...")
    tables = tuple(
        D.captured(np.array(ast.literal_eval(word.value)), DataKind.constant) for word in keywords
    )
    return N.Where(read_node(function.body), tables)
