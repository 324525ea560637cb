"""Sources that make lists on the device: of tiles, from any data, and of rows to be moved."""

from __future__ import annotations

import re
from dataclasses import replace
from textwrap import wrap

from maskc.core import expr as E
from maskc.core.bundle import BY_LENGTHS, BY_QUERIES, DEFAULT, Grid, Launch, Mode, SourceUnit
from maskc.core.forms import DATA, DOCUMENTS, MOVES, PAGES
from maskc.core.problem import TileShape
from maskc.core.tile_bounds import Span
from maskc.emit.c_printer import CPrinter
from maskc.emit.environment import render
from maskc.emit.predicate import ends_of_query
from maskc.emit.spec import DataEnds, DataListsSpec, ListsSpec, SegmentPlaces, TileText
from maskc.emit.tile_bounds_text import tile_text
from maskc.layout.tiles.data_tiles import (
    CHUNK,
    BlockReading,
    at_tokens,
    has_pairs,
    readings_of,
    split,
)
from maskc.plan.list_making import (
    BLOCKS,
    LISTS_OF_LENGTHS,
    LISTS_OF_QUERIES,
    MAKE_LISTS,
    SPOIL_RESULTS,
    THREADS,
)
from maskc.plan.types import KernelPlan

_CAN_OVERLAP = 90
"""Compute capability from which on a launch may begin while the one before it ends."""
MOVING_THREADS = 256
"""The threads of a block that moves rows."""


def banner(what: str, plan: KernelPlan, more: str = "", change: str = "pattern") -> tuple[str, ...]:
    """The comment at the top of a source: what it is, and what to change instead of it."""
    written = f"Written by `maskc compile`; change the {change}, not this file."
    return f"{what}: {plan.target.name}{more}.", written


def lists_source(
    plan: KernelPlan, template: str, spec: ListsSpec, launches: tuple[Launch, ...], form: str,
    *more: tuple[str, Mode],
) -> SourceUnit:  # fmt: skip
    """Return a source that accompanies the passes and takes tiles and lengths from calls.

    Args:
        launches: of its default mode.
        more: other modes.
    """
    return SourceUnit(
        plan.target.name, render(template, spec), TileShape(1, 1), False, (),
        ((DEFAULT, Mode(launches)), *more), form=form,
    )  # fmt: skip


def _of_query(
    plan: KernelPlan, reads: tuple[str, ...], readings: tuple[BlockReading, ...]
) -> DataEnds | None:
    """The keys of the only query of a call, if they are one interval for any data."""
    data = plan.by_query
    if plan.documents or data is None or data.columns or data.alike or len(data.intervals) > 1:
        return None
    if any(side for _, side, _ in readings) or any(mask.lifted.lists for mask in plan.masks):
        return None
    values = {reads[slot]: f"x{number}" for number, (slot, *_) in enumerate(readings)}
    return ends_of_query(data.intervals[0].span, values)


def data_lists_unit(plan: KernelPlan, reads: tuple[str, ...]) -> SourceUnit:
    """The source for the lists of all heads' masks; it knows tiles and lengths from calls.

    Args:
        reads: the mask's arrays, in the order of the kernels' slots.
    """
    every = [mask.lifted for mask in plan.masks]
    shapes = tuple(dict.fromkeys(lifted.shape for lifted in every))
    readings = readings_of(shapes, reads)
    numbers = {(slot, side): number for number, (slot, side, _) in enumerate(readings)}

    by_side = {side: number for number, (_, side, _) in enumerate(readings)}
    segments = SegmentPlaces(by_side.get(0, 0), by_side.get(1, 0), len(reads))

    def load(node: E.Load, index: tuple[Span, ...]) -> str:
        slot = reads.index(node.array)
        if at_tokens(node):
            return f"bounds_of(p, {numbers[slot, int(node.index == (E.K,))]}, at)"
        if has_pairs(node):
            return f"entry_of(p, {slot}, at)"
        spans = index if len(index) > 1 else (Span(0, 0), *index)
        ends = ", ".join(str(end) for span in spans for end in span)
        return f"entries(p, {slot}, at, {ends})"

    def told(shape: E.Expr) -> TileText:
        pieces = split(shape)
        text = re.sub(r"\(Integer\)|\bm\.", "", CPrinter(reads)(shape))
        comment = tuple(wrap(f"Formula of a pair: {text}", 94))
        return replace(tile_text(pieces.rest, load, pieces.exact), comment=comment)

    of_query = _of_query(plan, reads, readings)
    alone = (BY_LENGTHS, LISTS_OF_LENGTHS) if plan.documents else None
    if of_query is not None:
        alone = BY_QUERIES, LISTS_OF_QUERIES
    spec = DataListsSpec(
        banner=banner("Tile lists of a mask that reads data, made on the device", plan),
        threads=THREADS,
        blocks=BLOCKS,
        alone="" if alone is None else alone[0].upper(),
        chunk=CHUNK,
        readings=readings,
        n_args=max(len(lifted.args) for lifted in every),
        n_lists=max(len(lifted.lists) for lifted in every),
        shapes=tuple(map(told, shapes)),
        has_pairs=any(has_pairs(load) for shape in shapes for load in E.loads(shape)),
        of_query=of_query,
        segments=segments if plan.documents else None,
    )
    overlaps, form = plan.target.capability >= _CAN_OVERLAP, DOCUMENTS if plan.documents else DATA
    make, spoil, *others = (
        replace(launch, overlaps=overlaps)
        for launch in (MAKE_LISTS, SPOIL_RESULTS, *(() if alone is None else alone[1:]))
    )
    more = () if alone is None else ((alone[0], Mode(tuple(others), alone[0].upper())),)
    return lists_source(plan, "common/tile_lists.cu.j2", spec, (make, spoil), form, *more)


def moves_unit(plan: KernelPlan) -> SourceUnit:
    """The source that packs the rows of listed tokens; the same for all masks."""
    launches = (
        Launch("list_tokens", Grid.lists, MOVING_THREADS),
        Launch("move_rows", Grid.results, MOVING_THREADS, resident=4),
        Launch("spoil_results", Grid.results, MOVING_THREADS, resident=4),
    )
    spec = ListsSpec(
        banner=banner("Rows of listed tokens, packed and put back", plan, change="template"),
        threads=MOVING_THREADS,
    )
    return lists_source(plan, "common/move_rows.cu.j2", spec, launches, MOVES)


def pages_unit(plan: KernelPlan) -> SourceUnit:
    """The source for steps over pages; the same for all masks."""
    launches = (
        Launch("plan_pages", Grid.lists, MOVING_THREADS),
        Launch("append_rows", Grid.results, MOVING_THREADS, resident=4),
        Launch("gather_rows", Grid.results, MOVING_THREADS, resident=8),
        Launch("return_rows", Grid.results, MOVING_THREADS, resident=8),
    )
    spec = ListsSpec(
        banner=banner("Steps over pages of a pool", plan, change="template"),
        threads=MOVING_THREADS,
    )
    return lists_source(plan, "common/pages.cu.j2", spec, launches, PAGES)
