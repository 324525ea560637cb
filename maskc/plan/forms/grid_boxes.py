"""Choose the boxes of a grid that serve as tiles: the fastest ones at a likely size of the grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from maskc.core.boxes import MAX_ALONG, Boxes, axis_relations, sub_box
from maskc.core.bundle import EXCLUSIVE_DQ
from maskc.core.coefficients import STEP_KEYS
from maskc.core.forms import GRID
from maskc.core.problem import Direction, TileShape
from maskc.ir.grid import GridMask, grid_mask
from maskc.ir.types import MaskIR
from maskc.layout.tiles.grid_tiles import sides_by_size
from maskc.plan.families.table import family_of
from maskc.plan.types import KernelPlan

_STORED = 64
"""Tokens that a warpgroup stores at once: of queries, or of keys in a backward pass."""
_MASKED = {Direction.forward: 0.1, Direction.backward: 0.3}
"""The additional time of a partial tile, relative to a full one."""
_LONGEST = 256
"""The most tokens of a box along an axis: the copy engine's limit."""


def grid_masks(masks: tuple[MaskIR, ...]) -> tuple[GridMask, ...]:
    """Return masks as products over the axes of one grid; empty if some mask is not such a
    product."""
    in_grid = [grid_mask(ir.keep) for ir in masks]
    if None in in_grid or len({mask.extents for mask in in_grid if mask}) > 1:
        return ()
    return tuple(mask for mask in in_grid if mask)


def boxes_for(
    masks: tuple[GridMask, ...], tiles: Sequence[TileShape], direction: Direction,
    tests_pairs: bool = False,
) -> tuple[TileShape, tuple[int, ...], tuple[int, ...]] | None:  # fmt: skip
    """Return a tile and its boxes of queries and of keys; None if consecutive tokens are as good.

    The first axis of the likely size is as long as the longest other axis.

    Args:
        masks: over one grid.
        tiles: to choose from.
        direction: the pass, which decides what is stored.
        tests_pairs: whether tiles of consecutive tokens test every pair. Boxes have bits of each
            axis, which take half the time (NATTEN 7 x 7 of 64, D 64, forward, H200: 0.064 ms in
            boxes of whole rows, 0.123 ms by pairs).
    """
    extents = masks[0].extents
    if max(extents) > MAX_ALONG:
        return None
    grid = (max(extents), *extents)
    relations = [
        [sides_by_size(relation) for relation in axis_relations(mask.axes, grid, {})]
        for mask in masks
    ]
    times: dict[tuple[int, int, int], list[tuple[int, int]]] = {}

    def count(q: tuple[int, ...], k: tuple[int, ...]) -> float:
        live, full = [1] * len(masks), [1] * len(masks)
        for axis, (own_q, own_k) in enumerate(zip(q, k, strict=True)):
            place = axis, own_q, own_k
            if place not in times:
                visits = [relation[axis](own_q, own_k) for relation in relations]
                times[place] = [(int(x.live.sum()), int(x.full.sum())) for x in visits]
            for number, (some, every) in enumerate(times[place]):
                live[number] *= some
                full[number] *= every
        return sum(live) + _MASKED[direction] * (sum(live) - sum(full))

    backward = direction is Direction.backward
    best = []
    for tile in tiles:
        stored_q, stored_k = (tile.q, _STORED) if backward else (_STORED, tile.k)
        shapes = product(_shapes(tile.q, grid, stored_q), _shapes(tile.k, grid, stored_k))
        least, q, k = min((count(q, k), q, k) for q, k in shapes)  # of equal ones the widest
        best.append((least * tile.q * (tile.k + STEP_KEYS), -tile.k, tile, q, k))
    _, _, tile, q, k = min(best)
    if _consecutive(q, grid) and _consecutive(k, grid) and not tests_pairs:
        return None
    return tile, q, k


def _shapes(tokens: int, grid: tuple[int, ...], stored: int) -> Iterator[tuple[int, ...]]:
    """Yield boxes of `tokens` tokens that divide into boxes of `stored` consecutive rows."""
    divisors = [d for d in range(1, min(tokens, _LONGEST) + 1) if tokens % d == 0]
    for sides_of in product(divisors, repeat=len(grid)):
        if prod(sides_of) == tokens and sub_box(sides_of, stored):
            yield sides_of


def _consecutive(box: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Whether the tokens of every box are consecutive."""
    inner = next((i for i, side in enumerate(box) if side > 1), len(box) - 1)
    whole = zip(box[inner + 1 :], grid[inner + 1 :], strict=True)
    return all(side == extent for side, extent in whole) and not grid[inner] % box[inner]


def box_note(boxes: Boxes) -> str:
    """Describe the grid and its boxes for the reader."""
    sizes = (" x ".join(map(str, sides)) for sides in (boxes.q, boxes.k, ("N", *boxes.extents)))
    return "{} queries x {} keys of {}".format(*sizes)


def in_boxes(plan: KernelPlan) -> KernelPlan | None:
    """Return the plan in boxes of a grid; None if masks are not products over a grid, or tiles of
    consecutive tokens are as good."""
    grid, tile, schedule = family_of(plan.target).grid, plan.tile, plan.schedule
    if grid is None:
        return None
    in_grid = grid_masks(tuple(mask.ir for mask in plan.masks))
    if not in_grid or not (plan.runs[0] % tile.k or plan.runs[1] % tile.q):
        return None
    backward = plan.direction is Direction.backward
    schedules = (schedule,) if backward else grid(plan.padded)
    by_tile = {schedule.tile: schedule for schedule in schedules}
    chosen = boxes_for(in_grid, tuple(by_tile), plan.direction, plan.tests > 0)
    if chosen is None:
        return None
    tile, of_q, of_k = chosen
    schedule = by_tile[tile]
    boxes = Boxes(in_grid[0].extents, of_q, of_k, schedule.score_rows if backward else tile.k)
    masks = tuple(
        replace(mask, axes=on_grid.axes) for mask, on_grid in zip(plan.masks, in_grid, strict=True)
    )
    # Finding a token of a box while dq is at hand takes more registers than there are.
    modes = tuple((name, mode) for name, mode in schedule.modes if name != EXCLUSIVE_DQ)
    return replace(plan, form=GRID, masks=masks, boxes=boxes, distances=False, use_ranges=False,
                   tile=tile, schedule=replace(schedule, modes=modes))  # fmt: skip


def why_no_boxes(plan: KernelPlan) -> tuple[str, ...]:
    """Return why a product over a grid does not run in boxes; empty for other masks."""
    in_grid = grid_masks(tuple(mask.ir for mask in plan.masks))
    if not in_grid or family_of(plan.target).grid is None:
        return ()
    grid = " x ".join(map(str, ("N", *in_grid[0].extents)))
    return (f"a product over a grid of {grid}: tiles of consecutive tokens are as good as boxes",)
