"""The training loss of an indexer: the divergence of its softmax over the selected keys from the
attention weights.

DeepSeek-AI, "DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse Attention",
2025, the sparse training stage. Torch computes it, from the keys that were chosen alone and some
queries at a time; a backward pass computes these again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from maskc.core.attention_call import CallOptions
from maskc.core.bundle import Bundle
from maskc.core.selection import FACTORS, Score, with_factors
from maskc.core.sizes import Sizes
from maskc.dispatch.call import Bound
from maskc.dispatch.options import alpha_less_1
from maskc.integrations.torch.option_logits import option_logits
from maskc.runtime.selecting import Pairs, allowed_of, kept_of_chosen, lists_of

_MAX = 1 << 24
"""Elements of the largest tensor of a step."""


def indexer_loss(
    attn: Any, q: Any, k: Any, lse: Any, options: CallOptions, data: Mapping[str, Any],
    bound: Bound | None,
) -> Any:  # fmt: skip
    """Return the loss of every query.

    t are the attention weights on a query's selected keys, summed over the heads that select
    together and normalized. s is the softmax of the keys' ranks over the same keys. The loss is
    sum(t * log(t / s)), averaged over heads that select separately; 0 without weights.

    Args:
        attn: the compiled mask; `check_trained` had nothing to say of it.
        q: [B, Hq, Nq, D]; k: [B, Hkv, Nkv, D]; lse: [B, Hq, Nq], of the call. No gradient reaches
            them.
        options: of the call.
        data: keywords of the call, and the ranking tensors: index_q [B, J, Nq, Di], index_k [B,
            Nkv, Di] or a pair with factors [B, Nkv], index_w [B, J, Nq]; or scores.
        bound: what the host chose; None: the keys are ranked here.

    Returns:
        fp32 [B, Nq].
    """
    terms = _Terms.of(attn, q, k, lse, options, data, bound)
    ranked = [x for x in terms.ranking.values() if isinstance(x, torch.Tensor)]
    again = torch.is_grad_enabled() and any(x.requires_grad for x in ranked)
    losses = []
    for first in range(0, terms.sizes.n_q, terms.step):
        last = min(first + terms.step, terms.sizes.n_q)
        chosen, target = terms.target(first, last)
        take = partial(terms.loss, chosen, target, first, last)
        losses.append(checkpoint(take, *ranked, use_reentrant=False) if again else take(*ranked))
    if not losses:
        return torch.zeros(terms.sizes.batch, 0, device=q.device)
    return torch.cat(losses, 1)


@dataclass(frozen=True, eq=False)
class _Terms:
    """Everything that the loss of some queries is made of."""

    bundle: Bundle
    q: Any
    k: Any
    lse: Any
    options: CallOptions
    ranking: Mapping[str, Any]
    lists: Any
    """int64 [B, G, Nq, width], -1 behind the last one; None: the keys are ranked here."""
    kept: Pairs | None
    """The kept pairs among the selected ones; None: all."""
    allowed: Pairs
    sizes: Sizes

    @classmethod
    def of(
        cls, attn: Any, q: Any, k: Any, lse: Any, options: CallOptions,
        data: Mapping[str, Any], bound: Bound | None,
    ) -> _Terms:  # fmt: skip
        """From a call; see `indexer_loss`."""
        bundle = attn.bundle
        (one,) = bundle.selections
        batch, heads, n_q, _ = q.shape
        sizes = Sizes(batch, heads, k.shape[1], n_q, k.shape[2])
        named = with_factors(data)
        names = ("scores",) if one.score is Score.given else (
            "index_q", "index_k", "index_w", FACTORS)  # fmt: skip
        ranking = {name: named[name] for name in names if name in named}
        lists, params, arrays = None, dict(bundle.params), {}
        if bound is not None:
            on_host = torch.from_numpy(lists_of(one, bound, sizes))
            lists = on_host.to(q.device, torch.int64)
            params, arrays = {**params, **bound.params}, dict(bound.arrays)
        else:
            params |= {name: data[name] for name in params if name in data}
        kept = kept_of_chosen(bundle, arrays, params, sizes)
        allowed = allowed_of(bundle, arrays, params, sizes)
        q, k, lse = q.detach(), k.detach(), lse.detach()
        return cls(bundle, q, k, lse, options, ranking, lists, kept, allowed, sizes)

    @property
    def step(self) -> int:
        """Queries at a time."""
        sizes, (one,) = self.sizes, self.bundle.selections
        width = min(one.k, sizes.n_kv)
        row = max(sizes.heads_kv, self.groups) * width * self.bundle.problem.head_dim
        row = max(row, sizes.heads_q * width)
        if one.score is Score.indexer:
            j = self.ranking["index_q"].shape[1]
            row = max(row, j * (sizes.n_kv if self.lists is None else self.groups * width))
        return max(1, _MAX // max(1, row * sizes.batch))

    @property
    def groups(self) -> int:
        """Heads that choose apart."""
        if self.lists is not None:
            return int(self.lists.shape[1])
        (one,) = self.bundle.selections
        if one.score is Score.indexer:
            return 1
        return {"all": 1, "group": self.sizes.heads_kv}.get(one.share.value, self.sizes.heads_q)

    # -------------------------------------------------------------- where attention looks

    def target(self, first: int, last: int) -> tuple[Any, Any]:
        """(chosen keys int64, weights fp32), both [B, G, queries, width]: -1 and 0 where there is
        no more key, and where the mask keeps a chosen one from all heads."""
        with torch.no_grad():
            chosen = self._chosen(first, last)
            batch, groups, rows, _ = chosen.shape
            sizes, device = self.sizes, chosen.device
            group_count = max(sizes.heads_kv, groups)
            keys = chosen.clamp(min=0).repeat_interleave(group_count // groups, 1)
            k = self.k.float().repeat_interleave(group_count // sizes.heads_kv, 1)
            near = _rows_of(k, keys)
            q = self.q[:, :, first:last].float().unflatten(1, (group_count, -1))
            scores = torch.einsum("bmrcd,bmcwd->bmrcw", q, near).flatten(1, 2)
            live = (chosen >= 0).repeat_interleave(sizes.heads_q // groups, 1)
            if self.kept is not None:
                kept = torch.from_numpy(self.kept.rows(first, last)).to(device)
                kept = kept.expand(batch, sizes.heads_q, rows, sizes.n_kv)
                every = chosen.clamp(min=0).repeat_interleave(sizes.heads_q // groups, 1)
                live = live & kept.gather(3, every)
            every = keys.repeat_interleave(sizes.heads_q // group_count, 1)
            weights = self._weights(scores, every, first, last)
            weights = torch.where(live, weights, 0.0).unflatten(1, (groups, -1)).sum(2)
            chosen = chosen.masked_fill(~live.unflatten(1, (groups, -1)).any(2), -1)
            mass = weights.sum(-1, keepdim=True)
            return chosen, torch.where(mass > 0, weights / mass, 0.0)

    def _weights(self, scores: Any, keys: Any, first: int, last: int) -> Any:
        """The attention's weights of pairs [B, Hq, queries, width]."""
        options, sizes = self.options, self.sizes
        x = option_logits(
            scores, options, self.bundle.problem.head_dim, (first, last), keys,
            sizes.n_kv - sizes.n_q,
        )  # fmt: skip
        lse = self.lse[:, :, first:last, None]
        lse = torch.where(lse == -torch.inf, torch.inf, lse)
        if options.alpha_by_head:
            a = options.alpha.detach().float().expand(sizes.heads_q)[:, None, None] - 1
        else:
            a = torch.tensor(alpha_less_1(options.normalizer, options.alpha))
        some = torch.where(a > 0, a, 1.0)
        weights = (1 + some * (x - lse)).clamp(min=0) ** (1 / some)
        return torch.where(a > 0, weights, torch.exp(x - lse))

    def _chosen(self, first: int, last: int) -> Any:
        """int64 [B, G, queries, width]."""
        if self.lists is not None:
            return self.lists[:, :, first:last]
        (one,) = self.bundle.selections
        ranks = self._ranks(list(self.ranking.values()), None, first, last)
        allowed = torch.from_numpy(self.allowed.rows(first, last)).to(ranks.device)[:, :1]
        ranks = torch.where(allowed, ranks.nan_to_num(-torch.inf), -torch.inf)
        best = ranks.sort(dim=-1, descending=True, stable=True).indices[..., : one.k]
        live = allowed.expand(ranks.shape).gather(3, best)
        return torch.where(live, best, -1)

    # -------------------------------------------------------------- the ranking

    def _ranks(self, ranking: Sequence[Any], keys: Any, first: int, last: int) -> Any:
        """fp32 [B, G, queries, width]: what ranks `keys`, [B, G, queries, width], or all of them
        where that is None."""
        tensors = dict(zip(self.ranking, ranking, strict=True))
        batch, rows, groups = self.sizes.batch, last - first, self.groups
        if "scores" in tensors:
            scores = tensors["scores"].float()
            scores = scores[(None,) * (4 - scores.dim())][:, :, first:last]
            if scores.shape[1] > groups:
                scores = scores.unflatten(1, (groups, -1)).mean(2)
            scores = scores.expand(batch, groups, -1, -1)
            return scores if keys is None else scores.gather(3, keys)
        q, k, w = (tensors[name].float() for name in ("index_q", "index_k", "index_w"))
        q, w = q[:, :, first:last], w[:, :, first:last]
        factors = tensors.get(FACTORS)
        if keys is None:
            hits = torch.einsum("bjcd,bkd->bjck", q, k).relu()
            ranks = torch.einsum("bjck,bjc->bck", hits, w)[:, None]
            return ranks if factors is None else ranks * factors.float()[:, None, None]
        near = _rows_of(k[:, None].expand(-1, groups, -1, -1), keys)
        hits = torch.einsum("bjcd,bgcwd->bgjcw", q, near).relu()
        ranks = torch.einsum("bgjcw,bjc->bgcw", hits, w)
        if factors is None:
            return ranks
        return ranks * factors.float()[:, None, None].expand(-1, groups, rows, -1).gather(3, keys)

    def loss(self, chosen: Any, target: Any, first: int, last: int, *ranking: Any) -> Any:
        """fp32 [B, queries]."""
        ranks = self._ranks(ranking, chosen.clamp(min=0), first, last)
        live = chosen >= 0
        ranks = torch.where(live | ~live.any(-1, keepdim=True), ranks, -torch.inf)
        far = target.clamp(min=torch.finfo(target.dtype).tiny).log() - ranks.log_softmax(-1)
        return torch.where(target > 0, target * far, 0.0).sum(-1).mean(1)


def _rows_of(x: Any, keys: Any) -> Any:
    """x [B, M, n, D] at keys [B, M, queries, width]: [B, M, queries, width, D]."""
    batch, heads, rows, width = keys.shape
    dim = x.shape[-1]
    places = keys.reshape(batch, heads, rows * width, 1).expand(-1, -1, -1, dim)
    return x.gather(2, places).reshape(batch, heads, rows, width, dim)
