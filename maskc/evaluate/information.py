"""Layer 1 of the evidence: what a mask drops of dense attention, exactly, on given q, k and v."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from maskc.dsl.mask import Mask
from maskc.dsl.nodes import TopK
from maskc.evaluate.results import InformationLoss, LayerLoss
from maskc.evaluate.statistics import bootstrap
from maskc.evaluate.tensors import LayerTensors, Tensors, torch_module

_ELEMENTS = 1 << 25
"""Scores that are held at a time: 128 MiB in fp32."""

Progress = Callable[[str], object]


def information_loss(
    masks: Mapping[str, Mask], given: Tensors, *, data: Mapping[str, object] | None = None,
    resamples: int = 2000, seed: int = 0, progress: Progress | None = None,
) -> dict[str, InformationLoss]:  # fmt: skip
    """What each mask retains of the dense attention of every layer, head and query.

    Dense probabilities are computed in fp32. A pattern is a mask & the layer's own mask. Nothing
    is estimated: only the intervals, which speak of other texts, are resampled.

    Args:
        masks: patterns by name. A `topk` chooses by the q and k of the layer.
        given: the tensors, see `tensors`, `read_npz` and `capture`.
        data: arrays and parameters that the masks name, the same for all layers.
        resamples: of the intervals.
        seed: of the intervals.
        progress: is told which layer comes next.

    Returns:
        The loss by name, in the order of `masks`.

    Raises:
        MaskcError: as `Mask.dense`.
    """
    losses = Losses(masks, data)
    losses.add(given, progress)
    return losses.found(resamples, seed)


class Losses:
    """Information loss on sequences that come one lot after the other, of the same layers."""

    def __init__(self, masks: Mapping[str, Mask], data: Mapping[str, object] | None = None) -> None:
        self.masks, self.data = masks, dict(data or {})
        self.lots: list[dict[str, _Sums]] = []
        self.kept: _Kept | None = None

    def add(self, given: Tensors, progress: Progress | None = None) -> None:
        """Look at all sequences of a lot."""
        if self.kept is None or self.kept.n != given.n:
            self.kept = _Kept(self.masks, given.n, self.data)
        sums = {name: _Sums(given) for name in self.masks}
        for index, layer in enumerate(given.layers):
            if progress:
                progress(f"layer {layer.layer} ({index + 1} of {len(given.layers)})")
            for b in range(given.sequences):
                for found in _parts(layer, b):
                    own = self.kept.rows(layer, b, found.first, found.last, found.scores)
                    for name, keep in own:
                        sums[name].add(index, b, found, keep)
        self.lots.append(sums)

    def found(self, resamples: int = 2000, seed: int = 0) -> dict[str, InformationLoss]:
        """The loss by name."""
        return {
            name: _loss([lot[name] for lot in self.lots], resamples, seed) for name in self.masks
        }


class _Part:
    """Some rows of all heads of one layer of one sequence, dense."""

    def __init__(self, layer: LayerTensors, b: int, first: int, last: int, base: Any) -> None:
        torch = torch_module()
        self.first, self.last = first, last
        group = layer.q.shape[1] // layer.k.shape[1]
        q, k, v = (x[b].float() for x in (layer.q[:, :, first:last], layer.k, layer.v))
        k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
        self.v, self.base = v, base
        self.scores = (q @ k.transpose(1, 2)).mul_(layer.scale)
        self.scores = self.scores.masked_fill_(~base, -torch.inf)
        self.lse = self.scores.logsumexp(-1)
        weights = _weights(self.scores, self.lse)
        self.out = weights @ v
        self.norm = self.out.norm(dim=-1)
        self.best = weights.sort(dim=-1, descending=True).values.cumsum(dim=-1)
        length = v.norm(dim=-1)[:, None].expand(
            base.shape if base.ndim == 3 else (len(v), *base.shape)
        )
        self.longest = length.masked_fill(~base, 0).amax(dim=-1)


def _weights(scores: Any, lse: Any) -> Any:
    """Probabilities; 0 in rows without a key."""
    return (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp_()


def _parts(layer: LayerTensors, b: int) -> Iterator[_Part]:
    torch = torch_module()
    heads, n = layer.q.shape[1:3]
    rows = max(1, _ELEMENTS // (heads * n))
    base = _dense(layer.base, n, heads, b, layer.data)
    for first in range(0, n, rows):
        last = min(n, first + rows)
        own = torch.from_numpy(base[..., first:last, :]).to(layer.q.device)
        yield _Part(layer, b, first, last, own)


def _dense(mask: Mask, n: int, heads: int, b: int, data: Mapping[str, Any]) -> np.ndarray:
    """bool [n, n] or [heads, n, n] of one sequence."""
    found = mask.dense(n, n_heads=heads, **data)
    return np.ascontiguousarray(found[b if len(found) > 1 else 0] if found.ndim == 4 else found)


class _Kept:
    """The patterns as booleans; those that read neither q nor k are made once."""

    def __init__(self, masks: Mapping[str, Mask], n: int, data: dict[str, object]) -> None:
        self.masks, self.n, self.data = masks, n, data
        self.made: dict[tuple[str, int, int], np.ndarray] = {}

    def rows(
        self, layer: LayerTensors, b: int, first: int, last: int, scores: Any
    ) -> Iterator[tuple[str, Any]]:
        """(name, bool [last - first, n] or [heads, ...]) of each pattern."""
        torch = torch_module()
        heads = layer.q.shape[1]
        for name, mask in self.masks.items():
            if isinstance(mask, TopK) and _best_of_each_query(mask):
                allowed = self._made(name, mask.of, heads, b)[..., first:last, :]
                yield name, _best(scores, torch.from_numpy(allowed).to(scores.device), mask.k)
                continue
            if _chooses(mask):
                tensors = {
                    "q": layer.q[b : b + 1].float().cpu(),
                    "k": layer.k[b : b + 1].float().cpu(),
                }
                keep = _dense(mask, self.n, heads, 0, {**self.data, **tensors})
            else:
                keep = self._made(name, mask, heads, b)
            yield name, torch.from_numpy(keep[..., first:last, :]).to(scores.device)

    def _made(self, name: str, mask: Mask, heads: int, b: int) -> np.ndarray:
        key = name, heads, b if self.data else 0
        if key not in self.made:
            self.made[key] = _dense(mask, self.n, heads, b, self.data)
        return self.made[key]


def _chooses(mask: Mask) -> bool:
    return isinstance(mask, TopK) or any(map(_chooses, getattr(mask, "children", ())))


def _best_of_each_query(mask: TopK) -> bool:
    """Whether each query of each head chooses single keys by q . k: the layer's own scores."""
    return (
        (mask.score, mask.share) == ("qk", "head")
        and (mask.block, mask.q_block) == (1, 1) and not _chooses(mask.of)
    )  # fmt: skip


def _best(scores: Any, allowed: Any, count: int) -> Any:
    """The `count` greatest scores of each row among the allowed ones; of equals the first."""
    torch = torch_module()
    ranked = scores.masked_fill(~allowed, -torch.inf).sort(dim=-1, descending=True, stable=True)
    keep = torch.zeros_like(scores, dtype=torch.bool)
    keep.scatter_(-1, ranked.indices[..., :count], True)
    return keep & allowed & (scores > -torch.inf)


class _Sums:
    """What one mask loses, by layer, head and query."""

    def __init__(self, given: Tensors) -> None:
        layers, heads = len(given.layers), given.layers[0].q.shape[1]
        self.by_head = np.zeros((4, layers, heads))
        self.with_key = np.zeros((layers, heads))
        self.by_query = np.zeros((3, given.sequences, given.n))
        self.layers = [each.layer for each in given.layers]
        self.floor = self.ceiling = 0.0
        self.rows = self.empty = 0
        self.bound = 0.0

    def add(self, layer: int, b: int, dense: _Part, keep: Any) -> None:
        """Count some rows of all heads of a layer."""
        torch = torch_module()
        keep = (keep & dense.base).expand(dense.scores.shape)
        scores = dense.scores.masked_fill(~keep, -torch.inf)
        lse = scores.logsumexp(-1)
        out = _weights(scores, lse) @ dense.v
        log_kept = (lse - dense.lse).nan_to_num(nan=-torch.inf).clamp(max=0.0)
        kept = log_kept.exp()
        counts = keep.sum(dim=-1)
        live = counts > 0
        error = (out - dense.out).norm(dim=-1)
        tiny = torch.finfo(error.dtype).tiny
        relative = error / dense.norm.clamp(min=tiny)
        cosine = torch.nn.functional.cosine_similarity(out, dense.out, dim=-1)
        kl = torch.where(live, -log_kept, 0.0)
        for row, values in enumerate((kept, relative, cosine, kl)):
            self.by_head[row, layer] += values.sum(dim=-1).double().cpu().numpy()
        self.with_key[layer] += live.sum(dim=-1).cpu().numpy()
        here = slice(dense.first, dense.last)
        for row, values in enumerate((kept, relative, cosine)):
            self.by_query[row, b, here] += values.double().sum(dim=0).cpu().numpy()
        allowed = dense.base.expand(dense.scores.shape).sum(dim=-1).clamp(min=1)
        self.floor += float((counts / allowed).double().sum())
        best = dense.best.gather(-1, (counts - 1).clamp(min=0)[..., None])[..., 0]
        self.ceiling += float(torch.where(live, best, 0.0).double().sum())
        self.rows += kept.numel()
        self.empty += int((~live).sum())
        # Rounding of sums is no loss: rows that keep all but 1e-4 tell nothing about the bound.
        bound = 2 * (1 - kept) * dense.longest
        used = torch.where(kept < 1 - 1e-4, error / bound.clamp(min=tiny), 0.0)
        self.bound = max(self.bound, float(used.max()))


def _loss(lots: Sequence[_Sums], resamples: int, seed: int) -> InformationLoss:
    """The result of all lots, with intervals."""
    layers, heads = lots[0].with_key.shape
    numbers = lots[0].layers
    total = sum(lot.by_query[0].size for lot in lots)
    by_head = np.sum([lot.by_head for lot in lots], axis=0)
    means = by_head / total
    means[3] = by_head[3] / np.maximum(np.sum([lot.with_key for lot in lots], axis=0), 1)
    found = tuple(
        LayerLoss(number, *(tuple(map(float, means[row, index])) for row in range(4)))
        for index, number in enumerate(numbers)
    )
    retained, error, cosine = (
        bootstrap(
            [row / (layers * heads) for lot in lots for row in lot.by_query[kind]],
            resamples=resamples, seed=seed,
        ).interval()
        for kind in range(3)
    )  # fmt: skip
    rows, empty = (sum(getattr(lot, name) for lot in lots) for name in ("rows", "empty"))
    floor, ceiling = (sum(getattr(lot, name) for lot in lots) for name in ("floor", "ceiling"))
    return InformationLoss(
        found, retained, error, cosine, float(by_head[3].sum() / max(1, rows - empty)),
        floor / rows, ceiling / rows, max(lot.bound for lot in lots), rows, empty,
    )  # fmt: skip
