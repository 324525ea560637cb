"""Entmax with an alpha for each head: heads with one alpha run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskc.core.attention_call import AttentionCall
from maskc.core.bundle import Bundle
from maskc.core.data import CuSeqlens, DataKind, Parents
from maskc.core.errors import BadOption, BadShape
from maskc.core.selection import Score, Share
from maskc.core.tensors import torch_of
from maskc.layout import to_host
from maskc.runtime.arrays.known import cast_like, module_of, to_fp32

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

_ALIKE = frozenset({
    DataKind.documents, DataKind.flags, DataKind.intervals, DataKind.tree, DataKind.random,
    DataKind.selection,
})  # fmt: skip
"""Data that do not differ by head, unless a call passes rows for heads."""


class Run(NamedTuple):
    """Query heads that run together, and the key/value heads that they need."""

    heads: slice
    kv_heads: slice
    alpha: float
    picked: tuple[int, ...] = ()
    """Heads whose results count, in a run of all heads; empty: every head of the run."""


def runs_of(
    bundle: Bundle, alpha: Any, heads: int, heads_kv: int, normalizer: str, data: Mapping[str, Any]
) -> list[Run]:
    """Return the runs of a call, one for each alpha. The host reads alpha, which synchronizes with
    its device.

    Args:
        data: data of the mask, as passed to the call.

    Raises:
        BadOption: alpha is not in 1 .. 2, or not of entmax.
        BadShape: it is neither [] nor [Hq].
    """
    if normalizer != "entmax":
        raise BadOption("alpha", f"left out with normalizer={normalizer!r}", "an array", at="alpha")
    if tuple(alpha.shape) not in ((), (heads,)):
        raise BadShape("alpha", tuple(alpha.shape), f"[] or [{heads}]", at="alpha")
    host = alpha.float() if torch_of(alpha) is not None else alpha
    single = to_host(host, "alpha").astype(np.float32)
    values = np.broadcast_to(single, (heads,)).tolist()
    for value in values:
        if not 1 <= value <= 2:
            raise BadOption("alpha", "numbers in 1 .. 2", value, at="alpha")
    if len(set(values)) == 1:
        return [Run(slice(0, heads), slice(0, heads_kv), values[0])]
    if not _apart(bundle, data):
        whole = slice(0, heads), slice(0, heads_kv)
        return [
            Run(*whole, value, tuple(h for h in range(heads) if values[h] == value))
            for value in dict.fromkeys(values)
        ]
    group, runs, first = heads // max(1, heads_kv), [], 0
    while first < heads:
        last = first + 1
        while last < heads and values[last] == values[first]:
            last += 1
        if first % group:  # the rest of a group, then whole ones
            last = min(last, (first // group + 1) * group)
        elif last - first > group:
            last -= (last - first) % group
        kv_heads = slice(first // group, (last - 1) // group + 1)
        runs.append(Run(slice(first, last), kv_heads, values[first]))
        first = last
    return runs


def _apart(bundle: Bundle, data: Mapping[str, Any]) -> bool:
    """Whether a subset of the heads of a call may run alone."""
    alike = (decl.name for decl in bundle.data if decl.kind in _ALIKE and decl.from_caller)
    if any(_gives_heads(data.get(name)) for name in alike):
        return False
    shared = any(selection.share is not Share.head and selection.score is not Score.indexer
                 for selection in bundle.selections)  # fmt: skip
    indexed = all(selection.score is Score.indexer for selection in bundle.selections)
    kinds = {decl.kind for decl in bundle.data} - _ALIKE
    if indexed:
        kinds -= {DataKind.scoring}
    return not (bundle.head_variant or shared or kinds)


def _gives_heads(value: Any) -> bool:
    """Whether data have rows for several heads, [B, H, N]."""
    if isinstance(value, tuple):
        return any(map(_gives_heads, value))
    if isinstance(value, (CuSeqlens, Parents)):
        return _gives_heads(value.array)
    shape = value.shape if hasattr(value, "shape") else np.shape(value)
    return len(shape) > 2 and shape[1] > 1


def _of_run(call: AttentionCall, run: Run) -> AttentionCall:
    """The heads of a call that run together, with their alpha."""
    q, k, v, options, *_ = call
    slopes = None if options.alibi_slopes is None else options.alibi_slopes[run.heads]
    run_options = options._replace(alibi_slopes=slopes, alpha=run.alpha, return_lse=True)
    return call._replace(
        q=q[:, run.heads], k=k[:, run.kv_heads], v=v[:, run.kv_heads], options=run_options
    )


def forward(attn: CompiledMask, runs: Sequence[Run], call: AttentionCall) -> tuple[Any, Any]:
    """(out, lse) of a call, without a graph."""
    results = [attn.run(_of_run(call, run)) for run in runs]
    return tuple(_joined(runs, [result[i] for result in results]) for i in range(2))


def backward(attn: CompiledMask, runs: Sequence[Run], call: AttentionCall) -> tuple[Any, ...]:
    """Return (dq, dk, dv), then dalibi_slopes if slopes were given. dk and dv are summed in
    fp32."""
    slopes = call.options.alibi_slopes
    dq, dslopes, sums = [], [], _Sums(call.k, call.v)
    for run in runs:
        ours = call.dout[:, run.heads]
        if run.picked:
            ours = _only(ours, run.picked)
        results = call.out[:, run.heads], _contiguous(call.lse[:, run.heads])
        of_run = _of_run(call, run)._replace(out=results[0], lse=results[1], dout=ours)
        made = attn.differentiate(of_run)
        dq.append(made[0])
        sums.add(run, made[1], made[2])
        if slopes is not None:
            dslopes.append(made[3])
    gradients = _joined(runs, dq), *sums.results()
    return gradients if slopes is None else (*gradients, _joined(runs, dslopes, 0))


class _Sums:
    """dk and dv, to which several runs may add."""

    def __init__(self, k: Any, v: Any) -> None:
        self._like = k, v
        self._sums: tuple[Any, ...] | None = None

    def add(self, run: Run, *parts: Any) -> None:
        if self._sums is None and run.kv_heads == slice(0, self._like[0].shape[1]):
            self._sums = parts
            return
        sums = map(_zeros, self._like) if self._sums is None else map(to_fp32, self._sums)
        self._sums = tuple(sums)
        for total, part in zip(self._sums, parts, strict=True):
            total[:, run.kv_heads] += to_fp32(part)

    def results(self) -> tuple[Any, ...]:
        return tuple(map(cast_like, self._sums or (), self._like))


# ------------------------------------------------------------------ arrays of any library


def _joined(runs: Sequence[Run], parts: Sequence[Any], axis: int = 1) -> Any:
    """Results of runs in the order of heads."""
    if len(parts) == 1:
        return parts[0]
    if not runs[0].picked:
        module = module_of(parts[0])
        join = module.cat if torch_of(parts[0]) is not None else module.concatenate
        return join(list(parts), axis)
    made = parts[0]
    for run, part in zip(runs[1:], parts[1:], strict=True):
        place = (slice(None),) * axis + (list(run.picked),)
        made[place] = part[place]
    return made


def _only(x: Any, heads: tuple[int, ...]) -> Any:
    """x with zeros on all other heads."""
    made = module_of(x).zeros_like(x)
    made[:, list(heads)] = x[:, list(heads)]
    return made


def _contiguous(x: Any) -> Any:
    return x.contiguous() if torch_of(x) is not None else module_of(x).ascontiguousarray(x)


def _zeros(like: Any) -> Any:
    module = module_of(like)
    device = {"device": like.device} if torch_of(like) is not None else {}
    return module.zeros(tuple(like.shape), dtype=module.float32, **device)
