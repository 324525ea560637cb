"""Masks that read data: the part that is known without the data.

The terms without data are laid out once per lengths: the tiles that some data could make live. If
data are on a device, its kernels drop the tiles that the data rule out, see
templates/common/tile_lists.cu.j2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.widths import is_list

CHUNK = 1024
"""Entries that a block of the device reads of an array that no tile has as its tokens."""

_LEAST_BLOCK = 8
"""The fewest tokens that an entry of a table stands for: a tile reads all that it covers."""


def at_tokens(load: E.Load) -> bool:
    """Whether tiles read an array at their own queries, or keys."""
    return load.index in ((E.Q,), (E.K,))


def has_few_entries(load: E.Load) -> bool:
    """Whether a tile reads few entries of an array."""
    return all(map(_is_short, load.index))


def has_pairs(load: E.Load) -> bool:
    """Whether an array has an entry for each query and key."""
    return load.index == (E.Q, E.K)


def _is_short(index: E.Expr) -> bool:
    """Whether an index has few values on a tile."""
    if E.arrays(index):
        return False
    if not E.symbols(index) & {"q", "k"}:
        return True
    if not isinstance(index, E.FloorDiv) or index.den < _LEAST_BLOCK:
        return False
    terms = E.split_linear(index.num)[1]
    return bool(terms) and all(
        isinstance(term, E.Sym) and abs(factor) == 1 for factor, term in terms
    )


class Split(NamedTuple):
    """A mask split into a part without data and a part with data."""

    hull: Expr
    """All pairs that any data could keep; it reads none."""
    rest: Expr
    """The formula to test in tiles of the hull: the terms with data if the hull consists of all
    other terms, otherwise the whole mask."""
    exact: bool
    """Whether hull and rest together are the mask."""


def reads_data(expr: Expr) -> bool:
    """Whether a formula reads an array, lists of ids that the formula itself has aside."""
    return any(not is_list(name) for name in E.arrays(expr))


def split(keep: Expr) -> Split:
    """Divide a mask, lifted or not."""
    terms = E.conjuncts(keep)
    static = E.conj(*(term for term in terms if not reads_data(term)))
    rest = E.conj(*filter(reads_data, terms))
    of_rest = hull(rest)
    if of_rest == E.ALWAYS:
        return Split(static, rest, True)
    return Split(E.conj(static, of_rest), keep, False)


def hull(expr: Expr) -> Expr:
    """Return the formula with every comparison that reads data replaced by true. Negations apply to
    comparisons only, so the result contains every pair that some data could keep."""
    match expr:
        case E.All(terms):
            return E.conj(*map(hull, terms))
        case E.Any(terms):
            return E.disj(*map(hull, terms))
    return E.ALWAYS if reads_data(expr) else expr


class BlockReading(NamedTuple):
    """An array as tiles read it, see templates/common/lib/read_arrays.cuh."""

    slot: int
    """The index among the data arrays."""
    side: int
    """0: at the queries of a tile, 1: at its keys, -1: elsewhere only."""
    writes: bool
    """Whether what is read is written down for the kernels: the first reading of a slot is."""


def readings_of(shapes: Iterable[Expr], reads: tuple[str, ...]) -> tuple[BlockReading, ...]:
    """Return how tiles read the arrays of masks.

    Args:
        shapes: the masks of all heads, lifted or not.
        reads: their arrays, in the order of the kernels' slots.
    """
    readings: dict[tuple[int, int], None] = {}
    loads = [load for shape in shapes for load in E.loads(shape)]
    for slot, name in enumerate(reads):
        indices = {load.index for load in loads if load.array == name}
        sides = [side for side, token in enumerate((E.Q, E.K)) if (token,) in indices]
        readings |= dict.fromkeys((slot, side) for side in sides or [-1])
    first = dict(reversed(readings))
    return tuple(BlockReading(slot, side, first[slot] == side) for slot, side in readings)
