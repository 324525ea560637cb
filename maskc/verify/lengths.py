"""The lengths at which a mask shows everything in it, from its own constants.

A window of 4095 keys is plain causal attention below 4096 tokens: a check at shorter lengths
checks nothing. So the longest lengths lie past the largest window, block, residue, stride and
limit of the mask, by more than two tiles: then full, partial and empty tiles all occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from maskc.core import expr as E
from maskc.core.expr import Expr

if TYPE_CHECKING:
    import numpy as np

    from maskc.dsl.mask import Mask
    from maskc.ir.types import MaskIR

Shape = tuple[int, int]
"""(queries, keys)."""

SHORT: tuple[Shape, ...] = ((1, 1), (64, 64), (129, 129), (257, 257), (75, 203), (203, 75))
"""The lengths at which every mask is checked: one token, whole tiles, odd, rectangular."""

MARGIN = 257
"""Tokens past a constant: two tiles of 128, and one more."""
_PAIRS, _PAIRS_RANKED = 1 << 20, 1 << 17
"""Pairs of a long shape; where keys are ranked, whose oracle sorts every row."""
_LONGEST = 1 << 16
"""Tokens: more would not fit in seconds."""
_BESIDE = 4
"""A constant at least this many times smaller may be added to the largest."""
_FEWEST = 16
"""Queries of the longest shapes."""


@dataclass(frozen=True)
class Lengths:
    """The lengths at which a mask is checked."""

    shapes: tuple[Shape, ...]
    constants: tuple[int, ...]
    """Tokens at which something about the mask changes, ascending; those that are reached."""
    unreached: tuple[int, ...] = ()
    """The constants that would take too long to reach."""


def lengths_for(mask: Mask, n_heads: int | None, params: Mapping[str, int]) -> Lengths:
    """Short lengths, and past the largest constant square ones if these have few enough pairs,
    else few queries on many keys and many queries on few keys.

    Args:
        mask: any mask.
        n_heads: query heads, where the mask differs between them.
        params: values of its parameters; the others have their defaults.
    """
    found = sorted(set(constants(mask, n_heads, params)))
    fixed = fixed_lengths(mask)
    if fixed:
        return Lengths(_fitting(fixed), tuple(found))
    reached = [number for number in found if number + number // _BESIDE + MARGIN <= _LONGEST]
    shapes = list(SHORT)
    longest = _past(reached)
    pairs = _PAIRS_RANKED if _ranks(mask) else _PAIRS
    if longest**2 <= pairs:
        shapes += [(longest, longest)] if longest > MARGIN + MARGIN // 2 else []
    else:
        few = max(_FEWEST, pairs // longest)
        shapes += [(few, longest), (longest, few)]
        within = [n for n in reached if (n + n // _BESIDE + MARGIN) ** 2 <= pairs]
        side = _past(within)
        shapes += [(side, side)] if side > MARGIN + MARGIN // 2 else []
    return Lengths(tuple(shapes), tuple(reached), tuple(found[len(reached) :]))


def _past(found: list[int]) -> int:
    """A number of tokens past the largest constant plus a smaller one.

    Where sinks stand before a window, all keys are seen until both are passed.
    """
    largest = max(found, default=0)
    beside = max((number for number in found if number * _BESIDE <= largest), default=0)
    return largest + beside + MARGIN


def _ranks(mask: Mask) -> bool:
    from maskc import driver

    return bool(driver.selects(mask))


# ------------------------------------------------------------------ masks with a table of their own


def fixed_lengths(mask: Mask) -> tuple[range, range] | None:
    """The lengths that fit the tables written in a mask; None where it has none."""
    from maskc.core.data import DataKind
    from maskc.reference.dense import declarations, walk

    tables = [
        decl for node in walk(mask) for decl in declarations(node)
        if decl.kind is DataKind.table and decl.values
    ]  # fmt: skip
    if not tables:
        return None
    sides = []
    for axis in (-2, -1):
        least = max((decl.shape[axis] - 1) * decl.block + 1 for decl in tables)
        most = min(decl.shape[axis] * decl.block for decl in tables)
        sides.append(range(least, most + 1))
    return sides[0], sides[1]


def _fitting(fixed: tuple[range, range]) -> tuple[Shape, ...]:
    """The least, the largest and the middle of the lengths that fit."""
    queries, keys = (
        sorted({side[0], side[len(side) // 2], side[-1]}) if side else [] for side in fixed
    )
    return tuple(dict.fromkeys(product(queries, keys)))


# ------------------------------------------------------------------ constants


def constants(mask: Mask, n_heads: int | None, params: Mapping[str, int]) -> Iterator[int]:
    """Positions and distances, in tokens, at which a formula of the mask can change."""
    from maskc import driver
    from maskc.ir.heads import differs_by_head

    heads = range(n_heads or 1) if differs_by_head(mask) else range(1)
    for head in heads:
        yield from _of_head(driver.lowered(mask, head, n_heads), params)


def _of_head(ir: MaskIR, params: Mapping[str, int]) -> Iterator[int]:
    for decl in ir.data:
        yield decl.block * (decl.options[0] + 1 if decl.kind.value == "random" else 1)
    for each in ir.selections:
        yield each.block * (each.k + 2)  # one more than are chosen, beside the query's own
        yield each.q_block
        for formula in each.allowed:
            yield from _of_formula(formula, params)
    yield from _of_formula(ir.keep, params)


def _of_formula(formula: Expr, params: Mapping[str, int]) -> Iterator[int]:
    for node in E.walk(formula):
        match node:
            case E.Sum(terms=terms):
                yield abs(_value(node, params)) * max((_unit(term) for _, term in terms), default=1)
            case E.FloorDiv() | E.Mod():
                yield _unit(node) if isinstance(node, E.FloorDiv) else node.den * _unit(node.num)
            case E.Member(value, ranges):
                ends = [abs(end) for bounds in ranges for end in bounds]
                yield from (end * _unit(value) for end in ends)


def _value(total: E.Sum, params: Mapping[str, int]) -> int:
    """The constant part, parameters included."""
    return total.const + sum(
        factor * params.get(term.name, term.default)
        for factor, term in total.terms
        if isinstance(term, E.Param)
    )


def _unit(expr: Expr) -> int:
    """The number of tokens for which 1 of this number stands: 64 for k // 64."""
    inner = max(map(_unit, expr.parts), default=1)
    return expr.den * inner if isinstance(expr, E.FloorDiv) else inner


# ------------------------------------------------------------------ what is seen


_TILE = 64


@dataclass(frozen=True)
class Seen:
    """What a mask is at some lengths."""

    case: str
    looks: str
    """`full`, `causal`, `empty`, or `other`."""
    live_share: float
    """The share of live pairs among all pairs."""
    full: int
    """Tiles of 64 x 64 whose pairs are all kept; likewise some, and none."""
    partial: int
    empty: int


def seen(keep: np.ndarray, case: str) -> Seen:
    """Describe a mask.

    Args:
        keep: bool [..., n_q, n_kv].
        case: the lengths, as the report gives them.
    """
    import numpy as np

    n_q, n_kv = keep.shape[-2:]
    keep = keep.reshape(-1, n_q, n_kv)
    causal = np.arange(n_kv)[None, :] <= np.arange(n_q)[:, None] + n_kv - n_q
    rows, columns = np.arange(0, n_q, _TILE), np.arange(0, n_kv, _TILE)
    live = np.add.reduceat(np.add.reduceat(keep, columns, 2, int), rows, 1)
    sizes = np.outer(np.diff([*rows, n_q]), np.diff([*columns, n_kv]))
    full, empty = int((live == sizes).sum()), int((live == 0).sum())
    if keep.all():
        looks = "full"
    elif not keep.any():
        looks = "empty"
    else:
        looks = "causal" if (keep == causal).all() else "other"
    share = float(keep.mean())
    return Seen(case, looks, share, full, live.size - full - empty, empty)
