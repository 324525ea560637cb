"""Ranks of torch.distributed: who this process is, and whether all ranks mean the same plan."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from maskc.core.errors import RanksDisagree, ShardLength, WrongGroup

if TYPE_CHECKING:
    from maskc.distributed.planning import Plan


@dataclass(frozen=True)
class Ranks:
    """A process group that shares a sequence."""

    group: Any
    """None where there is one rank and no group."""
    rank: int
    size: int
    world: tuple[int, ...]
    """The number of each of its ranks in the whole job."""


def ranks_of(plan: Plan, group: Any = None) -> Ranks:
    """The group of a plan, and this process in it.

    Args:
        group: a ProcessGroup or a DeviceMesh of one dimension; None is the default group, which a
            plan for one rank does not need.

    Raises:
        WrongGroup: there is none, or it has another number of ranks (MC706).
    """
    import torch.distributed as dist

    _, found = plan.once(("ranks", id(group)), lambda: (group, _ranks_of(plan, dist, group)))
    return found  # and the group stays alive


def _ranks_of(plan: Plan, dist: Any, group: Any) -> Ranks:
    given = group
    if group is None and plan.ranks == 1:
        return Ranks(None, 0, 1, (0,))
    if not dist.is_available() or not dist.is_initialized():
        how = "call torch.distributed.init_process_group first, for example under torchrun"
        raise WrongGroup(plan.ranks, "and there is no process group", how, at="group")
    if hasattr(group, "get_group"):  # a DeviceMesh
        if group.ndim != 1:
            found = f"and a mesh of {group.ndim} dimensions was given"
            raise WrongGroup(plan.ranks, found, "name the dimension: mesh['cp']", at="group")
        given = group.get_group()
    if given is None:
        given = dist.group.WORLD
    size = dist.get_world_size(given)
    if size != plan.ranks:
        found = f"and the group has {size}"
        raise WrongGroup(plan.ranks, found, "plan(..., ranks=group.size())", at="group")
    world = tuple(dist.get_process_group_ranks(given))
    return Ranks(given, dist.get_rank(given), size, world)


def agree(plan: Plan, ranks: Ranks, q: Any, k: Any, v: Any, layer: str | None) -> None:
    """See that all ranks have the same plan and call it with shapes that fit; once for each shape.

    Later calls check only themselves: nothing is sent.

    Args:
        q, k, v: this rank's tensors [B, H, tokens, D].
        layer: which mask of the plan is meant; None where there is one.

    Raises:
        RanksDisagree: ranks have other plans, layers or shapes, on all of them (MC703).
        ShardLength: a tensor is no shard of the plan, on all of them (MC704).
    """
    shapes = tuple(
        (tuple(x.shape[:2]), x.shape[3]) for x in (q, k, v)
    ), str(q.dtype), layer  # fmt: skip
    wrong = next(
        (name for name, x in (("q", q), ("k", k), ("v", v))
         if x.shape[2] != plan.tokens(ranks.rank)), None,
    )  # fmt: skip
    agreed: set[object] = plan.once(("agreed",), set)
    place = id(ranks.group), shapes
    if ranks.size == 1 or place in agreed:
        if wrong is not None:
            tokens = {"q": q, "k": k, "v": v}[wrong].shape[2]
            raise wrong_length(plan, wrong, tokens, ranks.rank)
        return
    import torch
    import torch.distributed as dist

    longest = 0 if wrong is None else "qkv".index(wrong) + 1
    own = [_number(plan.digest), _number(repr(shapes)), longest, (q, k, v)[longest - 1].shape[2]]
    mine = torch.tensor(own, dtype=torch.int64, device=q.device)
    found = [torch.empty_like(mine) for _ in range(ranks.size)]
    dist.all_gather(found, mine, group=ranks.group)
    told = [each.tolist() for each in found]
    for number, what in ((0, "the plan"), (1, "shapes, dtype or layer")):
        others = [rank for rank, each in enumerate(told) if each[number] != told[0][number]]
        if others:
            listed = ", ".join(map(str, others[:8])) + (" ..." if len(others) > 8 else "")
            raise RanksDisagree(what, f"rank 0 has another one than {listed}", at="plan")
    for rank, (_, _, bad, tokens) in enumerate(told):
        if bad:
            raise wrong_length(plan, "qkv"[bad - 1], tokens, rank)
    agreed.add(place)


def wrong_length(plan: Plan, name: str, tokens: int, rank: int) -> ShardLength:
    """The mistake of a tensor that is no shard of a rank."""
    held = f"rank {rank} of {plan.ranks} holds {plan.tokens(rank)} of the plan's {plan.n}"
    return ShardLength(name, tokens, held, at=name.split()[0])


def _number(text: str) -> int:
    return int(sha256(text.encode()).hexdigest()[:15], 16)
