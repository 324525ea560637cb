"""The source that makes tile lists on the device from any data."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.core.bundle import Mode, SourceUnit
from maskc.core.forms import DATA
from maskc.core.problem import TileShape
from maskc.core.tile_bounds import Span
from maskc.emit.environment import render
from maskc.emit.spec import DataListsSpec, Reading, TileText
from maskc.emit.tile_bounds_text import tile_text
from maskc.layout.tiles.data_tiles import CHUNK, readings_of, split
from maskc.plan.forms import device_data
from maskc.plan.types import KernelPlan

_TOKENS = [(E.Q,), (E.K,)]
"""Indices of an array that a tile reads at its own queries, or keys."""


def data_lists_unit(plan: KernelPlan, reads: tuple[str, ...]) -> SourceUnit:
    """The source for the lists of all heads' masks; it knows tiles and lengths from calls.

    Args:
        reads: the mask's arrays, in the order of the kernels' slots.
    """
    every = [mask.lifted for mask in plan.masks]
    shapes = tuple(dict.fromkeys(lifted.shape for lifted in every))
    readings = readings_of(shapes, reads)
    numbers = {(slot, side): number for number, (slot, side, _) in enumerate(readings)}

    def load(node: E.Load, index: tuple[Span, ...]) -> str:
        slot = reads.index(node.array)
        if node.index in _TOKENS:
            return f"bounds_of(p, {numbers[slot, _TOKENS.index(node.index)]}, at)"
        spans = index if len(index) > 1 else (Span(0, 0), *index)
        ends = ", ".join(str(end) for each in spans for end in each)
        return f"entries(p, {slot}, at, {ends})"

    def told(shape: E.Expr) -> TileText:
        found = split(shape)
        text = tile_text(found.rest, load)
        return TileText(text.lines, text.may, text.must, found.exact)

    banner = (
        f"Tile lists of a mask that reads data, made on the device: {plan.target.name}.",
        "Written by `maskc compile`; change the pattern, not this file.",
    )
    spec = DataListsSpec(
        device_data.THREADS, device_data.BLOCKS, CHUNK, device_data.RESULTS,
        tuple(Reading(*each) for each in readings),
        max(len(lifted.args) for lifted in every), max(len(lifted.lists) for lifted in every),
        tuple(map(told, shapes)), banner,
    )  # fmt: skip
    return SourceUnit(
        plan.target.name, render("common/data_lists.cu.j2", spec), TileShape(1, 1), False, (),
        (("usual", Mode(device_data.LAUNCHES)),), form=DATA,
    )  # fmt: skip
