"""Tile lists built on the device (templates/common/tile_lists.cu.j2) from any data on it.

The candidates are all tiles that the mask could have with any data. The mask's own formula is
evaluated on a whole tile by interval arithmetic, with the bounds of each array on the tile. A tile
is dropped if no pair can be live, and is full if every pair must be. An array with an entry per
pair has no bounds: it rules out no tile, so only calls with few queries read it on the device.
"""

from __future__ import annotations

from dataclasses import replace

from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.core.data import DataKind
from maskc.core.widths import is_list
from maskc.layout.tiles.data_tiles import at_tokens, has_few_entries, has_pairs
from maskc.plan.types import KernelPlan

REASON = (
    "given on the device, data are read there: kernels list the tiles that they leave, and nothing "
    "waits; lists are kept while the arrays stay as they are; the host reads arrays by head"
)

_KINDS = (
    DataKind.documents, DataKind.flags, DataKind.intervals, DataKind.positions, DataKind.tree,
    DataKind.table,
)  # fmt: skip


def matches(plan: KernelPlan) -> bool:
    """Whether the masks of all heads read arrays of a call, if any, and run whole, in lists.

    Parts over listed tokens are allowed: the host runs them, or the device if the mask declares an
    upper bound on the tokens (`at_most`).
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
    readable = (at_tokens(load) or has_few_entries(load) or has_pairs(load) for load in loads)
    return len({load.array for load in loads}) <= MAX_ARRAYS and all(readable)


def listed(plan: KernelPlan) -> KernelPlan:
    """Return the plan, with permission to build tile lists on the device."""
    return replace(plan, data_lists=True, reasons=(*plan.reasons, REASON))
