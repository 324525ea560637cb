"""What a mask costs without a fused kernel for it, and with cuDNN's: rivals of `verify.bench`.

- `unfused`: scores, mask, softmax and the second product as four operators of PyTorch.
- `sparse`: the same on a sparse matrix in CSR: sampled product, softmax of its rows, product.
- `cudnn_flex`: interval masks of nvidia-cudnn-frontend, on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

from maskc.core.dtypes import DType
from maskc.verify.case import Case
from maskc.verify.pairs import Pairs
from maskc.verify.tensors import Tensors

_SCORES = {"cpu": 1 << 29, "cuda": 1 << 32}
"""Scores of all heads that unfused attention may store."""
_PAIRS = 1 << 28
"""Pairs of a head that are looked at one by one to make a matrix or intervals."""
_LIVE = 1 << 26
"""Live pairs of a head that a sparse matrix may hold."""
_INTERVALS = 16
"""Runs of keys of a query that cuDNN's masks are given at most."""
_CHUNK = 1 << 24
"""Pairs that are looked at together."""

Call = Callable[[Any, Any, Any], Any]


class Unavailable(Exception):
    """A rival cannot run a case here; the text says why."""


def unfused(case: Case, tensors: Tensors, mask: Any) -> Call:
    """softmax(scale * q @ k.T where the mask holds, else -inf) @ v, with every step in memory.

    Args:
        mask: bool [B or 1, H or 1, n_q, n_kv] on the tensors' device.

    Raises:
        Unavailable: the scores would take too much memory.
    """
    import torch

    scores = case.batch * case.heads * case.n_q * case.n_kv
    if scores > _SCORES[tensors.device]:
        raise Unavailable(f"it would store {scores:.3g} scores")
    dead = bool((~mask.any(-1)).any())
    groups = (case.kv_heads, case.group)
    split = mask.unflatten(1, groups) if mask.shape[1] == case.heads else mask.unsqueeze(2)

    def call(q: Any, k: Any, v: Any) -> Any:
        s = (q.unflatten(1, groups) @ k.unsqueeze(2).transpose(-1, -2)) * case.scale
        p = torch.softmax(s.masked_fill(~split, float("-inf")), -1)
        p = p.nan_to_num(0.0) if dead else p
        return (p @ v.unsqueeze(2)).flatten(1, 2)

    return call


# ------------------------------------------------------------------ torch.sparse


def sparse(case: Case, tensors: Tensors, pairs: Pairs) -> Call:
    """Attention with torch.sparse in fp32, the only dtype that its sampled product has everywhere.

    Raises:
        Unavailable: the matrix would be too large.
    """
    import torch

    torch.sparse.check_sparse_tensor_invariants.disable()  # said, so that it does not warn
    with catch_warnings():
        simplefilter("ignore")  # that CSR is in beta, once a process
        torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), dtype=torch.float32)
    batches = case.batch if pairs.batched else 1
    heads = case.heads if pairs.by_head else 1
    made = {
        (b, h): _rows_as_csr(case, pairs, b, h, tensors.q.device)
        for b in range(batches)
        for h in range(heads)
    }
    each = partial(_attend_sparse, scale=case.scale)

    def call(q: Any, k: Any, v: Any) -> Any:
        found = [
            each(*made[min(b, batches - 1), min(h, heads - 1)], q[b, h],
                 k[b, h // case.group], v[b, h // case.group])
            for b in range(case.batch)
            for h in range(case.heads)
        ]  # fmt: skip
        return torch.stack(found).unflatten(0, (case.batch, case.heads))

    return call


def _attend_sparse(
    zeros: Any, lengths: Any, q: Any, k: Any, v: Any, *, scale: float
) -> Any:  # fmt: skip
    """One head: zeros is the mask in CSR, lengths [n_q] how many keys a query sees."""
    import torch

    q, k, v, dtype = q.float(), k.float(), v.float(), q.dtype
    s = torch.sparse.sampled_addmm(zeros, q, k.T, beta=0.0, alpha=scale)
    top = torch.segment_reduce(s.values(), "max", lengths=lengths)
    e = torch.exp(s.values() - top.repeat_interleave(lengths))
    total = torch.segment_reduce(e, "sum", lengths=lengths)
    weights = e / total.repeat_interleave(lengths)
    p = torch.sparse_csr_tensor(s.crow_indices(), s.col_indices(), weights, size=s.shape)
    return (p @ v).to(dtype)


def _rows_as_csr(case: Case, pairs: Pairs, b: int, h: int, device: Any) -> tuple[Any, Any]:
    """(the mask as a CSR matrix of zeros in fp32, int64 [n_q] with the lengths of its rows)."""
    import torch

    counts, columns = [], []
    live = 0
    for rows in _chunks(case):
        seen = pairs.rows(b, h, rows)
        counts.append(seen.sum(1))
        columns.append(np.nonzero(seen)[1])
        live += len(columns[-1])
        if live > _LIVE:
            raise Unavailable(f"its matrix would have more than {_LIVE:.3g} entries")
    lengths = torch.tensor(np.concatenate(counts), device=device)
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    keys = torch.tensor(np.concatenate(columns), device=device)
    zeros = torch.zeros(live, device=device)
    size = (case.n_q, case.n_kv)
    return torch.sparse_csr_tensor(ends, keys, zeros, size=size), lengths


# ------------------------------------------------------------------ cuDNN


def cudnn_flex(case: Case, tensors: Tensors, pairs: Pairs, backward: bool) -> Call:
    """`cudnn.flex_attention` with the mask as runs of keys for each query.

    Raises:
        Unavailable: it is not installed, or does not take such a mask.
    """
    if find_spec("cudnn") is None:
        raise Unavailable("not installed: pip install nvidia-cudnn-frontend")
    if tensors.device != "cuda":
        raise Unavailable("it runs on GPUs only")
    if case.dtype is DType.float32:
        raise Unavailable("it takes bfloat16 and float16 only")
    if pairs.batched:
        raise Unavailable("its masks are the same for all sequences")
    from cudnn.flex_attention import create_mask_plan, flex_attn_func  # type: ignore[import-not-found]

    heads = case.heads if pairs.by_head else 1
    ends = [runs(case, pairs, h) for h in range(heads)]
    table = _same_height(ends, case.n_kv)
    import torch

    def turned(x: Any) -> Any:
        return x.transpose(1, 2).contiguous()

    q, k, v = map(turned, tensors.qkv)
    plan = create_mask_plan(
        torch.tensor(table, device=tensors.q.device), q, k, v, build_backward=backward
    )

    def call(q: Any, k: Any, v: Any) -> Any:
        own = (x.transpose(1, 2) for x in (q, k, v))
        return flex_attn_func(*own, mask_plan=plan, softmax_scale=case.scale).transpose(1, 2)

    return call


def runs(case: Case, pairs: Pairs, head: int) -> np.ndarray:
    """int32 [odd, n_q]: query q sees the keys [0, F[0]), [F[1], F[2]), [F[3], F[4]), and so on.

    Raises:
        Unavailable: a query sees keys in too many runs.
    """
    parts = [_runs_of(pairs.rows(0, head, rows)) for rows in _chunks(case)]
    height = max(part.shape[0] for part in parts)
    return np.concatenate([_padded(part, height, case.n_kv) for part in parts], axis=1)


def _runs_of(seen: np.ndarray) -> np.ndarray:
    """The runs of some rows, bool [rows, n_kv]."""
    edges = np.diff(seen.astype(np.int8), axis=1, prepend=0, append=0)
    row, first = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    many = np.bincount(row, minlength=len(seen))
    if many.max(initial=0) > _INTERVALS:
        raise Unavailable(f"a query sees keys in more than {_INTERVALS} runs")
    at_zero = np.zeros(len(seen), dtype=bool)
    at_zero[row[first == 0]] = True
    place = np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
    place += ~at_zero[row]  # the first pair of ends always begins at key 0
    found = np.full((2 * (int(place.max(initial=0)) + 1) - 1, len(seen)), seen.shape[1])
    found[0] = 0
    later = place > 0
    found[2 * place[later] - 1, row[later]] = first[later]
    found[2 * place, row] = end
    return found.astype(np.int32)


def _padded(ends: np.ndarray, height: int, n_kv: int) -> np.ndarray:
    """The runs with empty ones behind all keys."""
    return np.pad(ends, ((0, height - len(ends)), (0, 0)), constant_values=n_kv)


def _same_height(ends: list[np.ndarray], n_kv: int) -> np.ndarray:
    height = max(map(len, ends))
    return np.ascontiguousarray(np.stack([_padded(each, height, n_kv) for each in ends]))


def _chunks(case: Case) -> Iterator[np.ndarray]:
    """Query rows, some at a time.

    Raises:
        Unavailable: there are too many pairs to look at.
    """
    if case.n_q * case.n_kv > _PAIRS:
        raise Unavailable(f"{case.n_q * case.n_kv:.3g} pairs are too many to list")
    step = max(1, _CHUNK // case.n_kv)
    for start in range(0, case.n_q, step):
        yield np.arange(start, min(start + step, case.n_q))
