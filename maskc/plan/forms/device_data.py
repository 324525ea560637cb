"""Tile lists made on the device (templates/common/tile_lists.cu.j2), from any data that are given
there.

The candidates are all tiles that the mask could have with any data. The mask's own formula is
evaluated on a whole tile by interval arithmetic, with the bounds of each array on the tile. A tile
is dropped if no pair can be live, and is full if every pair must be.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.core.data import DataKind
from maskc.core.widths import is_list
from maskc.plan.types import KernelPlan

REASON = (
    "given on the device, data are read there: kernels list the tiles that they leave, and nothing "
    "waits; lists are kept while the arrays stay as they are; the host reads arrays by head"
)

_KINDS = (
    DataKind.documents, DataKind.flags, DataKind.intervals, DataKind.positions, DataKind.tree,
    DataKind.table,
)  # fmt: skip
_LEAST_BLOCK = 8
"""The fewest tokens that an entry of a table stands for: a tile reads all that it covers."""


def matches(plan: KernelPlan) -> bool:
    """Whether the masks of all heads read arrays of a call, if any, and run whole, in lists.

    Parts over listed tokens are no hindrance: the host takes them, and the device where the mask
    promises how many tokens there are.
    """
    split = plan.parts and not any(part.listed for part in plan.parts)
    if split or plan.use_ranges or plan.distances or any(mask.ir.selections for mask in plan.masks):
        return False
    decls = {decl for mask in plan.masks for decl in mask.ir.data}
    given = all(
        (decl.kind in _KINDS and decl.from_caller) or (decl.held and decl.rank <= 2)
        for decl in decls
    )
    if not decls or not given:
        return False
    every = (load for mask in plan.masks for load in E.loads(mask.lifted.shape))
    loads = [load for load in every if not is_list(load.array)]
    return len({load.array for load in loads}) <= MAX_ARRAYS and all(map(_readable, loads))


def _readable(load: E.Load) -> bool:
    """Whether tiles read an array at their own tokens, or at few entries."""
    alone = len(load.index) == 1 and load.index[0] in (E.Q, E.K)
    return alone or all(map(_is_short, load.index))


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


def listed(plan: KernelPlan) -> KernelPlan:
    """The plan whose tile lists may be made on the device."""
    return replace(plan, data_lists=True, reasons=(*plan.reasons, REASON))
