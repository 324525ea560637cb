"""Masks in parts over the rows of listed tokens: which tokens, and whether parts may pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import N_KV_OF_ALL, N_Q_OF_ALL, LayoutRecipe
from maskc.core.cost import Tally
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import FULL
from maskc.core.listed import Listed
from maskc.core.problem import Direction, TileShape
from maskc.dispatch.programs import Facts
from maskc.layout import build
from maskc.layout.work.tile_counts import Adders

Arrays = Mapping[str, np.ndarray]


class ListedLines(NamedTuple):
    """Rows or columns of listed tokens that a mask has besides its base."""

    listed: Listed
    keep: Expr
    """The pairs, over packed rows."""
    tokens: np.ndarray
    """int32 [most], one sequence's."""


_THIN = 4
"""Part of all tiles that a thin mask has at most."""


def tokens_of(
    listed: Listed, n_q: int, n_kv: int, params: Mapping[str, int], arrays: Arrays
) -> np.ndarray:
    """int32 [sequences or 1, most]: the tokens of a list, ascending, -1 behind the last one.

    Args:
        arrays: the mask's flags, [N] or [sequences, N].
    """
    side = listed.side
    length = n_q if side == "q" else n_kv
    env = {**params, side: np.arange(length), "n_q": n_q, "n_kv": n_kv}
    read = {name: arrays[name] for name in E.arrays(listed.among)}
    sequences = max((len(x) for x in read.values() if x.ndim > 1), default=1)
    per_sequence = []
    for sequence in range(sequences):
        of_sequence = {
            n: x[sequence if len(x) > 1 else 0] if x.ndim > 1 else x for n, x in read.items()
        }
        held = np.broadcast_to(evaluate(listed.among, {**env, **of_sequence}), (length,))
        per_sequence.append(np.flatnonzero(held))
    tokens = np.full((sequences, max(map(len, per_sequence))), -1, np.int32)
    for row, held in zip(tokens, per_sequence, strict=True):
        row[: len(held)] = held
    return tokens


def listed_in_turn(direction: Direction) -> tuple[tuple[str, bool], ...]:
    """Return the launches of a pass in order: the side of the listed rows that each runs over, ""
    for all rows, and whether its results are added to those of earlier launches."""
    if direction is Direction.backward:
        return ("", False), ("q", True), ("k", True)
    return ("", False), ("k", True), ("q", False)


def of_all(n_q: int, n_kv: int) -> dict[str, int]:
    """Return the parameters of masks over some of the tokens."""
    return {N_Q_OF_ALL: n_q, N_KV_OF_ALL: n_kv}


def is_thin(base: LayoutRecipe, params: Mapping[str, int], n_q: int, n_kv: int) -> bool:
    """Whether the mask without its lists has so few tiles that scattered tokens would multiply
    them."""
    layout = build(base, n_q, n_kv, params, {})
    rows, columns = layout.shape
    return _THIN * layout.nnz <= rows * columns


def whole_facts(
    base: LayoutRecipe, lists: Sequence[ListedLines], params: Mapping[str, int], n_q: int,
    n_kv: int, direction: Direction, flags: Arrays = MappingProxyType({}),
) -> Facts:  # fmt: skip
    """Return the tiles of the whole mask: those of its base, and all with a listed key or query.

    The tiles of scattered tokens are many, and one by one they take seconds to find.

    Args:
        base: the mask without its lists, in tiles of the whole mask's source.
        lists: its lists.
        params: of the mask.
        n_q, n_kv: lengths.
        direction: the pass.
        flags: the flags that pairs of listed tokens depend on, [N].
    """
    tile, layout = base.tile, build(base, n_q, n_kv, params, {})
    live = layout.to_dense() > 0
    for listed, keep, tokens in lists:
        of_queries = listed.side == "q"
        lengths = (len(tokens), n_kv) if of_queries else (n_q, len(tokens))
        thin = LayoutRecipe(
            TileShape(1, tile.k) if of_queries else TileShape(tile.q, 1), keep, None
        )
        given = {**params, **of_all(n_q, n_kv)}
        lines = build(thin, *lengths, given, {**flags, listed.array: tokens})
        rows, columns = np.repeat(np.arange(lines.shape[0]), np.diff(lines.row_ptr)), lines.col
        if of_queries:
            rows = tokens[rows] // tile.q
        else:
            columns = tokens[columns] // tile.k
        live[rows, columns] = True
    tiles, full = int(live.sum()), int((layout.kind == FULL).sum())
    backward = direction is Direction.backward
    counts, adders = live.sum(0 if backward else 1), live.sum(1)
    lone, queries = int((counts == 1).sum()), len(live) if backward else 0
    tally = Tally(int((counts > 0).sum()), tiles, tiles - full, lone, queries)
    return Facts(tally, Adders(int(adders.max(initial=0)), int((adders > 0).sum())))
