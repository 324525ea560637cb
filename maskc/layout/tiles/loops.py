"""Closed forms: what the compiler proved about every tile row, for these lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc.core.bundle import TileLoop
from maskc.core.evaluator import evaluate
from maskc.core.layout import FULL, PARTIAL
from maskc.layout.tiles.expand import RowLists, Runs, expand


def loop_rows(
    loops: tuple[TileLoop, ...], values: Mapping[str, int], rows: int, columns: int
) -> RowLists:
    """The tiles of all rows from disjoint, complete closed forms.

    Args:
        loops: formulas over ti, n_q, n_kv and parameters.
        values: n_q, n_kv and the parameters.
        rows, columns: tiles along queries and keys.

    Raises:
        TooManyTiles: more than 2^30 live tiles.
        ValueError: a closed form leaves the grid; a defect of the compiler.
    """
    return expand(_ordered(loops, *loop_spans(loops, values, rows, columns)), 0, rows, columns)


def loop_spans(
    loops: tuple[TileLoop, ...], values: Mapping[str, int], rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """First tile and number of tiles, int32 [rows, loops] each; arguments and errors as above.

    Where a loop has no tiles its first one is `columns`.
    """
    env = dict(values, ti=np.arange(rows))
    first = np.empty((rows, len(loops)), dtype=np.int32)
    count = np.empty((rows, len(loops)), dtype=np.int32)
    for number, loop in enumerate(loops):
        begin, end = evaluate(loop.first, env), evaluate(loop.last, env)
        length = np.where(evaluate(loop.guard, env), (end - begin) // loop.step + 1, 0)
        live = np.broadcast_to(length > 0, rows)
        last = begin + (length - 1) * loop.step
        if np.any(live & ((begin < 0) | (last >= columns))):
            raise ValueError(f"tile loop {number} leaves the {rows} x {columns} grid: {loop}")
        first[:, number] = np.where(live, begin, columns)
        count[:, number] = np.where(live, length, 0)
    return first, count


def _ordered(loops: tuple[TileLoop, ...], first: np.ndarray, count: np.ndarray) -> Runs:
    """The loops of each row as runs that ascend by their first tile."""
    order = np.argsort(first, axis=1, kind="stable")
    first = np.take_along_axis(first, order, axis=1)
    count = np.take_along_axis(count, order, axis=1)
    live = count > 0
    steps = np.array([loop.step for loop in loops], dtype=np.int32)
    kinds = np.array([FULL if loop.full else PARTIAL for loop in loops], dtype=np.uint8)
    same = set(steps.tolist()) <= {1}
    return Runs(
        row=np.nonzero(live)[0].astype(np.int32),
        first=first[live],
        count=count[live],
        step=1 if same else steps[order][live],
        kind=kinds[order][live],
    )
