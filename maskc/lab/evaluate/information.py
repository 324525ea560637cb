"""Level 1 of the evidence: the attention that a mask drops, exactly, for given q, k and v."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from maskc.dsl.mask import Mask
from maskc.dsl.nodes import Node
from maskc.ir.lower import differs_by_head
from maskc.ir.names import declared_names
from maskc.lab.evaluate.best_masks import Queries, can_select, selected
from maskc.lab.evaluate.matrices import Matrices
from maskc.lab.evaluate.results import InformationLoss, LayerLoss
from maskc.lab.evaluate.statistics import bootstrap
from maskc.lab.evaluate.tensors import LayerTensors, Tensors, torch_module

_ELEMENTS, _ELEMENTS_GPU = 1 << 25, 1 << 27
"""Scores that are held at a time: 128 MiB in fp32, 512 MiB on a GPU."""

Progress = Callable[[str], object]


def information_loss(
    masks: Mapping[str, Mask], given: Tensors, *, data: Mapping[str, object] | None = None,
    resamples: int = 2000, seed: int = 0, progress: Progress | None = None,
) -> dict[str, InformationLoss]:  # fmt: skip
    """Measure what each mask retains of the dense attention of every layer, head and query.

    Dense probabilities are computed in fp32. A pattern is a mask & the layer's own mask. Soft-cap,
    position bias and sink logits are the layer's, in the pattern as in dense attention. The weight
    of a sink logit counts as retained. Nothing is estimated; only the intervals, which generalize
    to other texts, are resampled.

    Args:
        masks: patterns by name. A `topk` chooses by the q and k of the layer.
        given: the tensors, see `tensors`, `read_npz` and `capture`.
        data: arrays and parameters that the masks name, the same for all layers; arrays may have a
            row for each sequence.
        resamples: number of resamples for the intervals.
        seed: seed of the resampling.
        progress: called with the number of the next layer.

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

    def __init__(
        self, masks: Mapping[str, Mask], data: Mapping[str, object] | None = None,
        matrices: Matrices | None = None,
    ) -> None:  # fmt: skip
        self.masks, self.data, self.matrices = masks, dict(data or {}), matrices
        self.lots: list[dict[str, _Sums]] = []
        self.kept: _Kept | None = None

    def add(
        self, given: Tensors, progress: Progress | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        """Look at all sequences of a lot, whose masks read data of their own if there are any."""
        if self.kept is None or self.kept.n != given.n:
            self.kept = _Kept(self.masks, given.n, self.data, self.matrices)
        if data is not None:
            self.kept.read(data)
        sums = {name: _Sums(given) for name in self.masks}
        for index, layer in enumerate(given.layers):
            if progress:
                progress(f"layer {layer.layer} ({index + 1} of {len(given.layers)})")
            for b in range(given.sequences):
                for part_kept in self.kept.parts(layer, b):
                    for name, keep in self.kept.rows(layer, b, part_kept):
                        sums[name].add(index, b, part_kept, keep)
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
        self.products = (q @ k.transpose(1, 2)).mul_(layer.scale)
        logits = layer.logits(self.products, b, first)
        self.products = self.products.masked_fill_(~base, -torch.inf)
        bends = layer.softcap is not None or layer.score is not None
        self.scores = logits.masked_fill_(~base, -torch.inf) if bends else self.products
        self.sinks = None if layer.sinks is None else layer.sinks[:, None]
        self.lse = self.with_sinks(self.scores.logsumexp(-1))
        weights = _weights(self.scores, self.lse)
        ranked = self.scores.sort(dim=-1, descending=True).values
        self.ranked = None if bends else ranked
        self.out = weights @ v
        self.norm = self.out.norm(dim=-1)
        self.of_sinks = 1 - weights.sum(dim=-1) if self.sinks is not None else 0.0
        self.best = _weights(ranked, self.lse).cumsum_(dim=-1)
        length = v.norm(dim=-1)[:, None].expand(
            base.shape if base.ndim == 3 else (len(v), *base.shape)
        )
        self.longest = length.masked_fill(~base, 0).amax(dim=-1)

    def with_sinks(self, lse: Any) -> Any:
        """The log-sum-exp [Hq, rows] of some keys, with that of the layer's sink logits."""
        return lse if self.sinks is None else torch_module().logaddexp(lse, self.sinks)


def _weights(scores: Any, lse: Any) -> Any:
    """Probabilities; 0 in rows without a key."""
    return (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp_()


def _dense(mask: Mask, n: int, heads: int, b: int, data: Mapping[str, Any]) -> np.ndarray:
    """bool [n, n] or [heads, n, n] of one sequence."""
    kept = mask.dense(n, n_heads=heads, **data)
    if kept.ndim == 4 or (kept.ndim == 3 and not differs_by_head(mask)):
        kept = kept[b if len(kept) > 1 else 0]
    return np.ascontiguousarray(kept)


class _Kept:
    """The patterns as booleans; those that read neither q nor k are made once."""

    def __init__(
        self, masks: Mapping[str, Mask], n: int, data: Mapping[str, object],
        matrices: Matrices | None,
    ) -> None:  # fmt: skip
        self.masks, self.n, self.data, self.matrices = masks, n, data, matrices
        self.made: dict[tuple[Mask, int, int], Any] = {}

    def read(self, data: Mapping[str, object]) -> None:
        """Forget what was made of other data."""
        self.data = data
        self.made = {key: keep for key, keep in self.made.items() if not self._reads(key[0])}

    def _reads(self, mask: Mask) -> frozenset[str]:
        return declared_names(mask) & self.data.keys()

    def parts(self, layer: LayerTensors, b: int) -> Iterator[_Part]:
        """All rows of a layer of a sequence, dense."""
        heads = layer.q.shape[1]
        elements = _ELEMENTS if layer.q.device.type == "cpu" else _ELEMENTS_GPU
        rows = max(1, elements // (heads * self.n))
        if layer.data:
            torch = torch_module()
            whole = _dense(layer.base, self.n, heads, b, layer.data)
            base = torch.from_numpy(whole).to(layer.q.device)
        else:
            base = self._made(layer.base, layer, b)
        for first in range(0, self.n, rows):
            last = min(self.n, first + rows)
            yield _Part(layer, b, first, last, base[..., first:last, :])

    def rows(self, layer: LayerTensors, b: int, part: _Part) -> Iterator[tuple[str, Any]]:
        """(name, bool [last - first, n] or [heads, ...]) of each pattern."""
        for name, mask in self.masks.items():
            yield name, self._kept(mask, layer, b, part)

    def _kept(self, mask: Any, layer: LayerTensors, b: int, part: _Part) -> Any:
        if not isinstance(mask, Node):  # a function from a layer and a sequence to booleans
            return mask(layer, b)[..., part.first : part.last, :]
        if can_select(mask):
            of = None if layer.data else layer.base
            scores = part.products, part.ranked, of  # selections rank by q . k alone
            queries = Queries(layer.q[b], layer.k[b], part.first, part.last, *scores)
            return selected(mask, lambda term: self._made(term, layer, b), queries)
        torch = torch_module()
        tensors = {"q": layer.q[b : b + 1].float().cpu(), "k": layer.k[b : b + 1].float().cpu()}
        data_read = {name: self.data[name] for name in self._reads(mask)}
        keep = _dense(mask, self.n, layer.q.shape[1], 0, {**data_read, **tensors})
        return torch.from_numpy(keep[..., part.first : part.last, :]).to(layer.q.device)

    def _made(self, mask: Mask, layer: LayerTensors, b: int) -> Any:
        """bool [n, n] or [heads, n, n], on the device."""
        torch = torch_module()
        data_read = {name: self.data[name] for name in self._reads(mask)}
        if self.matrices is not None and not data_read:
            return self.matrices.of(mask, self.n)
        heads = layer.q.shape[1]
        key = mask, heads, b if data_read else 0
        if key not in self.made:
            whole = _dense(mask, self.n, heads, b, data_read)
            self.made[key] = torch.from_numpy(whole).to(layer.q.device)
        return self.made[key]


class _Sums:
    """Losses of one mask, by layer, head and query."""

    def __init__(self, given: Tensors) -> None:
        layers, heads = len(given.layers), given.layers[0].q.shape[1]
        self.by_head = np.zeros((4, layers, heads))
        self.with_key = np.zeros((layers, heads))
        self.by_query = np.zeros((3, given.sequences, given.n))
        self.layers = [layer.layer for layer in given.layers]
        self.floor = self.ceiling = 0.0
        self.rows = self.empty = 0
        self.bound = 0.0

    def add(self, layer: int, b: int, dense: _Part, keep: Any) -> None:
        """Count some rows of all heads of a layer."""
        torch = torch_module()
        keep = (keep & dense.base).expand(dense.scores.shape)
        scores = dense.scores.masked_fill(~keep, -torch.inf)
        lse = dense.with_sinks(scores.logsumexp(-1))
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
        of_sinks = dense.of_sinks
        self.floor += float((of_sinks + (1 - of_sinks) * counts / allowed).double().sum())
        best = dense.best.gather(-1, (counts - 1).clamp(min=0)[..., None])[..., 0]
        self.ceiling += float((of_sinks + torch.where(live, best, 0.0)).double().sum())
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
    losses = tuple(
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
        losses, retained, error, cosine, float(by_head[3].sum() / max(1, rows - empty)),
        floor / rows, ceiling / rows, max(lot.bound for lot in lots), rows, empty,
    )  # fmt: skip
