"""Masks with run-time selections: which keys each query sees, and the rival that chooses too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from maskc import driver
from maskc.bench.alone import count, owned, owner, seen, selection_alone
from maskc.bench.case import Case
from maskc.bench.tensors import Tensors, host, like
from maskc.core.bundle import LayoutRecipe
from maskc.core.evaluate import evaluate
from maskc.core.problem import TileShape
from maskc.dsl import nodes as N
from maskc.dsl.combinators import topk
from maskc.dsl.mask import Mask
from maskc.layout import Extent, best, bind_arrays, choose, scores_of, sequence_arrays
from maskc.reference import ranking
from maskc.reference.dense import walk
from maskc.reference.pairs import Place, keep

_ROWS = 256
"""Queries whose pairs are counted at a time."""


class ChosenPairs:
    """The live pairs of a case, by batch and head; see `Pairs`."""

    source = "the definition of what is chosen, in fp64"

    def __init__(self, case: Case, tensors: Tensors) -> None:
        """Nothing is chosen yet."""
        self.case = case
        self.batched, self.by_head = case.batch > 1, True
        self._q, self._k = host(tensors.q), host(tensors.k)
        known = driver.understood(case.mask, case.heads)
        self.masks, self.of_head = known.masks, known.of_head
        self._nodes = [node for node in walk(case.mask) if isinstance(node, N.TopK)]
        self._alone = selection_alone(case)
        self._key: tuple[int, bytes] | None = None
        self._latest: dict[N.TopK, np.ndarray] = {}
        self._best: dict[int, np.ndarray] = {}

    def rows(self, batch: int, head: int, rows: np.ndarray) -> np.ndarray:
        """bool [len(rows), n_kv]: what these queries of one head see, by the reference."""
        case, size = self.case, int(np.lcm.reduce([node.q_block for node in self._nodes]))
        whole = np.flatnonzero(np.isin(np.arange(case.n_q) // size, rows // size))
        scores = self._known(batch, whole)
        if self._alone is not None:
            own = owner(case, self._alone, head)
            if own not in self._best:
                mine = owned(case, self._alone, own, scores[self._alone])
                self._best = {own: seen(case, self._alone, rows, mine)}
            return self._best[own]
        scope = {
            "q": whole[:, None], "k": np.arange(case.n_kv)[None, :],
            "n_q": np.int64(case.n_q), "n_kv": np.int64(case.n_kv),
        }  # fmt: skip
        place = Place(
            case.n_q, case.n_kv, head, case.heads, case.kv_heads, dict(case.data), scope, scores
        )
        return keep(case.mask, place)[np.isin(whole, rows)]

    def _known(self, batch: int, rows: np.ndarray) -> dict[N.TopK, np.ndarray]:
        """Scores by selection; those of the latest rows are kept."""
        if self._key != (batch, rows.tobytes()):
            self._key, self._best = (batch, rows.tobytes()), {}
            self._latest = {node: self._scores(node, batch, rows) for node in self._nodes}
        return self._latest

    def _scores(self, node: N.TopK, batch: int, whole: np.ndarray) -> np.ndarray:
        """float64 [heads or 1, rows, columns] of some queries, whole blocks of them."""
        if node.score == "given":
            scores = np.asarray(self.case.data["scores"], np.float64)
            scores = scores.reshape((1, 1, *scores.shape)[-4:])
            by_pair = scores.shape[2] == self.case.n_q
            chosen = whole if by_pair else np.unique(whole // node.q_block)
            return scores[batch if len(scores) > 1 else 0][:, chosen]
        tensors = {"q": self._q, "k": self._k} | {
            name: np.asarray(self.case.data[name])
            for name in ranking.needs(node)
            if name in self.case.data
        }
        own = {name: x[batch : batch + 1] if len(x) > 1 else x for name, x in tensors.items()}
        of_queries = ("q", "index_q", "index_w")
        own = {name: x[:, :, whole] if name in of_queries else x for name, x in own.items()}
        return ranking.scores_of(node, own)[0]

    def live(self) -> int:
        """Live pairs of the whole call, by what the compiler chooses."""
        return self._live

    @cached_property
    def _live(self) -> int:
        case, total = self.case, 0
        if self._alone is not None:
            return self._live_alone(self._alone)
        extent = Extent(case.batch, case.heads, case.kv_heads, case.n_q, case.n_kv)
        for number, ir in enumerate(self.masks):
            params = {name: case.data.get(name, default) for name, default in ir.params.items()}
            mine = {d.name: case.data[d.name] for d in ir.data if d.from_caller}
            arrays: dict[str, Any] = dict(bind_arrays(ir.data, mine, case.n_q, case.n_kv))
            for each in ir.selections:
                scores = scores_of(each, case.data, self._q, self._k)
                arrays[each.name] = choose(each, scores, extent, params, arrays, best)
            env = {**params, "n_q": case.n_q, "n_kv": case.n_kv, "k": np.arange(case.n_kv)}
            recipe = LayoutRecipe(TileShape(_ROWS, _ROWS), ir.keep, None)
            mine_too = [h for h in range(case.heads) if not self.of_head or
                        self.of_head[h] == number]  # fmt: skip
            for batch in range(case.batch):
                for head in mine_too:
                    own = sequence_arrays(recipe, arrays, batch, head)
                    total += _count(recipe, env | own, case.n_q, case.n_kv)
        return total

    def _live_alone(self, node: N.TopK) -> int:
        case, total = self.case, 0
        if node.block == node.q_block == 1:
            return count(case, node, None) * case.batch * case.heads
        for batch in range(case.batch):
            scores = self._known(batch, np.arange(case.n_q))[node]
            owners = Counter(owner(case, node, head) for head in range(case.heads))
            for own, heads in owners.items():
                total += heads * count(case, node, owned(case, node, own, scores))
        return total


def _count(recipe: LayoutRecipe, env: dict[str, Any], n_q: int, n_kv: int) -> int:
    total = 0
    for first in range(0, n_q, _ROWS):
        rows = np.arange(first, min(first + _ROWS, n_q))
        kept = evaluate(recipe.keep, env | {"q": rows[:, None]})
        total += int(np.count_nonzero(np.broadcast_to(kept, (len(rows), n_kv))))
    return total


# ------------------------------------------------------------------ PyTorch, unfused


def chosen_by_torch(case: Case, tensors: Tensors) -> Callable[[Any, Any, Any], Any] | None:
    """Attention as PyTorch's operators give it: scores, topk, a mask, softmax.

    None where the mask is none of `topk(...)` and `topk(...) | static`, chosen by each query and
    head for itself from products of q and k.
    """
    import torch

    parts = _parts(case.mask)
    if parts is None:
        return None
    node, static = parts
    n_q, n_kv, size = case.n_q, case.n_kv, node.block
    of, fixed = (like(tensors.q, mask.dense(n_q, n_kv)) for mask in (node.of, static))
    blocks = -(-n_kv // size)
    padded = torch.nn.functional.pad(of, (0, blocks * size - n_kv))
    open_blocks = padded.view(n_q, blocks, size).any(2)
    count = min(node.k, blocks)

    def attend(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(case.group, 1) for x in (k, v))
        means = k if size == 1 else torch.stack([part.mean(2) for part in k.split(size, 2)], 2)
        ranked = (q.detach() @ means.detach().transpose(2, 3)).masked_fill_(
            ~open_blocks, -torch.inf
        )
        chosen = torch.zeros_like(ranked, dtype=torch.bool)
        chosen.scatter_(3, ranked.topk(count, 3).indices, True)
        chosen &= open_blocks
        if size > 1:
            chosen = chosen.repeat_interleave(size, 3)[..., :n_kv]
        scores = case.scale * (q @ k.transpose(2, 3))
        return scores.masked_fill(~(chosen & of | fixed), -torch.inf).softmax(3) @ v

    return attend


def _parts(mask: Mask) -> tuple[N.TopK, Mask] | None:
    """The selection and what joins it."""
    match mask:
        case N.Algebra("|", N.TopK() as node, static) | N.Algebra("|", static, N.TopK() as node):
            pass
        case N.TopK() as node:
            static = node.of - node.of
        case _:
            return None
    by_products = node.score == ("qk" if node.block == 1 else "block_mean")
    plain = node == topk(node.k, node.of, node.score, node.block)
    return (node, static) if by_products and plain and not driver.selects(static) else None
