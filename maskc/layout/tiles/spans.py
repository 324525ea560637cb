"""Finds the live tiles of each tile row or column: a stretch of a list, or of the tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from maskc.core.bundle import LayoutRecipe
from maskc.core.layout import FULL, BlockLayout
from maskc.layout.tiles.build import build, loops_hold, values_of
from maskc.layout.tiles.loops import loop_spans


@dataclass(frozen=True, eq=False)
class Spans:
    """The live tiles of several lists, int64 [lists, tile rows] each (or tile columns)."""

    first: np.ndarray
    """The first live tile; for lists in memory, where the list starts among all entries."""
    count: np.ndarray
    """Live tiles."""
    full_first: np.ndarray
    """Tiles full_first .. full_last - 1 are live and have only live pairs; none for lists."""
    full_last: np.ndarray


def list_spans(ptr: np.ndarray) -> Spans:
    """Spans of offsets [lists, tile rows + 1], as `kernel_lists` gives them."""
    first = ptr[:, :-1].astype(np.int64)
    return Spans(first, np.diff(ptr).astype(np.int64), first, first)


def stack_spans(spans: Sequence[Spans]) -> Spans:
    """One after another, all of one shape."""
    return Spans(
        *(np.concatenate([getattr(s, name) for s in spans]) for name in Spans.__annotations__)
    )


def range_spans(
    recipe: LayoutRecipe, n_q: int, n_kv: int, params: Mapping[str, int],
    arrays: Mapping[str, np.ndarray], columns: bool,
) -> Spans:  # fmt: skip
    """List the tiles of a mask whose live ones are consecutive in every tile row, or column.

    If the recipe has closed forms for these lengths, no list of tiles is built; otherwise the
    layout is.

    Args:
        recipe, n_q, n_kv, params, arrays: as for `build`.
        columns: whether tile columns are wanted.

    Raises:
        As `build`; ValueError: there are gaps, a defect of the compiler.
    """
    values = values_of(recipe, n_q, n_kv, params)
    shape = -(-n_q // recipe.tile.q), -(-n_kv // recipe.tile.k)
    if 0 in shape:
        nothing = np.zeros((1, shape[columns]), dtype=np.int64)
        return Spans(nothing, nothing, nothing, nothing)
    spans = None
    if loops_hold(recipe, values) and all(loop.step == 1 for loop in recipe.loops or ()):
        first, count = loop_spans(recipe.loops or (), values, *shape)
        full = np.array([loop.full for loop in recipe.loops or ()], dtype=bool)
        join = _crossed if columns else _joined
        live, solid = (
            join(first[:, columns], count[:, columns], shape[1]) for columns in (slice(None), full)
        )
        if live is not None and solid is not None:
            spans = Spans(*(part[None] for part in (*live, solid[0], solid[0] + solid[1])))
    if spans is None:
        layout = build(recipe, n_q, n_kv, params, arrays)
        spans = layout_spans(layout.transpose() if columns else layout)
    end = spans.first + spans.count
    return Spans(
        spans.first, spans.count, np.clip(spans.full_first, spans.first, end),
        np.clip(spans.full_last, spans.first, end),
    )  # fmt: skip


def layout_spans(layout: BlockLayout) -> Spans:
    """One list, from explicit tiles; of several full stretches the longest counts.

    Raises:
        ValueError: a row has gaps.
    """
    count = np.diff(layout.row_ptr).astype(np.int64)
    full_first, full_last = np.zeros_like(count), np.zeros_like(count)
    first = np.zeros_like(count)
    live = count > 0
    first[live] = layout.col[layout.row_ptr[:-1][live]]
    last = layout.col[layout.row_ptr[1:][live] - 1]
    if np.any(last - first[live] + 1 != count[live]):
        raise ValueError("the live tiles of a row are not consecutive")
    full = layout.kind == FULL
    owner = np.repeat(np.arange(len(count)), count)
    same = owner[1:] == owner[:-1]
    begins = np.flatnonzero(full & ~np.concatenate([[False], full[:-1] & same])[: len(full)])
    ends = np.flatnonzero(full & ~np.concatenate([full[1:] & same, [False]])[: len(full)]) + 1
    order = np.argsort(ends - begins, kind="stable")  # the longest of a row is written last
    rows = owner[begins[order]]
    full_first[rows] = layout.col[begins[order]]
    full_last[rows] = layout.col[ends[order] - 1] + 1
    return Spans(first[None], count[None], full_first[None], full_last[None])


def _joined(
    first: np.ndarray, count: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """First tile and number of tiles of every tile row, if it is one stretch.

    Args:
        first, count: int32 [rows, loops] of disjoint loops.
        limit: tile columns.
    """
    total = count.sum(axis=1, dtype=np.int64)
    begin = np.where(count > 0, first, limit).min(axis=1, initial=limit).astype(np.int64)
    end = np.where(count > 0, first + count, 0).max(axis=1, initial=0)
    some = total > 0
    if np.any((end - begin)[some] != total[some]):
        return None
    return np.where(some, begin, 0), total


def _crossed(
    first: np.ndarray, count: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """First row and number of rows of every tile column, if its rows are consecutive.

    Rows are counted, added and squared per column in differences along the columns: of all sets of
    n different integers with one sum, consecutive ones have the least sum of squares.
    """
    row, loop = np.nonzero(count)
    begin, end = first[row, loop], first[row, loop] + count[row, loop]
    row = row.astype(np.int64)
    sums = []
    for weight in (np.ones_like(row), row, row * row):
        change = np.zeros(limit + 1, dtype=np.int64)
        np.add.at(change, begin, weight)
        np.subtract.at(change, end, weight)
        sums.append(np.cumsum(change[:-1]))
    n, total, squares = sums
    start = np.where(n > 0, (2 * total - n * (n - 1)) // np.maximum(2 * n, 1), 0)
    want = n * start * start + start * n * (n - 1) + (n - 1) * n * (2 * n - 1) // 6
    even = n * start + n * (n - 1) // 2 == total
    return (start, n) if np.all(even & (want == squares)) else None
