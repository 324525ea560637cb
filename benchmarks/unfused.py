"""What PyTorch's operators make of a mask that chooses at run time: the rival `topk`.

It ranks in fp32 (q and k of half precision are converted, TF32 is off) and gives equal scores to
the lower index, as the mask says; in the tensors' dtype it would choose other keys. All of that is
in its time. Queries are taken in chunks, so that a chunk's scores fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np

from benchmarks.selection import OneSelection, means, one_selection, spans, static_rows
from maskc.dsl.mask import Mask
from maskc.lab.rivals import Unavailable
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, data_on_device

_SCORES = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Scores that are held at a time."""
_FAR = -1e3
"""A score below the best of its row that has no weight, and whose square is no infinity."""
_MAX = 1 << 37
"""Scores of an indexer's heads beyond which a call would take many seconds."""


@contextmanager
def exact_products() -> Iterator[None]:
    """Products of fp32 matrices are made in fp32."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Chooser:
    """Ranks and chooses with PyTorch's operators, as a caller without a kernel for it would."""

    def __init__(self, one: OneSelection, tensors: CaseTensors) -> None:
        """Copies the indexer's tensors, and what the mask allows."""
        case = one.case
        self.one, self.device = one, tensors.q.device
        self._data = data_on_device(case, tensors)
        self._allowed = Rows(one.node.of, one, self.device)

    def keys(self, k: Any) -> Any:
        """fp32 [B, heads of keys, D, columns], or of an indexer [B or 1, D, columns]."""
        node = self.one.node
        if node.score == "indexer":
            return self._data["index_k"].float().transpose(1, 2)
        return means(k.detach().float(), node.block).transpose(2, 3)

    def ranked(self, q: Any, keys: Any, first: int, last: int) -> tuple[Any, Any]:
        """(fp32 [B, owners, blocks, columns], -inf where nothing may be chosen; where something
        may) of some blocks of queries.

        Args:
            keys: as `keys` gives them.
        """
        import torch

        one, case = self.one, self.one.case
        span = slice(first * one.node.q_block, last * one.node.q_block)
        if one.node.score == "indexer":
            rows, weights = (self._data[x][:, :, span].float() for x in ("index_q", "index_w"))
            hits = (rows.flatten(1, 2) @ keys).relu_().view(*rows.shape[:3], one.columns)
            found = hits.mul_(weights[..., None]).sum(1, keepdim=True)
        else:
            rows = means(q[:, :, span].detach().float(), one.node.q_block)
            rows = rows.reshape(case.batch, case.kv_heads, -1, rows.shape[3])
            found = (rows @ keys).view(case.batch, one.owners, -1, last - first, one.columns)
            found = found.mean(2)
        allowed = self._allowed.blocks(first, last)
        return found.masked_fill_(~allowed, -torch.inf), allowed

    def chosen(self, ranked: Any, allowed: Any) -> Any:
        """bool, of ranked's shape: the best, of equal ones the first."""
        import torch

        count = min(self.one.node.k, self.one.columns)
        if not count:
            return torch.zeros_like(ranked, dtype=torch.bool)
        least = ranked.topk(count, 3).values[..., -1:]  # topk does not say which of equal ones
        above, level = ranked > least, ranked == least
        room = count - above.sum(3, keepdim=True, dtype=torch.int32)
        return (above | level & (level.cumsum(3, dtype=torch.int32) <= room)) & allowed

    def listed(self, ranked: Any, allowed: Any) -> tuple[Any, Any]:
        """([B, owners, blocks, k] columns, the best first and of equal ones the first; which of
        them may be chosen)."""
        order = ranked.sort(dim=3, descending=True, stable=True).indices[..., : self.one.node.k]
        return order, allowed.expand(ranked.shape).gather(3, order)

    def table(self, q: Any, k: Any) -> Any:
        """bool [B, owners, blocks of queries, columns]: everything that is chosen."""
        return self.chosen(*self.ranked(q, self.keys(k), 0, self.one.rows))


class Rows:
    """Rows of a static mask on a device: computed where they are consecutive keys, else kept."""

    def __init__(self, mask: Mask, one: OneSelection, device: Any) -> None:
        import torch

        self._mask, self._one, self._device = mask, one, device
        case, known = one.case, spans(mask, one.case, np.arange(one.case.n_q))
        self._ends: list[Any] = []
        if known is not None:
            self._ends = [torch.tensor(end, device=device)[:, None] for end in known]
            self._columns = torch.arange(case.n_kv, device=device)
        self._blocks = None
        if one.node.block > 1 or one.node.q_block > 1:
            self._blocks = torch.tensor(one.cells(mask, np.arange(one.rows)) > 0, device=device)

    @cached_property
    def _kept(self) -> Any:
        """bool [n_q, n_kv]."""
        import torch

        case, step = self._one.case, 1024
        parts = [np.arange(case.n_q)[first : first + step] for first in range(0, case.n_q, step)]
        kept = [torch.tensor(static_rows(self._mask, case, part)) for part in parts]
        return torch.cat(kept).to(self._device)

    def pairs(self, first: int, last: int) -> Any:
        """bool [queries, n_kv] of some queries."""
        if not self._ends:
            return self._kept[first:last]
        low, high = (end[first:last] for end in self._ends)
        return (self._columns >= low) & (self._columns < high)

    def blocks(self, first: int, last: int) -> Any:
        """bool [blocks, columns] of some blocks of queries: whether any pair is kept."""
        if self._blocks is None:
            return self.pairs(first, last)
        return self._blocks[first:last]


def chosen_by_torch(case: Case, tensors: CaseTensors) -> Callable[[Any, Any, Any], Any] | None:
    """Attention as PyTorch's operators give it: scores, topk, a mask, softmax or entmax; where all
    heads choose the same single keys, of those keys alone.

    None where the mask is none of those that `one_selection` knows.

    Raises:
        Unavailable: an indexer would make too many scores.
    """
    one = one_selection(case)
    if one is None:
        return None
    count = one.index_heads * case.n_q * case.n_kv
    if count > _MAX:
        raise Unavailable(f"heads of the indexer would make {count:.3g} scores in memory")
    chooser = Chooser(one, tensors)
    gathers = one.node.block == one.node.q_block == one.owners == case.kv_heads == 1
    if gathers and one.static is None and case.alpha == 1:
        return _gathering(chooser, _SCORES[tensors.device])
    return _masking(chooser, _SCORES[tensors.device])


def _steps(one: OneSelection, scores_of_a_row: int, most: int) -> Iterator[tuple[int, int]]:
    """Ends of chunks of blocks of queries."""
    step = max(1, most // (scores_of_a_row * one.node.q_block))
    for first in range(0, one.rows, step):
        yield first, min(first + step, one.rows)


def _masking(chooser: Chooser, most: int) -> Callable[[Any, Any, Any], Any]:
    import torch

    one, case = chooser.one, chooser.one.case
    node, groups = one.node, (case.batch, case.kv_heads, case.group)
    of = Rows(node.of, one, chooser.device)
    static = Rows(one.static, one, chooser.device) if one.static is not None else None
    heads = {1: (1, 1), case.kv_heads: (case.kv_heads, 1)}.get(one.owners, groups[1:])
    weigh = partial(torch.softmax, dim=4)
    if case.alpha > 1:
        most = most // 4  # fp32 copies of the scores
        weigh = entmax_of_best(case.alpha, node.k if static is None else case.n_kv)

    def part(q: Any, k: Any, v: Any, keys: Any, first: int, last: int) -> Any:
        chosen = chooser.chosen(*chooser.ranked(q, keys, first, last))
        first, last = first * node.q_block, min(last * node.q_block, case.n_q)
        if node.q_block > 1:
            chosen = chosen.repeat_interleave(node.q_block, 2)[:, :, : last - first]
        if node.block > 1:
            chosen = chosen.repeat_interleave(node.block, 3)[..., : case.n_kv]
        keep = chosen & of.pairs(first, last)
        if static is not None:
            keep |= static.pairs(first, last)
        keep = keep.view(-1, *heads, last - first, case.n_kv)
        rows = q[:, :, first:last].reshape(case.batch, case.kv_heads, -1, q.shape[3])
        scores = (case.scale * (rows @ k.transpose(2, 3))).view(*groups, last - first, -1)
        p = weigh(scores.masked_fill_(~keep, -torch.inf))
        out = p.view(case.batch, case.kv_heads, -1, case.n_kv) @ v
        return out.view(case.batch, case.heads, last - first, -1)

    def attend(q: Any, k: Any, v: Any) -> Any:
        keys, of_a_row = chooser.keys(k), case.batch * case.heads * case.n_kv
        steps = _steps(one, of_a_row, most)
        return torch.cat([part(q, k, v, keys, *ends) for ends in steps], 2)

    return attend


def entmax_of_best(alpha: float, count: int) -> Callable[[Any], Any]:
    """alpha-entmax along the last axis where at most `count` scores of a row have weight, alpha
    being 1.5 or 2: its threshold follows from the best ones, in order (Peters, Niculae and Martins,
    2019).

    Raises:
        Unavailable: another alpha.
    """
    import torch

    if alpha not in (1.5, 2.0):
        raise Unavailable(f"its threshold at alpha {alpha:g} takes a search")

    def threshold(x: Any) -> Any:
        best = x.topk(min(count, x.shape[-1])).values.clamp_min(_FAR)
        number = torch.arange(1, best.shape[-1] + 1, device=x.device)
        mean = best.cumsum(-1) / number
        if alpha == 2:
            each = mean - 1 / number
        else:
            spread = (best * best).cumsum(-1) - number * mean * mean
            each = mean - ((1 - spread) / number).clamp_min(0).sqrt()
        held = (each < best).sum(-1, keepdim=True).clamp_min(1)
        return each.gather(-1, held - 1)

    class Entmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: Any) -> Any:
            x = scores.float() * (alpha - 1)
            x = x - x.amax(-1, keepdim=True)
            p = (x - threshold(x)).clamp_min_(0)
            p = (p if alpha == 2 else p * p).to(scores.dtype)
            ctx.save_for_backward(p)
            return p

        @staticmethod
        def backward(ctx: Any, of_p: Any) -> Any:
            (p,) = ctx.saved_tensors
            slope = (p > 0).to(p.dtype) if alpha == 2 else p.sqrt()
            total = slope.sum(-1, keepdim=True, dtype=torch.float32)
            mean = (slope * of_p).sum(-1, keepdim=True, dtype=torch.float32) / total
            return slope * (of_p - mean.to(p.dtype))

    attend: Callable[[Any], Any] = Entmax.apply
    return attend


def _gathering(chooser: Chooser, most: int) -> Callable[[Any, Any, Any], Any]:
    import torch

    one, case = chooser.one, chooser.one.case
    scores = max(one.index_heads, 1) * case.n_kv
    each = case.batch * max(scores, one.node.k * max(case.heads, case.head_dim))

    def part(q: Any, k: Any, v: Any, keys: Any, first: int, last: int) -> Any:
        order, kept = chooser.listed(*chooser.ranked(q, keys, first, last))
        sequence = torch.arange(case.batch, device=q.device)[:, None, None]
        own_k, own_v = (x[:, 0][sequence, order[:, 0]] for x in (k, v))
        rows = q[:, :, first:last].transpose(1, 2)
        scores = case.scale * (rows @ own_k.transpose(2, 3))
        p = scores.masked_fill(~kept[:, 0, :, None], -torch.inf).softmax(3)
        return (p @ own_v).transpose(1, 2)

    def attend(q: Any, k: Any, v: Any) -> Any:
        keys = chooser.keys(k)
        return torch.cat([part(q, k, v, keys, *ends) for ends in _steps(one, each, most)], 2)

    return attend
