"""Other implementations of attention with a mask, for `maskc bench` and `benchmarks/`.

A Contender is one of them with its inputs. The ones in RIVALS need only PyTorch, and cuDNN's
frontend for its flex attention.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.lab.case_pairs import CasePairs
from maskc.lab.mask_mod import formula_of
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors

RIVALS = {
    "dense": "SDPA without the mask",
    "sdpa_masked": "SDPA with the mask as booleans",
    "flex": "compiled FlexAttention with the same formula",
    "unfused": "scores, mask, softmax and product as separate operators",
    "sparse": "torch.sparse in fp32: sampled product, softmax of rows, product; forward only",
    "cudnn_flex": "cuDNN's flex attention by key intervals, on GPUs",
}
"""Implementations to time a mask against, if PyTorch is installed."""

_MASK_BYTES = 1 << 28
"""Largest boolean mask handed to SDPA."""
_ROWS = 1024
"""Rows of it that are made at once."""
_SCORES = {"cpu": 1 << 29, "cuda": 1 << 32}
"""Scores of all heads that unfused attention may store."""
_PAIRS = 1 << 28
"""Pairs of a head that are looked at one by one to make a sparse matrix."""
_LIVE = 1 << 26
"""Live pairs of a head that a sparse matrix may hold."""
_CHUNK = 1 << 24
"""Pairs that are looked at together."""
_DENSE_MASK = 1 << 28
"""Pairs up to which a block mask is made eagerly; beyond, its boolean matrix is not formed."""
_INTERVALS = 16
"""Intervals of keys of a query that cuDNN's masks are given at most."""

Call = Callable[..., Any]
"""Attention as a function of q, k and v [B, H, N, D]."""
Key = tuple[str, str]
"""Implementation and variant."""


class Unavailable(Exception):
    """This implementation cannot run this case; the text says why."""


class Missing(Unavailable):
    """It is not installed, so it cannot run any case."""


@dataclass(frozen=True, eq=False)
class Contender:
    """One implementation with its inputs."""

    impl: str
    forward: Callable[[], Any] | None
    """Gives out, or (out, lse)."""
    backward: Callable[[Any], tuple[Any, ...]] | None
    """A function from dout to (dq, dk, dv)."""
    keeps_all: bool = False
    """Whether it computes attention to every key, whatever the mask."""
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Calls run inside of this context."""
    variant: str = ""
    """This names which of several things it is asked for; nothing: what the case says."""
    alpha: float | None = None
    """Entmax's alpha, where it is not the case's; 1 is softmax."""
    also: tuple[Contender, ...] = ()
    """The variants of this contender."""
    sources: Callable[[], tuple[str, ...]] = tuple
    """Names what the latest call ran."""
    attended: Callable[[], Any] | None = None
    """Gives the out, or (out, lse), that `backward` reads where there is no `forward`."""

    @property
    def key(self) -> Key:
        """Return a key that is unique among implementations."""
        return self.impl, self.variant

    def runs(self, direction: str) -> bool:
        """Whether it has this direction."""
        return (self.forward if direction == "fwd" else self.backward) is not None

    def call(self, direction: str, dout: Any) -> Callable[[], Any]:
        """A pass in a direction that it has, the backward pass with dout [B, Hq, Nq, Dv]."""
        if direction == "fwd" and self.forward is not None:
            return self.forward
        if direction == "bwd" and self.backward is not None:
            return partial(self.backward, dout)
        raise LookupError(f"{self.impl} has no {direction}")


def differentiated(
    impl: str, call: Call, tensors: CaseTensors, backward: bool, keeps_all: bool = False
) -> Contender:
    """A function of q, k and v whose gradients are autograd's."""
    import torch

    def forward() -> Any:
        with torch.no_grad():
            return call(*tensors.qkv)

    return Contender(impl, forward, gradient_of(call, tensors) if backward else None, keeps_all)


def gradient_of(call: Callable[..., Any], tensors: CaseTensors) -> Callable[[Any], tuple[Any, ...]]:
    """Return only the backward pass of call(q, k, v); its forward pass runs once, on first use."""
    import torch

    @cache
    def graph() -> tuple[Any, list[Any]]:
        leaves = [x.detach().requires_grad_() for x in tensors.qkv]
        return call(*leaves), leaves

    def gradient(dout: Any) -> tuple[Any, ...]:
        out, leaves = graph()
        gradients: tuple[Any, ...] = torch.autograd.grad(out, leaves, dout, retain_graph=True)
        return gradients

    return gradient


def tokens_first(
    impl: str, attend: Callable[..., Any], tensors: CaseTensors, backward: bool
) -> Contender:
    """Attention of tensors in an order of its own, [B, N, H, D]: turning them takes no part."""
    import torch

    turned_qkv = [x.transpose(1, 2).contiguous() for x in tensors.qkv]

    def forward() -> Any:
        with torch.no_grad():
            return attend(*turned_qkv).transpose(1, 2)

    @cache
    def graph() -> tuple[Any, list[Any]]:
        leaves = [x.detach().requires_grad_() for x in turned_qkv]
        return attend(*leaves), leaves

    turned: dict[int, tuple[Any, Any]] = {}  # gradients come in another order than it takes

    def gradient(dout: Any) -> tuple[Any, ...]:
        if id(dout) not in turned:
            turned.clear()
            turned[id(dout)] = dout, dout.transpose(1, 2).contiguous()
        out, leaves = graph()
        gradients = torch.autograd.grad(out, leaves, turned[id(dout)][1], retain_graph=True)
        return tuple(x.transpose(1, 2) for x in gradients)

    return Contender(impl, forward, gradient if backward else None)


def make_rival(
    name: str, case: Case, tensors: CaseTensors, pairs: CasePairs | None, table: Any, backward: bool
) -> Contender:
    """Make one of RIVALS on the same tensors, without a backward pass if it has none.

    Args:
        pairs: None if keys are chosen at run time.
        table: the mask as `boolean_mask` makes it.

    Raises:
        Unavailable: it cannot run the case here.
    """
    if name == "dense":
        return differentiated(name, _sdpa(case), tensors, backward, keeps_all=True)
    if pairs is None:
        raise Unavailable("keys are chosen at run time")
    if name == "flex":
        return flex(case, tensors, pairs, backward)
    if name == "sparse":
        return differentiated(name, sparse(case, tensors, pairs), tensors, False)
    if name == "cudnn_flex":
        return cudnn_flex(case, tensors, pairs, backward)
    if table is None:
        raise Unavailable("its boolean mask would be too large")
    if name == "unfused":
        return differentiated(name, unfused(case, tensors, table), tensors, backward)
    return differentiated(name, partial(_sdpa(case), attn_mask=table), tensors, backward)


# ------------------------------------------------------------------ PyTorch's operators


def _sdpa(case: Case) -> Call:
    from torch.nn.functional import scaled_dot_product_attention

    return partial(scaled_dot_product_attention, enable_gqa=case.group > 1)


def boolean_mask(
    case: Case, tensors: CaseTensors, pairs: CasePairs, most: int = _MASK_BYTES
) -> Any:
    """bool [B or 1, H or 1, n_q, n_kv] on the device; None if it would have more than `most`
    elements."""
    import torch

    shape = (
        case.batch if pairs.batched else 1, case.heads if pairs.by_head else 1, case.n_q, case.n_kv
    )  # fmt: skip
    if math.prod(shape) > most:
        return None
    mask = torch.empty(shape, dtype=torch.bool, device=tensors.q.device)
    for b, h in np.ndindex(shape[:2]):
        for start in range(0, case.n_q, _ROWS):
            rows = np.arange(start, min(start + _ROWS, case.n_q))
            mask[b, h, start : start + _ROWS] = torch.tensor(pairs.rows(b, h, rows))
    return mask


def unfused(case: Case, tensors: CaseTensors, mask: Any) -> Call:
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


def sparse(case: Case, tensors: CaseTensors, pairs: CasePairs) -> Call:
    """Attention with torch.sparse in fp32, the only dtype that its sampled product has everywhere.

    Raises:
        Unavailable: the matrix would be too large.
    """
    import torch

    torch.sparse.check_sparse_tensor_invariants.disable()  # said, so that it does not warn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that CSR is in beta, once a process
        torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), dtype=torch.float32)
    batches = case.batch if pairs.batched else 1
    heads = case.heads if pairs.by_head else 1
    made = {
        (b, h): _rows_as_csr(case, pairs, b, h, tensors.q.device)
        for b in range(batches)
        for h in range(heads)
    }
    attend = partial(_attend_sparse, scale=case.scale)

    def call(q: Any, k: Any, v: Any) -> Any:
        outs = [
            attend(*made[min(b, batches - 1), min(h, heads - 1)], q[b, h],
                 k[b, h // case.group], v[b, h // case.group])
            for b in range(case.batch)
            for h in range(case.heads)
        ]  # fmt: skip
        return torch.stack(outs).unflatten(0, (case.batch, case.heads))

    return call


def _attend_sparse(zeros: Any, lengths: Any, q: Any, k: Any, v: Any, *, scale: float) -> Any:
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


def _rows_as_csr(case: Case, pairs: CasePairs, b: int, h: int, device: Any) -> tuple[Any, Any]:
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


# ------------------------------------------------------------------ FlexAttention


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings of FlexAttention's compiler, which speak of PyTorch's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def start_anew() -> None:
    """Forget compiled functions: else earlier cases count towards a limit of recompilations.

    Beyond the limit PyTorch would run FlexAttention uncompiled; here that is an error.
    """
    import torch
    import torch._dynamo

    torch._dynamo.reset()
    if hasattr(torch._dynamo.config, "fail_on_recompile_limit_hit"):
        torch._dynamo.config.fail_on_recompile_limit_hit = True


def flex(
    case: Case, tensors: CaseTensors, pairs: CasePairs, backward: bool, flash: bool = False
) -> Contender:
    """torch.compile(flex_attention) with a block mask made beforehand; no backward on a CPU.

    Args:
        flash: its backend of FlashAttention 4's kernels, instead of Triton's.

    Raises:
        Unavailable: this PyTorch has no FlexAttention.
    """
    batch, heads = case.batch if pairs.batched else None, case.heads if pairs.by_head else None
    with quiet():
        keep = formula_of(case, pairs, tensors.device)
        sizes = batch, heads, case.n_q, case.n_kv
        call = compiled_flex(keep, sizes, tensors.device, case.group > 1, flash)
        impl, gradient = "flex_flash" if flash else "flex", backward and tensors.device == "cuda"
        rival = replace(differentiated(impl, call, tensors, gradient), scope=quiet)
        rival.call("fwd", None)()  # compiled now, and refused now
    return rival


def compiled_flex(
    keep: Call, sizes: tuple[int | None, int | None, int, int], device: str, grouped: bool,
    flash: bool = False, **options: Any,
) -> Call:  # fmt: skip
    """compile(flex_attention) with the block mask of a mask_mod(b, h, q, k).

    Args:
        sizes: sequences and heads, None if all have the same mask; queries and keys.
        grouped: whether query heads share keys.
        flash: whether it runs FlashAttention 4's kernels.
        options: of flex_attention: score_mod, scale, ...

    Raises:
        Unavailable: this PyTorch has no FlexAttention.
    """
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as error:
        raise Unavailable(str(error)) from None
    import torch
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # the graph is differentiated many times
    large = math.prod(size or 1 for size in sizes) > _DENSE_MASK
    blocks = create_block_mask(keep, *sizes, device=device, _compile=large and device == "cuda")
    if flash:
        options["kernel_options"] = {"BACKEND": "FLASH"}
    compiled = torch.compile(flex_attention, dynamic=False)
    return partial(compiled, block_mask=blocks, enable_gqa=grouped, **options)


# ------------------------------------------------------------------ cuDNN


def cudnn_flex(case: Case, tensors: CaseTensors, pairs: CasePairs, backward: bool) -> Contender:
    """cuDNN's flex attention, by intervals of keys, on tensors of its own order.

    Raises:
        Unavailable: it is not installed, or does not support such a mask.
    """
    if not cudnn_installed():
        raise Missing("not installed: pip install nvidia-cudnn-frontend")
    if tensors.device != "cuda":
        raise Unavailable("it runs on GPUs only")
    if case.dtype is DType.float32:
        raise Unavailable("it takes bfloat16 and float16 only")
    keep = formula_of(case, pairs, tensors.device)
    heads = case.heads if pairs.by_head else 1
    ends = intervals(keep, case.batch, heads, case.n_q, case.n_kv, tensors.device)
    try:
        attend = attend_with(ends, tensors, backward)
    except (TypeError, ValueError) as error:
        raise Unavailable(str(error)) from None
    return tokens_first("cudnn_flex", attend, tensors, backward)


def cudnn_installed() -> bool:
    """Whether its flex attention can be found; nothing of it is imported."""
    try:
        return find_spec("cudnn.flex_attention") is not None
    except ImportError:
        return False


def intervals(keep: Call, batch: int, heads: int, n_q: int, n_kv: int, device: str) -> Any:
    """int32 [heads, 2 m + 1, batch * n_q]: a query sees keys before F0, from F1 to F2, ...

    Args:
        heads: 1 where all have the same mask.

    Raises:
        Unavailable: a query has more than 16 intervals.
    """
    import torch

    columns = torch.arange(n_kv, device=device)
    step = max(1, _CHUNK // n_kv)
    of_heads = []
    for head in range(heads):
        parts = []
        for sequence in range(batch):
            b, h = (torch.tensor(i, device=device) for i in (sequence, head))
            for first in range(0, n_q, step):
                rows = torch.arange(first, min(first + step, n_q), device=device)
                live = keep(b, h, rows[:, None], columns[None])
                parts.append(_ends(live.broadcast_to(len(rows), n_kv)))
        of_heads.append(torch.cat(parts))
    ends = torch.stack(of_heads)
    used = ends[..., 2::2] > ends[..., 1::2]
    most = int(used.sum(-1).max())
    return ends[..., : 2 * most + 1].transpose(1, 2).contiguous()


def _ends(live: Any) -> Any:
    """int32 [rows, 2 _INTERVALS + 1] of booleans [rows, keys]."""
    import torch

    edge = torch.zeros(len(live), 1, dtype=torch.bool, device=live.device)
    padded = torch.cat([edge, live, edge], 1)
    row, key = (padded[:, 1:] != padded[:, :-1]).nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(live))
    number = torch.arange(len(row), device=live.device) - (counts.cumsum(0) - counts)[row]
    number += 1 - live[:, 0].long()[row] * 2  # keys from 0 on end at F0
    if len(number) and int(number.max()) > 2 * _INTERVALS:
        raise Unavailable(f"a query has more than {_INTERVALS} intervals of keys")
    ends = torch.zeros(len(live), 2 * _INTERVALS + 1, dtype=torch.int32, device=live.device)
    inside = number >= 0
    ends[row[inside], number[inside]] = key[inside].int()
    return ends.cummax(1).values  # further intervals are empty ones at the last end


def attend_with(ends: Any, tensors: CaseTensors, backward: bool) -> Callable[..., Any]:
    """Attention of tensors like these, in the order [B, N, H, D], with a plan made beforehand.

    Args:
        backward: whether the plan is for gradients too.
    """
    from cudnn.flex_attention import create_mask_plan, flex_attn_func  # type: ignore[import-not-found]

    turned_qkv = (x.detach().transpose(1, 2).contiguous() for x in tensors.qkv)
    plan = create_mask_plan(ends, *(x.requires_grad_(backward) for x in turned_qkv))
    return partial(flex_attn_func, mask_plan=plan)
