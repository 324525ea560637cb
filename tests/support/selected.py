"""Choices of the device, and the lists it made of them: read where a pass would begin to run."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from maskc.core.abi import ATTENTION, LISTED_POINTERS, POINTERS
from maskc.runtime.device_lists.lists_launch import LISTS
from maskc.runtime.device_lists.topk_launch import SELECTED, SelectedPlan
from maskc.runtime.launch.cuda import CudaKernel

WORK = 8
"""Fields of an item."""


def words(pointer: int, *shape: int) -> np.ndarray:
    """A copy of int32 values in memory."""
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(pointer)).reshape(shape) + 0


@dataclass
class Lists:
    """Lists of one call of either pass."""

    numbers: object
    """The argument block without its pointers."""
    bits: list[np.ndarray]
    """bool [batch or 1, heads or 1, rows, columns], by array of the kernel."""
    lines: dict[str, list[list[list[int]]]]
    """`row` and `col`: for every list and tile row (or column) its words."""
    work: np.ndarray
    """int32 [items + merges, WORK]."""
    of_head: np.ndarray
    """Which case each head has."""
    tile: tuple[int, int]
    """Queries and keys of the pass's tiles."""


@dataclass
class Capture:
    """Takes the place of the kernels of passes: nothing is computed."""

    found: list[Lists] = field(default_factory=list)

    def install(self, monkeypatch) -> Capture:
        plans = {}
        called = SelectedPlan.called

        def remember(plan, given):
            plans[id(plan.main)] = plan
            return called(plan, given)

        def run(_, plan, sent, pointers, *rest):
            self.found.append(read(plans[id(plan)], pointers))

        monkeypatch.setattr(SelectedPlan, "called", remember)
        monkeypatch.setattr(CudaKernel, "run", run)
        return self


def read(plan: SelectedPlan, pointers: tuple[int, ...]) -> Lists:
    own, numbers = plan.main, ATTENTION.from_buffer_copy(plan.main.numbers)
    made = dict(zip((*POINTERS, *LISTED_POINTERS), pointers, strict=False))
    arrays = pointers[len(POINTERS) + len(LISTED_POINTERS) :]
    batch, heads = numbers.batch, numbers.heads_q
    counts = {"row": numbers.tile_rows, "col": numbers.tile_cols}
    cases = len(dict(own.tables.parts)["row_ptr"])
    lists = cases * (batch if numbers.list_batch else 1)
    lines = {}
    for side, tiles in counts.items():
        if not made[f"{side}_ptr"]:
            continue
        ptr = words(made[f"{side}_ptr"], lists, tiles + 1)
        entries = words(made[f"{side}_tiles"], int(ptr.max()) + 1)
        lines[side] = [[entries[a:b].tolist() for a, b in pairwise(p)] for p in ptr]
    bits = []
    for number, name in enumerate(plan.arrays):
        steps = numbers.array_batch[number], numbers.array_head[number], numbers.array_row[number]
        shape = batch if steps[0] else 1, heads if steps[1] else 1
        size = steps[1] or steps[0] or _rows(plan, name) * steps[2]
        found = words(arrays[number], *shape, size // steps[2], steps[2])
        wide = np.unpackbits(found.view(np.uint8), axis=-1, bitorder="little").astype(bool)
        bits.append(wide)
    rows = len(dict(own.tables.parts)["work"])
    work = words(made["work"], rows, WORK) if made["work"] else np.zeros((0, WORK), np.int32)
    tile = tuple(LISTS.from_buffer_copy(plan.numbers[1]).tile)
    return Lists(numbers, bits, lines, work, dict(own.tables.parts)["head_variant"], tile)


def _rows(plan: SelectedPlan, number: int) -> int:
    return SELECTED.from_buffer_copy(plan.numbers[0]).rows[number]


# ------------------------------------------------------------------ what they should be


def blocks_of(live: np.ndarray, q_block: int, block: int) -> np.ndarray:
    """bool [..., query blocks, key blocks]: those with a pair of `live` [..., n_q, n_kv]."""
    for axis, size in ((-2, q_block), (-1, block)):
        starts = np.arange(0, live.shape[axis], size)
        live = np.logical_or.reduceat(live, starts, axis=axis)
    return live


def faults(lists: Lists, live: np.ndarray) -> set[str]:
    """Return the mistakes in lists of a mask `live` bool [batch, heads, n_q, n_kv]."""
    found = set()
    batch, heads, *_ = live.shape
    case_count = int(lists.of_head.max()) + 1
    for b, h in np.ndindex(batch, heads):
        number = (b * case_count if lists.numbers.list_batch else 0) + int(lists.of_head[h])
        for side, of_list in lists.lines.items():
            own = live[b, h] if side == "row" else live[b, h].T
            sizes = lists.tile if side == "row" else lists.tile[::-1]
            for i, line in enumerate(of_list[number]):
                part = own[i * sizes[0] : (i + 1) * sizes[0]]
                index = [word >> 1 for word in line]
                if index != sorted(set(index)):
                    found.add(f"{side} order")
                for j in range(-(-part.shape[1] // sizes[1])):
                    pairs = part[:, j * sizes[1] : (j + 1) * sizes[1]]
                    if j not in index and pairs.any():
                        found.add(f"{side} lacks a live tile")
                    if 2 * j + 1 in line and not pairs.all():
                        found.add(f"{side} calls a tile full")
    return found


def work_faults(lists: Lists, backward: bool) -> set[str]:
    """Return the mistakes in a work list."""
    numbers, found = lists.numbers, set()
    items = lists.work[: numbers.items]
    side = "col" if backward else "row"
    tiles = numbers.tile_cols if backward else numbers.tile_rows
    case_count = int(lists.of_head.max()) + 1
    live = items[:, 3] > 0
    if (np.diff(live.astype(int)) > 0).any():
        found.add("an item without tiles before one with some")
    seen = set()
    for tile, head, _, count, _, _, several, _ in items.tolist():
        for own in range(head, head + (several if backward else 1)):
            b, h = divmod(own, numbers.heads_q)
            number = (b * case_count if numbers.list_batch else 0) + int(lists.of_head[h])
            if len(lists.lines[side][number][tile]) != count:
                found.add("count")
            if count and (tile, own) in seen:
                found.add("twice")
            seen.add((tile, own))
    if not backward and len(seen) != tiles * numbers.batch * numbers.heads_q:
        found.add("a row without an item")
    wanted = {
        (tile, b * numbers.heads_q + h)
        for b in range(numbers.batch) for h in range(numbers.heads_q) for tile in range(tiles)
        if lists.lines[side][(b * case_count if numbers.list_batch else 0)
                             + int(lists.of_head[h])][tile]
    }  # fmt: skip
    if not wanted <= seen:
        found.add("lacks an item")
    return found


def integers(*shape: int, seed: int = 0, least: int = -2, most: int = 3) -> torch.Tensor:
    """Small ones, whose products and sums are exact; bf16."""
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.integers(least, most, shape).astype(np.float32)).to(torch.bfloat16)
