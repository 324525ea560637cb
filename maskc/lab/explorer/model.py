"""Content of the page as plain values: formulas, shaders, arrays, terms and the compiler's counts.

Lengths and parameters stay symbols in it: the page moves them without asking the compiler again.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from maskc.analysis.counts import count_pairs
from maskc.core import expr as E
from maskc.core.errors import ExplorerTooLarge
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people
from maskc.core.widths import largest, reach
from maskc.driver import selects
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import default_parameters
from maskc.dsl.printer import print_short
from maskc.dsl.slots import emptied
from maskc.emit.glsl_printer import shader
from maskc.ir.lower import terms
from maskc.ir.types import MaskIR
from maskc.layout import Chosen, check_lengths
from maskc.questions.lengths import fixed_lengths
from maskc.questions.mask_at_lengths import pairs_of
from maskc.viz.view import hull_asked
from maskc.viz.words import cut

MAX_BYTES = 1 << 26
"""Bytes of all arrays that a page may hold."""
_EXACT = (1 << 53) - 1
"""The largest number up to which the page computes exactly."""
_COUNTED = 1 << 30
"""Pairs up to which tiles are counted where a mask has no closed form."""
_LONGEST, _LONGEST_COMPARISON = 400, 200
"""Characters of a term's text, and of a comparison's."""

Plain = dict[str, Any]


def mask_model(
    mask: Mask, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None,
    data: Mapping[str, object] | None = None, labels: Mapping[str, str] | None = None,
) -> Plain:  # fmt: skip
    """One mask at given lengths.

    Args:
        mask: any mask; of run-time selections the hull, unless `data` holds `scores`.
        n_q, n_kv: lengths to begin with; as many keys as queries when None.
        n_heads: as for `Mask.layout`.
        data: the arrays and parameters that the mask names.
        labels: what the user calls parameters, where not by their names.

    Raises:
        ExplorerTooLarge: the arrays are too large for a page (MC720).
        MaskcError: as `Mask.layout`.
    """
    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    data = data or {}
    asked = hull_asked(mask, n_q, n_kv, n_heads, data)
    arrays = {name: _plain(array) for name, array in asked.arrays.items()}
    asked = replace(asked, arrays=arrays)
    inner, _ = emptied(mask)
    # Terms may read parameters that the whole mask does not: what causal() absorbs, for example.
    values: Mapping[str, Any] = data
    parameters = {
        name: int(values.get(name, value)) for name, value in default_parameters(inner).items()
    }
    params = parameters | {name: asked.params[name] for ir in asked.irs for name in ir.params}
    stored: dict[bytes, str] = {}
    pool: Plain = {}
    alike = asked.alike(0)
    sets = [
        _set(
            heads if len(alike) > 1 else (), asked.ir(heads[0]), asked.own(heads[0], 0), inner,
            n_heads, (n_q, n_kv, params), pool, stored,
        )
        for heads in alike
    ]  # fmt: skip
    return {
        "formula": _text(mask), "n_q": n_q, "n_kv": n_kv, "fixed": _fixed(mask, arrays),
        "notes": _notes(mask, data, asked.sequences), "sets": sets, "arrays": pool,
        "params": [
            {"name": name, "label": (labels or {}).get(name, name), "value": value}
            for name, value in sorted(params.items())
        ],
    }  # fmt: skip


def _plain(array: Any) -> np.ndarray:
    """An array as it is; lists of chosen blocks as the table they stand for."""
    if not isinstance(array, Chosen):
        return np.asarray(array)
    lists, columns = array.lists, array.columns
    table = np.zeros((*lists.shape[:-1], columns + 1), dtype=np.int32)
    np.put_along_axis(table, np.minimum(lists, columns), 1, axis=-1)
    return table[..., :columns]


def _set(
    heads: tuple[int, ...], ir: MaskIR, arrays: Mapping[str, np.ndarray], mask: Mask,
    n_heads: int | None, at: tuple[int, int, Mapping[str, int]], pool: Plain,
    stored: dict[bytes, str],
) -> Plain:  # fmt: skip
    """One set of pairs: its formula three times, as a tree, as a shader and term by term."""
    head = heads[0] if heads else 0
    written = list(_terms(mask, head, n_heads, ir, arrays))
    bounds = largest([*reach(ir.keep), *(b for term in written for b in reach(term[3]))])
    exact = _constants(bounds) <= _EXACT
    shader_text = shader(ir.keep)
    return {
        "heads": list(heads),
        "keep": tree(ir.keep) if exact else None,
        "bound": tree(bounds),
        "shader": None if shader_text is None else {
            "text": shader_text.text, "params": shader_text.params, "arrays": shader_text.arrays,
            "lists": shader_text.lists, "bound": tree(shader_text.bound),
        },
        "terms": [
            {"depth": depth, "text": text, "place": place, "keep": tree(keep)}
            for depth, text, place, keep in written
        ] if exact else [],
        "arrays": {name: _stored(array, pool, stored) for name, array in arrays.items()},
        "live": _live(ir.keep, *at, arrays),
    }  # fmt: skip


def _live(
    keep: Expr, n_q: int, n_kv: int, params: Mapping[str, int], arrays: Mapping[str, np.ndarray]
) -> int | None:
    """The compiler's count of live pairs; None if it would keep the picture waiting."""
    if n_q * n_kv > _COUNTED:
        return count_pairs(keep, n_q, n_kv, params)
    return pairs_of(keep, n_q, n_kv, params, arrays)


def _constants(bounds: Expr) -> int:
    """The least that a bound can be: of formulas with numbers that no double holds too much."""
    from maskc.core.widths import number

    names = {*E.symbols(bounds), *E.params(bounds), *E.arrays(bounds)}
    return number(bounds, dict.fromkeys(names, 1))


def _terms(
    mask: Mask, head: int, n_heads: int | None, ir: MaskIR, arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[int, str, Plain | None, Expr]]:
    """(depth, text, place, formula) of every term as the user wrote it."""
    known = {*arrays, *E.arrays(ir.keep)}
    for depth, term, formula in terms(mask, head, n_heads):
        unknown = set(E.arrays(formula)) - known
        text, loc = _text(term), getattr(term, "loc", None)
        place = None
        if loc is not None:
            place = {"file": loc.file, "line": loc.line, "col": loc.col, "end": loc.end_col}
        # Arrays that the simplified mask does not read decide nothing in it, nor do choices.
        yield depth, text, place, E.assume_reads(formula, True, unknown)


_PARAM = re.compile(r"param\('(\w+)', -?\d+\)")


def _text(term: Mask) -> str:
    """A term for people: parameters by their names, which the page says the values of."""
    return cut(_PARAM.sub(r"\1", print_short(term)), _LONGEST)


def _stored(array: np.ndarray, pool: Plain, stored: dict[bytes, str]) -> str:
    """The name under which the page finds an array; equal ones are there once.

    Raises:
        ExplorerTooLarge: all together are too large.
    """
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    kinds = (np.int8, np.uint8, np.int16, np.uint16, np.int32)
    kind = next(k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
    content = np.ascontiguousarray(array.astype(np.dtype(kind).newbyteorder("<")))
    key = f"{content.dtype.str}{content.shape}".encode() + content.tobytes()
    if key not in stored:
        stored[key] = f"array{len(stored)}"
        size = sum(map(len, stored))
        if size > MAX_BYTES:
            raise ExplorerTooLarge(f"{size:,}", f"{MAX_BYTES:,}")
        pool[stored[key]] = {
            "shape": list(content.shape), "kind": np.dtype(kind).name,
            "data": b64encode(content.tobytes()).decode(),
        }  # fmt: skip
    return stored[key]


def _fixed(mask: Mask, arrays: Mapping[str, np.ndarray]) -> str:
    """Why the page cannot move the lengths; '' where it can."""
    if arrays:
        return f"the arrays are for these lengths: {', '.join(sorted(arrays))}"
    return "a table in the mask is for these lengths" if fixed_lengths(mask) else ""


def _notes(mask: Mask, data: Mapping[str, object], sequences: int) -> list[str]:
    notes = []
    if selects(mask) and "scores" not in data:
        notes.append(
            "all candidates of topk are shown; with --data scores=... only the selected pairs"
        )
    if sequences > 1:
        notes.append(f"sequence 0 of {sequences} is shown")
    return notes


# ------------------------------------------------------------------ formulas as trees


def tree(expr: Expr) -> Any:
    """Lists, numbers and names; comparisons end with their text, for people."""
    match expr:
        case E.Truth(value):
            return value
        case E.Cmp(op, lhs):
            return [op, tree(lhs), to_people(expr)]
        case E.Member(value, ranges, inside):
            text = cut(to_people(expr), _LONGEST_COMPARISON)
            return ["in", tree(value), [list(pair) for pair in ranges], inside, text]
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
