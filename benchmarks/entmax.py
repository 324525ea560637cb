"""Rivals with alpha-entmax: the packages entmax, which has weights only, and adasplash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.contender import Contender, Missing, Unavailable, differentiated, form_of
from benchmarks.selection import spans, static_rows
from benchmarks.unfused import exact_products
from maskc.dsl import nodes as N
from maskc.reference.dense import walk
from maskc.verify.case import Case
from maskc.verify.tensors import Tensors

_SCORES = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Scores of all heads that are held at a time."""
_SORTED = 128
"""Scores of a row that the package sorts first; more where more have weight."""
_FAR = -1e4
"""The score of a pair that the mask leaves out: no weight, and no infinity to make sums NaN."""


def installed(package: str) -> bool:
    """Whether it can be imported; nothing is."""
    return find_spec(package) is not None


def entmax_contender(impl: str, case: Case, tensors: Tensors, backward: bool) -> Contender | None:
    """One of `entmax` and `adasplash`; None for masks that they are not asked for.

    Raises:
        Missing: the package is not installed.
        Unavailable: it has not what the case asks for.
    """
    if not installed(impl):
        raise Missing(f"the package {impl} is not installed")
    make = _unfused if impl == "entmax" else _adasplash
    call = make(case, tensors)
    if call is None:
        return None
    gradient = differentiated(call, tensors) if backward else None
    scope = exact_products if impl == "entmax" else nullcontext
    return Contender(impl, partial(_without_graph, call, *tensors.qkv), gradient, scope=scope)


def _without_graph(call: Callable[..., Any], *inputs: Any) -> Any:
    import torch

    with torch.no_grad():
        return call(*inputs)


def _adasplash(case: Case, tensors: Tensors) -> Callable[..., Any] | None:
    form = form_of(case).name
    if form not in ("full", "causal"):
        return None
    if case.group > 1:
        raise Unavailable("it was not asked for heads that share keys")
    from adasplash import adasplash

    return partial(adasplash, alpha=case.alpha, is_causal=form == "causal")


def _unfused(case: Case, tensors: Tensors) -> Callable[..., Any] | None:
    """Scores of a chunk of queries and the keys that these see, entmax of them in fp32, times v."""
    import torch
    from entmax import entmax15, entmax_bisect, sparsemax

    if case.data or any(isinstance(each, (N.PerHead, N.Heads)) for each in walk(case.mask)):
        return None
    by_sorting = {1.5: entmax15, 2.0: sparsemax}.get(case.alpha)
    weigh = partial(entmax_bisect, alpha=case.alpha)
    if by_sorting is not None:
        weigh = partial(by_sorting, k=_SORTED)
    chunks = list(_chunks(case, _SCORES[tensors.device], tensors.q.device))

    def part(q: Any, k: Any, v: Any, rows: slice, keys: slice, keep: Any) -> Any:
        own = q[:, :, rows].reshape(case.batch, case.kv_heads, -1, q.shape[3])
        scores = case.scale * (own @ k[:, :, keys].transpose(2, 3)).float()
        scores = scores.view(case.batch, case.heads, -1, keep.shape[1])
        p = weigh(scores.masked_fill(~keep, _FAR), dim=-1).to(v.dtype)
        out = p.view(case.batch, case.kv_heads, -1, keep.shape[1]) @ v[:, :, keys]
        return out.view(case.batch, case.heads, len(keep), -1)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return torch.cat([part(q, k, v, *chunk) for chunk in chunks], 2)

    return attend


def _chunks(case: Case, most: int, device: Any) -> Iterator[tuple[slice, slice, Any]]:
    """(rows, keys, bool [rows, keys]) of the mask, made before anything is timed."""
    import torch

    each, every = case.batch * case.heads, np.arange(case.n_q)
    step, ends = max(1, most // (each * case.n_kv)), spans(case.mask, case, every)
    if ends is not None:  # chunks as high as a window is wide, where they may be
        wide = int((ends[1] - ends[0]).max(initial=1))
        step = max(step, min(wide, int((most // each) ** 0.5) // 2))
    for first in range(0, case.n_q, step):
        rows = every[first : first + step]
        if ends is None:
            low, high = 0, case.n_kv
            keep = static_rows(case.mask, case, rows)
        else:
            from_key, to_key = (end[rows][:, None] for end in ends)
            low, high = int(from_key.min()), max(int(to_key.max()), int(from_key.min()) + 1)
            columns = np.arange(low, high)
            keep = (columns >= from_key) & (columns < to_key)
        kept = torch.tensor(keep, device=device)
        yield slice(first, first + len(rows)), slice(low, high), kept
