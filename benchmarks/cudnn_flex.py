"""cuDNN frontend's flex attention: masks as intervals of keys per query."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from benchmarks.contender import Contender, Missing, Unavailable, tokens_first
from maskc.verify.case import Case
from maskc.verify.mask_mod import formula_of
from maskc.verify.pairs import Pairs
from maskc.verify.tensors import Tensors

MISSING = "the package nvidia-cudnn-frontend with its flex attention is not installed"
_MOST = 8
"""Intervals of a query: a mask with more is not one for it."""
_PAIRS = 1 << 26
"""Pairs that are looked at at a time."""

Keep = Callable[[Any, Any, Any, Any], Any]
"""A mask_mod: index tensors b, h, q and k to booleans."""


def installed() -> bool:
    """Whether it can be found; nothing of it is imported."""
    try:
        return find_spec("cudnn.flex_attention") is not None
    except ImportError:
        return False


def intervals(keep: Keep, batch: int, heads: int, n_q: int, n_kv: int, device: str) -> Any:
    """int32 [heads, 2 m + 1, batch * n_q]: a query sees keys before F0, from F1 to F2, ...

    Args:
        heads: 1 where all have the same mask.

    Raises:
        Unavailable: a query has more than _MOST intervals.
    """
    import torch

    columns = torch.arange(n_kv, device=device)
    step = max(1, _PAIRS // n_kv)
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
    found = torch.stack(of_heads)
    used = found[..., 2::2] > found[..., 1::2]
    most = int(used.sum(-1).max())
    return found[..., : 2 * most + 1].transpose(1, 2).contiguous()


def _ends(live: Any) -> Any:
    """int32 [rows, 2 _MOST + 1] of booleans [rows, keys]."""
    import torch

    edge = torch.zeros(len(live), 1, dtype=torch.bool, device=live.device)
    padded = torch.cat([edge, live, edge], 1)
    row, key = (padded[:, 1:] != padded[:, :-1]).nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(live))
    number = torch.arange(len(row), device=live.device) - (counts.cumsum(0) - counts)[row]
    number += 1 - live[:, 0].long()[row] * 2  # keys from 0 on end at F0
    if len(number) and int(number.max()) > 2 * _MOST:
        raise Unavailable(f"a query has more than {_MOST} intervals of keys")
    found = torch.zeros(len(live), 2 * _MOST + 1, dtype=torch.int32, device=live.device)
    inside = number >= 0
    found[row[inside], number[inside]] = key[inside].int()
    return found.cummax(1).values  # further intervals are empty ones at the last end


def attend_with(
    ends: Any, tensors: Tensors, backward: bool, deterministic: bool = False
) -> Callable[..., Any]:
    """Attention of tensors like these, in the order [B, N, H, D], with a plan made beforehand.

    Args:
        backward: whether the plan is for gradients, too.
        deterministic: whether these have the same bits on every run.
    """
    from cudnn.flex_attention import create_mask_plan, flex_attn_func

    own = (x.detach().transpose(1, 2).contiguous() for x in tensors.qkv)
    plan = create_mask_plan(ends, *(x.requires_grad_(backward) for x in own))

    def attend(*inputs: Any) -> Any:
        return flex_attn_func(*inputs, mask_plan=plan, deterministic=deterministic)

    return attend


def cudnn_flex_contender(case: Case, tensors: Tensors, pairs: Pairs, backward: bool) -> Contender:
    """flex_attn_func on tensors of its own order.

    Raises:
        Missing: the package is not installed.
        Unavailable: a query has too many intervals, or it refuses the case.
    """
    if not installed():
        raise Missing(MISSING)
    keep = formula_of(case, pairs, tensors.device)
    heads = case.heads if pairs.by_head else 1
    ends = intervals(keep, case.batch, heads, case.n_q, case.n_kv, tensors.device)
    try:
        attend = attend_with(ends, tensors, backward)
    except (TypeError, ValueError) as error:
        raise Unavailable(str(error)) from None
    return tokens_first("cudnn_flex", attend, tensors, backward)
