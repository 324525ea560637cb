"""Masks with run-time selections: which keys each query sees, and how many pairs that makes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.selection import Ranks, best, one_selection
from maskc import driver
from maskc.core.bundle import LayoutRecipe
from maskc.core.evaluator import evaluate
from maskc.core.problem import TileShape
from maskc.core.sizes import Sizes
from maskc.dsl import nodes as N
from maskc.dsl.nodes import walk
from maskc.layout import best as best_of_floats
from maskc.layout import bind_arrays, choose, scores_of, sequence_arrays
from maskc.reference import ranking
from maskc.reference.pairs import PairPlace, keep
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, host

_ROWS = 256
"""Queries whose pairs are counted at a time."""
_SCORES = 1 << 24
"""Scores that are held at a time."""


class ChosenPairs:
    """The live pairs of a case, by batch and head; see `Pairs`."""

    source = "the definition of what is chosen, in fp64"

    def __init__(self, case: Case, tensors: CaseTensors) -> None:
        """Nothing is chosen yet."""
        self.case, self._tensors = case, tensors
        self.batched, self.by_head = case.batch > 1, True
        self._nodes = [node for node in walk(case.mask) if isinstance(node, N.TopK)]
        self._one = one_selection(case)
        self._ranks = Ranks(self._one, tensors) if self._one else None
        self._key: tuple[int, bytes] | None = None
        self._latest: Any = None

    @cached_property
    def _qk(self) -> tuple[np.ndarray, np.ndarray]:
        """q and k on the host."""
        return host(self._tensors.q), host(self._tensors.k)

    def rows(self, batch: int, head: int, rows: np.ndarray) -> Any:
        """bool [len(rows), n_kv]: what these queries, ascending, of one head see, by definition.

        Of masks with one selection where the tensors are, of others in NumPy.
        """
        if self._key != (batch, rows.tobytes()):
            latest = self._seen(batch, rows) if self._one else self._of_nodes(batch, rows)
            self._latest, self._key = latest, (batch, rows.tobytes())
        if self._one:
            return self._latest[self._one.owner(head)]
        case, (whole, scores) = self.case, self._latest
        scope = {
            "q": whole[:, None], "k": np.arange(case.n_kv)[None, :],
            "n_q": np.int64(case.n_q), "n_kv": np.int64(case.n_kv),
        }  # fmt: skip
        place = PairPlace(
            case.n_q, case.n_kv, head, case.heads, case.kv_heads, dict(case.data), scope, scores
        )
        return keep(case.mask, place)[np.isin(whole, rows)]

    def table(self, batch: int) -> Any:
        """bool [owners, blocks of queries, blocks of keys]: all that the one selection chooses."""
        blocks = np.arange(self._one.rows)
        candidates = self._one.cells(self._one.node.of, blocks) > 0
        return best(candidates, self._ranks.rows(batch, blocks), self._one.node.k)

    def _seen(self, batch: int, rows: np.ndarray) -> Any:
        """bool [owners, len(rows), n_kv], where there is one selection."""
        one, blocks = self._one, np.unique(rows // self._one.node.q_block)
        candidates = one.cells(one.node.of, blocks) > 0
        return one.seen(best(candidates, self._ranks.rows(batch, blocks), one.node.k), blocks, rows)

    def _of_nodes(self, batch: int, rows: np.ndarray) -> tuple[np.ndarray, dict]:
        """(queries of the same blocks, their scores by selection), where there are several."""
        size = int(np.lcm.reduce([node.q_block for node in self._nodes]))
        whole = np.flatnonzero(np.isin(np.arange(self.case.n_q) // size, rows // size))
        return whole, {node: self._scores(node, batch, whole) for node in self._nodes}

    def _scores(self, node: N.TopK, batch: int, whole: np.ndarray) -> np.ndarray:
        """float64 [heads or 1, rows, columns] of some queries, whole blocks of them."""
        if node.score == "given":
            scores = np.asarray(self.case.data["scores"], np.float64)
            scores = scores.reshape((1, 1, *scores.shape)[-4:])
            by_pair = scores.shape[2] == self.case.n_q
            chosen = whole if by_pair else np.unique(whole // node.q_block)
            return scores[batch if len(scores) > 1 else 0][:, chosen]
        tensors = dict(zip("qk", self._qk, strict=True)) | {
            name: np.asarray(self.case.data[name])
            for name in ranking.needs(node)
            if name in self.case.data
        }
        own = {name: x[batch : batch + 1] if len(x) > 1 else x for name, x in tensors.items()}
        of_queries = ("q", "index_q", "index_w")
        own = {name: x[:, :, whole] if name in of_queries else x for name, x in own.items()}
        return ranking.scores_of(node, own)[0]

    def live(self) -> int:
        """Live pairs of the whole call, by what the compiler chooses where there are several
        selections, else by definition."""
        return self._live

    @cached_property
    def _live(self) -> int:
        case, total = self.case, 0
        if self._one is not None:
            return self._live_of_one()
        known = driver.analyse_heads(case.mask, case.heads)
        extent = Sizes(case.batch, case.heads, case.kv_heads, case.n_q, case.n_kv)
        for number, ir in enumerate(known.masks):
            params = {name: case.data.get(name, default) for name, default in ir.params.items()}
            mine = {d.name: case.data[d.name] for d in ir.data if d.from_caller}
            arrays: dict[str, Any] = dict(bind_arrays(ir.data, mine, case.n_q, case.n_kv))
            for each in ir.selections:
                scores = scores_of(each, case.data, *self._qk, arrays)
                arrays[each.name] = choose(each, scores, extent, params, arrays, best_of_floats)
            env = {**params, "n_q": case.n_q, "n_kv": case.n_kv, "k": np.arange(case.n_kv)}
            recipe = LayoutRecipe(TileShape(_ROWS, _ROWS), ir.keep, None)
            mine_too = [h for h in range(case.heads) if not known.of_head or
                        known.of_head[h] == number]  # fmt: skip
            for batch in range(case.batch):
                for head in mine_too:
                    own = sequence_arrays(recipe, arrays, batch, head)
                    total += _count(recipe, env | own, case.n_q, case.n_kv)
        return total

    def _live_of_one(self) -> int:
        case, one = self.case, self._one
        if (size := one.sizes()) is not None:
            return size * case.batch * case.heads
        total, of_keys = 0, one.columns * one.owners
        step = max(1, min(_SCORES // of_keys, _SCORES // (one.node.q_block * case.heads * 64)))
        for first in range(0, one.rows, step):
            blocks = np.arange(first, min(first + step, one.rows))
            candidates, pairs, others = one.counts(blocks)
            for batch in range(case.batch):
                chosen = best(candidates, self._ranks.rows(batch, blocks), one.node.k)
                total += int(np.where(host(chosen) > 0, pairs, others).sum())
        return total * (case.heads // one.owners)


def _count(recipe: LayoutRecipe, env: dict[str, Any], n_q: int, n_kv: int) -> int:
    total = 0
    for first in range(0, n_q, _ROWS):
        rows = np.arange(first, min(first + _ROWS, n_q))
        kept = evaluate(recipe.keep, env | {"q": rows[:, None]})
        total += int(np.count_nonzero(np.broadcast_to(kept, (len(rows), n_kv))))
    return total
