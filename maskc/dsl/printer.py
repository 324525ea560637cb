"""Print masks as text that builds them again."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from maskc.core import expr as E
from maskc.core.captured import ANY_LENGTHS, Computed, Lengths
from maskc.core.data import DataDecl
from maskc.core.expr import Expr
from maskc.core.expr_text import to_python
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask

_STRENGTH = {"|": 1, "^": 2, "&": 3, "-": 4, "~": 5, "call": 6}


def print_mask(mask: Mask) -> str:
    """Text that `parse` reads back to an equal mask."""
    return _print(mask)[0]


_MAX_ENTRIES = 64
"""Entries of captured arrays that the short form of a mask shows."""


def print_short(mask: Mask) -> str:
    """Return the text of `print_mask`, with large captured arrays shown by name only."""
    if _entries(mask) <= _MAX_ENTRIES:
        return print_mask(mask)
    from maskc.dsl.slots import emptied

    return print_mask(emptied(mask)[0])


def _entries(mask: Mask) -> int:
    """Entries of all arrays that formulas of the mask captured."""
    decls = (decl for node in N.walk(mask) if isinstance(node, N.Where) for decl in node.tables)
    shapes = (d.shape if isinstance(d.values, bytes) else d.values.shape for d in decls)
    return sum(map(prod, shapes))


def _print(mask: Mask) -> tuple[str, int]:
    node = N.as_node(mask)
    match node:
        case N.Algebra(op, left, right):
            strength = _STRENGTH[op]
            return f"{_at(left, strength)} {op} {_at(right, strength + 1)}", strength
        case N.Complement(of):
            return f"~{_at(of, _STRENGTH['~'])}", _STRENGTH["~"]
    return _call(node), _STRENGTH["call"]


def _at(mask: Mask, strength: int) -> str:
    text, binding = _print(mask)
    return text if binding >= strength else f"({text})"


def _call(
    mask: N.OfTokens | N.OfData | N.GlobalFlags | N.PerHead | N.TopK,
) -> str:
    match mask:
        case N.Where(formula, tables, lengths):
            return _where(formula, tables, lengths)
        case N.Combinator(spelling=spelling):
            named = (f"{name}={_argument(value)}" for name, value in spelling.named)
            align = getattr(mask, "align", N.END)
            text = _spell(spelling.name, *map(_argument, spelling.args), *named, align=align)
            return f"{text}.{spelling.side}" if spelling.side else text
        case N.RandomBlocks(block, per_row, seed, align):
            return _spell("random_blocks", str(block), str(per_row), str(seed), align=align)
        case N.KeyLists(decl):
            return _spell("key_lists", repr(decl.name))
        case N.BlockTable(decl):
            table = repr(decl.name) if not decl.values else _values(decl)
            return _spell("block_table", table, str(decl.block))
        case N.Flags(decl, on, align):
            which = ['on="q"'] if on == "q" else []
            return _spell("flags", repr(decl.name), *which, *_promise(decl), align=align)
        case N.GlobalFlags(_, N.Flags(decl, _, align), side):
            suffix = "" if side == "both" else f".{side}"
            text = _spell("global_tokens", repr(decl.name), *_promise(decl), align=align)
            return text + suffix
        case N.Documents(decl, align) | N.Intervals(decl, align) | N.Tree(decl, align):
            return _spell(decl.kind.value, repr(decl.name), align=align)
        case N.AtPositions(of, where):
            text = _call(replace(of, align=N.END))
            comma = "" if text.endswith("()") else ", "
            return f"{text[:-1]}{comma}{_places(where)})"
        case N.PerHead(masks):
            return f"per_head([{', '.join(map(print_mask, masks))}])"
        case N.TopK(k, of, score, block, q_block, share, where):
            extras = {"score": score, "block": block, "q_block": q_block, "share": share}
            plain = {"score": "qk", "block": 1, "q_block": 1, "share": "head"}
            given = [f"{n}={v!r}" for n, v in extras.items() if v != plain[n]]
            given += [] if where is None else [_places(where)]
            return _spell("topk", str(k), f"of={print_mask(of)}", *given)
    return N.no_case(mask)


def _places(where: N.Positions) -> str:
    return f'at=positions(q="{where.of_q.name}", k="{where.of_k.name}")'


def _promise(decl: DataDecl) -> list[str]:
    return [] if decl.most is None else [f"at_most={decl.most}"]


def _spell(name: str, *args: str, align: str = N.END) -> str:
    given = [*args, 'align="start"'] if align == N.START else args
    return f"{name}({', '.join(given)})"


def _argument(value: N.Argument) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return to_python(value) if isinstance(value, Expr) else repr(value)


def _where(formula: Expr, tables: tuple[DataDecl, ...], lengths: Lengths) -> str:
    names = "h, q, k" if "h" in E.symbols(formula) else "q, k"
    held = "".join(f", {decl.name}={_values(decl)}" for decl in tables if decl.values)
    made = "" if lengths == ANY_LENGTHS else f", made_for={lengths}"
    return f"where(lambda {names}: {to_python(formula)}{held}{made})"


def _values(decl: DataDecl) -> str:
    if isinstance(decl.values, Computed):  # depends on lengths, so it has no text
        return "..."
    return str(decl.array.tolist())
