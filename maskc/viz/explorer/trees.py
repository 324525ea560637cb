"""Formulas as plain nested lists, which the page's formula.js reads."""

from __future__ import annotations

from typing import Any

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people


def tree(expr: Expr) -> Any:
    """Lists, numbers and names; comparisons end with their text, for people."""
    match expr:
        case E.Truth(value):
            return value
        case E.Cmp(op, lhs):
            return [op, tree(lhs), to_people(expr)]
        case E.Member(value, ranges, inside):
            return ["in", tree(value), [list(pair) for pair in ranges], inside, _short(expr)]
        case E.All(terms):
            return ["and", *map(tree, terms)]
        case E.Any(terms):
            return ["or", *map(tree, terms)]
        case E.Sum(constant, terms):
            return ["+", constant, *([c, tree(t)] for c, t in terms)] if terms else constant
        case E.Sym(name):
            return name
        case E.Param(name):
            return ["param", name]
        case E.FloorDiv(num, den):
            return ["//", tree(num), den]
        case E.Mod(num, den):
            return ["%", tree(num), den]
        case E.Min(args):
            return ["min", *map(tree, args)]
        case E.Max(args):
            return ["max", *map(tree, args)]
        case E.Load(array, index):
            return ["load", array, *map(tree, index)]
    raise TypeError(f"no tree of {type(expr).__name__}")


_LONGEST = 200
"""Characters of a comparison's text."""


def _short(expr: Expr) -> str:
    text = to_people(expr)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
