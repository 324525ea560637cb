"""Tensors of a whole sequence and their shards, with autograd."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core.errors import RanksDisagree, ShardLength
from maskc.distributed.groups import exchanged, number_of, ranks_of, wrong_length

if TYPE_CHECKING:
    from maskc.distributed.layouts import TokenLayout
    from maskc.distributed.planning import Plan


def shard(plan: Plan, x: Any, dim: int = 1, group: Any = None, of: str = "q") -> Any:
    """Return this rank's tokens of a tensor that every rank holds completely.

    Args:
        x: any tensor with plan.n tokens along `dim`.
        dim: dimension of tokens: 1 for input ids [B, N] and hidden states [B, N, C], 2 for q, k and
            v [B, H, N, D].
        group: a ProcessGroup or a DeviceMesh; None is the default group.
        of: "q", or "k" for keys of cross attention, which have plan.n_kv tokens.

    Returns:
        The rank's tokens, in the order of `plan.indices(rank)`. The gradient of x is zero at tokens
        of other ranks.

    Raises:
        ShardLength: x has another number of tokens (MC704).
        WrongGroup: the group does not fit the plan (MC706).
    """
    import torch

    ranks = ranks_of(plan, group)
    layout = plan.layout_of(of)
    if x.shape[dim] != layout.n:
        what = f"x (dim {dim})"
        raise ShardLength(what, x.shape[dim], f"the plan is for {layout.n}", at="x")
    if layout.is_scattered:
        index = plan.once(("shard", of, ranks.rank, x.device), lambda: torch.from_numpy(
            layout.indices(ranks.rank)).to(x.device))  # fmt: skip
        return x.index_select(dim, index)
    held = sorted(layout.held(ranks.rank).stretches, key=lambda part: part.place)
    parts = [x.narrow(dim, part.start, part.count) for part in held]
    if not parts:
        return x.narrow(dim, 0, 0)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def unshard(plan: Plan, x: Any, dim: int = 1, group: Any = None, of: str = "q") -> Any:
    """Gather the whole tensor from the shards of all ranks. All ranks must call it.

    Args:
        x: this rank's tokens along `dim`, a tensor [.., tokens, ..] of any dtype.
        dim, group, of: as in `shard`.

    Returns:
        [.., plan.n, ..]: all tokens in the order of the sequence, on every rank. The gradient of x
        is the sum of the ranks' gradients for its tokens.

    Raises:
        ShardLength: x has another number of tokens than the rank (MC704).
        RanksDisagree: on CPUs, ranks have another plan, dtype or shape (MC703).
        WrongGroup: the group does not fit the plan (MC706).
    """
    ranks, layout = ranks_of(plan, group), plan.layout_of(of)
    held = {ranks.rank: x.shape[dim]}
    if ranks.size > 1 and x.device.type == "cpu":  # where one would raise, the others would wait
        others = list(x.shape)
        others[dim] = 0
        told = x.shape[dim], number_of(f"{plan.digest} {of} {dim} {others} {x.dtype}")
        tokens_of_ranks, alike = zip(*exchanged(ranks, x.device, told), strict=True)
        if len(set(alike)) > 1:
            fault = f"rank {ranks.rank} has {list(x.shape)} of {x.dtype}, tokens along {dim}"
            raise RanksDisagree("the plan, the dtype or the shape of x", fault, at="x")
        held = dict(enumerate(tokens_of_ranks))
    for rank, tokens in held.items():
        if tokens != layout.tokens[rank]:
            raise wrong_length(layout, f"x (dim {dim})", tokens, rank)
    if ranks.size == 1 and np.array_equal(layout.order, np.arange(layout.n)):
        return x
    return _function().apply(x, plan, ranks, dim, of)


def roll(
    plan: Plan, x: Any, shift: int = -1, dim: int = 1, group: Any = None, of: str = "q"
) -> Any:
    """Return this rank's shard of the rolled sequence, as `shard(whole.roll(shift, dim))` would.

    For example, `roll(ids, -1)` returns next-token labels. All ranks must call it. It gathers the
    whole sequence along `dim`, so use it for ids and labels, not for large tensors.

    Args:
        x: this rank's tokens along `dim`, a tensor [.., tokens, ..] of any dtype.
        shift: places by which tokens move to the right, as in torch.roll.
        dim, group, of: as in `shard`.

    Returns:
        A tensor of the shape and dtype of x.

    Raises:
        ShardLength: x has another number of tokens than the rank (MC704).
        RanksDisagree: on CPUs, ranks have another plan, dtype or shape (MC703).
        WrongGroup: the group does not fit the plan (MC706).
    """
    return shard(plan, unshard(plan, x, dim, group, of).roll(shift, dim), dim, group, of)


def position_ids(plan: Plan, group: Any = None, device: Any = None, of: str = "q") -> Any:
    """Return the positions of this rank's tokens in the whole sequence, int64 [tokens].

    Args:
        group, of: as in `shard`.
        device: of the result.

    Raises:
        WrongGroup: the group does not fit the plan (MC706).
    """
    import torch

    return torch.from_numpy(plan.indices(ranks_of(plan, group).rank, of)).to(device)


def whole_of(x: Any, layout: TokenLayout, ranks: Any, dim: int) -> Any:
    """All tokens: shards of equal lengths travel, the shorter ones padded."""
    import torch
    import torch.distributed as dist

    if x.element_size() == 1 and x.is_floating_point():  # as bytes, which all groups send
        return whole_of(x.view(torch.uint8), layout, ranks, dim).view(x.dtype)
    counts = layout.tokens.tolist()
    most = max(counts)
    moved = x.detach().movedim(dim, 0)
    padded = moved.new_zeros((most, *moved.shape[1:]))
    padded[: moved.shape[0]] = moved
    parts = [torch.empty_like(padded) for _ in range(ranks.size)]
    if ranks.size == 1:
        parts = [padded]
    else:
        dist.all_gather(parts, padded, group=ranks.group)
    rows = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    whole = torch.empty_like(rows)
    whole[torch.from_numpy(layout.order).to(x.device)] = rows
    return whole.movedim(0, dim)


@cache
def _function() -> Any:
    """The autograd function of `unshard`; made on first use, as torch is."""
    import torch

    from maskc.integrations.torch.gradients import once

    class Unshard(torch.autograd.Function):
        """All tokens on every rank; the gradient is summed over ranks."""

        @staticmethod
        def forward(ctx: Any, x: Any, plan: Plan, ranks: Any, dim: int, of: str) -> Any:
            ctx.made_of = plan, ranks, dim, of
            return whole_of(x, plan.layout_of(of), ranks, dim)

        @staticmethod
        @once
        def backward(ctx: Any, _: Any, grad: Any) -> Any:
            import torch.distributed as dist

            plan, ranks, dim, of = ctx.made_of
            total = grad.contiguous().clone()
            if ranks.size > 1:
                dist.all_reduce(total, group=ranks.group)
            return shard(plan, total, dim, ranks.group, of), None, None, None, None

    return Unshard
