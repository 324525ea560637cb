"""Run-time selection in NumPy: exact for any scores.

Scores are fp32, as are the means over the pairs of a block; equal ones go to the lower index. NaN
ranks below every number, -inf included, and among NaN the lower index wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core.bundle import LayoutRecipe
from maskc.core.captured import HELD
from maskc.core.data import QUESTION, DataDecl, DataKind
from maskc.core.errors import DataMissing
from maskc.core.evaluator import evaluate
from maskc.core.problem import TileShape
from maskc.core.selection import RANKING, Selection, Share
from maskc.core.sizes import Sizes
from maskc.layout.inputs.call_data import bind_arrays, split_call_data
from maskc.layout.inputs.captured import atom_arrays, held_arrays
from maskc.layout.tiles.chosen_blocks import NONE, Chosen
from maskc.layout.tiles.lists import extents, sequence_arrays
from maskc.layout.topk.blocks import Blocking, Blocks
from maskc.layout.topk.scores import Scores, given

_PAIRS = 1 << 21
"""Pairs, on all heads that share, that are ranked at a time."""
_ANY_TILE = TileShape(64, 64)


def bind_ranked(
    decls: tuple[DataDecl, ...], params: tuple[tuple[str, int], ...],
    selections: tuple[Selection, ...], unread: Iterable[str], data: Mapping[str, object],
    n_q: int, n_kv: int,
) -> tuple[dict[str, int], dict[str, np.ndarray]]:  # fmt: skip
    """Bind everything that a mask reads at given lengths, without q and k: for questions about it.

    Where it has run-time selections, `data` holds `scores`, by which all of them rank, and may hold
    `n_heads` and `heads_kv`; as for `Mask.dense`.

    Args:
        decls, params, selections, unread: of the mask, see `Bundle`.
        data: what the caller passed by name.

    Returns:
        A value for every parameter, and all arrays: int32, [.., elements] with any leading batch
        and heads.

    Raises:
        DataMissing: a selection has no scores (MC301).
        MaskcError: as `split_call_data`, `bind_arrays`, `scores_of`.
    """
    asked = dict(data)
    if selections:
        scores, heads, heads_kv = (asked.pop(name, None) for name in RANKING)
        if scores is None:
            raise DataMissing("scores", "what topk ranks", at="scores")
        decls = tuple(decl for decl in decls if decl.kind is not DataKind.scoring)
    values, given_data = split_call_data(decls, params, asked, unread, QUESTION)
    arrays = bind_arrays(decls, given_data, n_q, n_kv)
    held: Any = data.get(HELD)
    if held is not None:
        tables = held_arrays(held, values, n_q, n_kv)
        arrays |= tables | atom_arrays(decls, tables, n_q, n_kv)
    if selections:
        arrays |= _by_scores(selections, scores, n_q, n_kv, heads, heads_kv, values, arrays)
    return values, arrays


def _by_scores(
    selections: tuple[Selection, ...], scores: Any, n_q: int, n_kv: int, heads: Any,
    heads_kv: Any, params: Mapping[str, int], data: Mapping[str, np.ndarray],
) -> dict[str, Any]:  # fmt: skip
    """Return the choices of selections that all rank by the same tensor."""
    batch, counted = (1, 1, *np.shape(scores)[:-2])[-2:]
    heads = heads or max([counted, *(len(selection.allowed) for selection in selections)])
    extent = Sizes(batch, heads, heads_kv or heads, n_q, n_kv)
    scores_by_name: dict[str, Any] = {}
    for selection in selections:
        ranked = given({"scores": scores}, selection, batch, heads, n_q, n_kv)
        scores_by_name[selection.name] = choose(
            selection, ranked, extent, params, {**data, **scores_by_name}, best
        )
    return scores_by_name


Rank = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""The ranking function, as in `best`."""


def choose(
    selection: Selection, scores: Scores, extent: Sizes, params: Mapping[str, int],
    data: Mapping[str, np.ndarray], rank: Rank,
) -> Chosen:  # fmt: skip
    """The chosen blocks of every block of queries.

    Args:
        scores: what candidates are ranked by.
        params: a value for every parameter.
        data: the arrays that the allowed pairs depend on, as `bind_arrays` gives them, and earlier
            selections.
        rank: `best`, or what does the same.

    Returns:
        Lists [batch or 1, heads or 1, query blocks, min(k, key blocks)], at least 1 wide; of the
        heads that share, all have the same. If blocks count from positions, lists of the keys of
        chosen blocks for every query.
    """
    (q_step, k_step), groups = selection.table, sharing(selection.share, extent)
    rows, columns = -(-extent.n_q // q_step), -(-extent.n_kv // k_step)
    blocking = Blocking(selection, extent, data)
    allowed = _Allowed(selection, extent, params, data, blocking)
    batch = extent.batch if scores.batched or allowed.batched else 1
    by_head = scores.by_head or allowed.by_head
    differ = len(groups) > 1 and by_head
    heads = extent.heads_q if differ else 1
    width = min(selection.k * (selection.block // k_step), columns)
    lists = np.full((batch, heads, rows, max(1, width)), NONE)
    step = max(1, _PAIRS // max(1, selection.q_block * extent.n_kv * len(groups[0])))
    anything = selection.k and columns and extent.heads_q
    for sequence in range(batch) if anything else ():
        own_groups = groups if differ else [groups[0] if by_head else groups[0][:1]]
        blocks = [blocking.of(sequence, group[0]) for group in own_groups]
        for top in range(0, max(len(rows.q) for rows in blocks), step):
            for group, group_rows in zip(own_groups, blocks, strict=True):
                if top >= len(group_rows.q):
                    continue  # other heads have more blocks
                span = slice(top, min(top + step, len(group_rows.q)))
                asked = _Rows(group_rows, sequence, group, span)
                best_keys = rank(*_candidates(asked, scores, allowed), selection.k)
                for head in group if differ else [0]:
                    _enter(lists[sequence, head], best_keys, asked, bool(selection.at))
    return Chosen(lists, columns, k_step, q_step)


def _enter(lists: np.ndarray, best_keys: np.ndarray, asked: _Rows, by_keys: bool) -> None:
    """Write what some blocks of queries chose into the lists of a head.

    Args:
        by_keys: whether lists are those of queries, and have keys.
    """
    if not by_keys:
        lists[asked.span, : best_keys.shape[1]] = best_keys
        return
    query, key = asked.blocks.keys_of(best_keys, asked.span)
    first = np.searchsorted(query, query)
    lists[query, np.arange(len(query)) - first] = key


def sharing(share: Share, extent: Sizes) -> list[list[int]]:
    """The query heads that select together."""
    size = {
        Share.head: 1,
        Share.group: extent.heads_q // max(1, extent.heads_kv),
        Share.all: extent.heads_q,
    }[share]
    size = max(1, size)
    return [list(range(first, first + size)) for first in range(0, extent.heads_q, size)] or [[0]]


# ------------------------------------------------------------------ the best of a row


def best(scores: np.ndarray, live: np.ndarray, k: int) -> np.ndarray:
    """The `k` best live columns of every row, ascending.

    Args:
        scores: float32 [rows, columns]; those that are not live do not matter.
        live: bool, likewise.

    Returns:
        int32 [rows, min(k, columns)]; NONE behind a row's last column.
    """
    rows, columns = scores.shape
    width = min(k, columns)
    if not width or not rows:
        return np.full((rows, width), NONE)
    order = _ascending(scores).astype(np.uint64) << np.uint64(32)
    order |= np.arange(1 << 32, (1 << 32) - columns, -1, dtype=np.uint64) - np.uint64(1)
    order = np.where(live, order, np.uint64(0))
    if width < columns:
        order = np.partition(order, columns - width, axis=1)[:, columns - width :]
    keys = np.uint64((1 << 32) - 1) - (order & np.uint64((1 << 32) - 1))
    return np.sort(np.where(order == 0, np.uint64(NONE), keys).astype(np.int32), axis=1)


def _ascending(scores: np.ndarray) -> np.ndarray:
    """uint32 that ascend with the scores: 0 for NaN, one for both zeros."""
    bits = (scores + np.float32(0)).view(np.uint32)
    sign = bits >> np.uint32(31)
    turned = np.where(sign == 1, ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(scores), np.uint32(0), turned)


# ------------------------------------------------------------------ candidates


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some blocks of queries of one sequence, on heads that select together."""

    blocks: Blocks
    sequence: int
    group: Sequence[int]
    span: slice
    """The blocks of queries."""

    @property
    def queries(self) -> tuple[int, int]:
        """The first query, and the one past the last."""
        return self.blocks.queries(self.span)

    def sums(self, values: np.ndarray, dtype: type) -> np.ndarray:
        """Sums of values [queries, n_kv] over blocks; the values where blocks are pairs."""
        rows = self.blocks.q[self.span] - self.queries[0]
        for axis, starts in ((1, self.blocks.k), (0, rows)):
            if (
                len(starts) < values.shape[axis]
            ):  # rows first: the other way takes five times as long
                values = np.add.reduceat(values, starts, axis=axis, dtype=dtype)
        return values


def _candidates(asked: _Rows, scores: Scores, allowed: _Allowed) -> tuple[np.ndarray, np.ndarray]:
    """(float32 scores, which are candidates), both [query blocks, key blocks]."""
    total: np.ndarray | float = 0.0
    count: np.ndarray | int = 0
    for head in asked.group:
        pairs, live = allowed.rows(asked, head)
        span = (asked.span.start, asked.span.stop) if scores.cells else asked.queries
        scored = scores.rows(asked.sequence, head, *span)
        if live is pairs and len(asked.group) == 1:
            return scored, pairs
        if scores.cells:
            live = np.minimum(live, 1)
            total = total + np.where(live, scored, 0)
        else:
            total = total + asked.sums(np.where(pairs, scored, 0), np.float64)
        count = count + live
    means: np.ndarray = (total / np.maximum(count, 1)).astype(np.float32)
    return means, np.asarray(count) > 0


class _Allowed:
    """The pairs that a selection may choose from."""

    def __init__(
        self, selection: Selection, extent: Sizes, params: Mapping[str, int],
        data: Mapping[str, np.ndarray], blocking: Blocking,
    ) -> None:  # fmt: skip
        self._n_kv, self._data = extent.n_kv, data
        self._values = {**params, "n_q": extent.n_q, "n_kv": extent.n_kv}
        self._masks = [LayoutRecipe(_ANY_TILE, formula, None) for formula in selection.allowed]
        sizes = [extents(mask, data) for mask in self._masks]
        self.batched = blocking.batched or max(batch for batch, _ in sizes) > 1
        """Whether sequences differ."""
        self._tables = blocking.by_head or max(heads for _, heads in sizes) > 1
        self.by_head = self._tables or len(self._masks) > 1
        """Whether heads differ."""
        self._known: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._span = slice(0)

    def rows(self, asked: _Rows, head: int) -> tuple[np.ndarray, np.ndarray]:
        """(bool [queries, n_kv], how many of each candidate's pairs that are); computed once where
        sequences or heads share them."""
        if self._span != asked.span:
            self._known, self._span = {}, asked.span
        number, sequence = head if len(self._masks) > 1 else 0, asked.sequence
        key = (number, sequence if self.batched else 0, head if self._tables else 0)
        if key not in self._known:
            mask, (first, last) = self._masks[number], asked.queries
            env = {
                **self._values, **sequence_arrays(mask, self._data, sequence, head),
                "q": np.arange(first, last)[:, None], "k": np.arange(self._n_kv)[None, :],
            }  # fmt: skip
            shape = (last - first, self._n_kv)
            pairs = np.broadcast_to(evaluate(mask.keep, env), shape)
            self._known[key] = pairs, asked.sums(pairs, np.int64)
        return self._known[key]
