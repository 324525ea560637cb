"""Masks in parts over the rows of listed tokens: which tokens, whether that pays, and the launches.

Times are in pairs of a full tile, and those of one head, as for residue classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import N_KV_OF_ALL, N_Q_OF_ALL, LayoutRecipe
from maskc.core.evaluator import evaluate
from maskc.core.layout import FULL, BlockLayout
from maskc.core.listed import Listed
from maskc.core.problem import Direction, TileShape
from maskc.dispatch.residue_split import PARTIAL, ROW, launch_cost
from maskc.layout import build

Arrays = Mapping[str, np.ndarray]

_MOVED = 4
"""Passes over a listed row that moving it, and what belongs to it, takes as long as."""

_LAUNCHES = {Direction.forward: 1.0, Direction.backward: 2.5}
"""Launches that a part adds, with those that move rows (a mask with global tokens in 22 calls, an
H200: the faster way is chosen in all of them)."""

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


def of_all(n_q: int, n_kv: int) -> dict[str, int]:
    """Return the parameters of masks over some of the tokens."""
    return {N_Q_OF_ALL: n_q, N_KV_OF_ALL: n_kv}


@dataclass(frozen=True)
class ListedTiles:
    """A part over listed rows, with what its tiles depend on besides lengths."""

    listed: Listed
    recipe: LayoutRecipe
    tokens: np.ndarray
    """int32 [most], one sequence's."""


def is_thin(base: LayoutRecipe, params: Mapping[str, int], n_q: int, n_kv: int) -> bool:
    """Whether the mask without its lists has so few tiles that scattered tokens would multiply
    them."""
    layout = build(base, n_q, n_kv, params, {})
    rows, columns = layout.shape
    return _THIN * layout.nnz <= rows * columns


def times(
    base: LayoutRecipe, parts: tuple[ListedTiles, ...], params: Mapping[str, int],
    language: str, n_q: int, n_kv: int, direction: Direction, heads: int,
) -> tuple[float, float]:  # fmt: skip
    """(whole, with the rows of listed tokens in parts of their own).

    Whole, every tile that has a listed key, or query, is live; which of these the mask has anyway
    is known.

    Args:
        base: the mask without its lists.
        params: of the mask.
        language: of the target, `c` or `cuda`.
        n_q, n_kv: lengths.
        direction: the pass.
        heads: query heads of all sequences, which share launches.
    """
    tile, row = base.tile, ROW[language, direction]
    layout = build(base, n_q, n_kv, params, {})
    live = layout.to_dense() > 0
    alone = _time(layout) + row * n_q
    apart = alone
    launch = _LAUNCHES[direction] * launch_cost(language, direction, heads)
    for part in parts:
        apart += launch
        part_params, count = {**params, **of_all(n_q, n_kv)}, len(part.tokens)
        lengths = (count, n_kv) if part.listed.side == "q" else (n_q, count)
        data = {part.listed.array: part.tokens}
        apart += _time(build(part.recipe, *lengths, part_params, data))
        apart += row * (_MOVED * count + lengths[0])
        of_rows = part.listed.side == "q"
        thin = TileShape(1, tile.k) if of_rows else TileShape(tile.q, 1)
        lines = build(LayoutRecipe(thin, part.recipe.keep, None), *lengths, part_params, data)
        rows, columns = np.repeat(np.arange(lines.shape[0]), np.diff(lines.row_ptr)), lines.col
        if of_rows:
            rows = part.tokens[rows] // tile.q
        else:
            columns = part.tokens[columns] // tile.k
        live[rows, columns] = True
    more = int(live.sum()) - layout.nnz
    return alone + PARTIAL * tile.q * tile.k * more, apart


def _time(layout: BlockLayout) -> float:
    full = int((layout.kind == FULL).sum())
    return layout.tile.q * layout.tile.k * (full + PARTIAL * (layout.nnz - full))
