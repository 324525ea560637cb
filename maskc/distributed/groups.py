"""Ranks of torch.distributed: who this process is, and whether all ranks mean the same plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from maskc.core.errors import RankLost, RankRefused, RanksDisagree, ShardLength, WrongGroup
from maskc.distributed.exchange import Exchange

if TYPE_CHECKING:
    from maskc.distributed.layouts import TokenLayout
    from maskc.distributed.planning import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """A process group that shares a sequence."""

    group: Any
    """None if there is one rank and no group."""
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

    _, ranks = plan.once(("ranks", id(group)), lambda: (group, _ranks_of(plan, dist, group)))
    return ranks  # and the group stays alive


def _ranks_of(plan: Plan, dist: Any, group: Any) -> Ranks:
    given = group
    if group is None and plan.ranks == 1:
        return Ranks(None, 0, 1, (0,))
    if not dist.is_available() or not dist.is_initialized():
        how = "call torch.distributed.init_process_group first, for example under torchrun"
        raise WrongGroup(plan.ranks, "and there is no process group", how, at="group")
    if hasattr(group, "get_group"):  # a DeviceMesh
        if group.ndim != 1:
            fault = f"and a mesh of {group.ndim} dimensions was given"
            raise WrongGroup(plan.ranks, fault, "name the dimension: mesh['cp']", at="group")
        given = group.get_group()
    if given is None:
        given = dist.group.WORLD
    if not isinstance(given, dist.ProcessGroup):
        fault, how = f"and {type(group).__name__} is no group", "pass a ProcessGroup or mesh['cp']"
        raise WrongGroup(plan.ranks, fault, how, at="group")
    size = dist.get_world_size(given)
    if size != plan.ranks:
        fault = f"and the group has {size}"
        raise WrongGroup(plan.ranks, fault, "plan(..., ranks=group.size())", at="group")
    world = tuple(dist.get_process_group_ranks(given))
    return Ranks(given, dist.get_rank(given), size, world)


class GroupPass(IntEnum):
    """Point in a call at which ranks compare their calls."""

    forward = 0
    backward = 1
    end = 2


class Own(NamedTuple):
    """Description of a rank's call. All fields are integers, so one message holds them."""

    at: int
    """A `GroupPass`."""
    plan: int
    call: int
    """Shapes, dtype, layer and the names of options."""
    wrong: int
    """1 to 3 where q, k or v is not a shard of the plan."""
    tokens: int
    """Number of tokens of the wrong tensor."""
    code: int = 0
    """The code of the error that ends the rank's call; 0 if there is none."""
    values: int = 0
    """The values of its options."""
    calls: int = 0
    """The number of calls since the last comparison; 0 if every call is compared."""


_EACH = 1024
"""Most calls of a GPU until its ranks compare what they called."""


class Calls:
    """Calls of a plan by one rank, so that ranks compare them now and then.

    Waiting for the device in each call would cost more than the kernels. A number for all calls
    so far, compared at calls 2, 4, 8, ... and every 1024th, finds any that differed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0
        self._numbers: dict[tuple[object, ...], int] = {}

    def add(self, call: tuple[object, ...], values: tuple[object, ...]) -> bool:
        """Note a call; returns whether ranks compare their calls now."""
        number = self._numbers.get(call)
        if number is None:
            number = self._numbers[call] = number_of(repr(call))
        for value in (number, *values):
            # numbers alone: hashes of texts and of None differ between processes
            self.digest = (self.digest * 1_000_003 + hash(value)) % (1 << 61)
        self.count += 1
        return self.count % _EACH == 0 or self.count & (self.count - 1) == 0


@dataclass(eq=False, slots=True)
class Accord:
    """Comparison of one call between ranks, before and after each pass.

    Tensors of a CPU are compared in each call: no message is under way where one rank's call ends,
    and all others end theirs. On a GPU that would wait for the device. There, the first call of
    its kind is compared, and later ones together (`Calls`); a rank whose call fails later still
    sends what the others wait for.
    """

    plan: Plan
    ranks: Ranks
    device: Any
    call: tuple[object, ...] = ()
    """Numbers that are equal on all ranks if they make the same call; empty if this rank fails."""
    values: tuple[float, ...] = ()
    """Values of options, which may change from call to call and are equal on all ranks."""
    wrong: int = 0
    tokens: int = 0

    @classmethod
    def of(
        cls, plan: Plan, ranks: Ranks, tensors: Sequence[Any], call: tuple[object, ...],
        values: tuple[float, ...],
    ) -> Accord:  # fmt: skip
        """Describe a call.

        Args:
            tensors: q, k and v of this rank [B, H, tokens, D].
            call: other values that must be equal on all ranks and determine the messages.
            values: values of options that must be equal on all ranks.
        """
        shapes = [x.shape for x in tensors]
        own_keys = int(plan.key_layout.tokens[ranks.rank])
        held = plan.tokens(ranks.rank), own_keys, own_keys
        wrong = next((i for i, shape in enumerate(shapes, 1) if shape[2] != held[i - 1]), 0)
        tokens = shapes[wrong - 1][2] if wrong else 0
        first = tensors[0]
        if ranks.size == 1:
            return cls(plan, ranks, first.device, (), (), wrong, tokens)
        sizes = tuple((*shape[:2], shape[3]) for shape in shapes)
        alike = sizes, str(first.dtype), *call
        return cls(plan, ranks, first.device, alike, values, wrong, tokens)

    def begin(
        self, at: GroupPass = GroupPass.forward, failure: BaseException | None = None
    ) -> None:
        """Check that all ranks begin the same pass of the same call.

        Args:
            failure: the error that this rank raises, to be sent to the others.

        Raises:
            RanksDisagree: ranks have other plans, layers or shapes, on all of them (MC703).
            ShardLength: a tensor is not a shard of the plan, on all of them (MC704).
            RankRefused: another rank raised (MC709).
        """
        if self.ranks.size > 1:
            agreed: set[object] = self.plan.once(("agreed",), set)
            kind = id(self.ranks.group), self.call
            first = at is GroupPass.forward and (kind not in agreed if self.call else not agreed)
            calls = self._noted() if at is GroupPass.forward else 0
            if self._compares or first or calls:
                self._check(self._exchanged(at, failure, calls))
                agreed.add(kind)
                return
        if self.wrong:
            raise self._wrong_length(self.wrong, self.tokens, self.ranks.rank)

    def run(self, job: Callable[[], T]) -> T:
        """Run this rank's part of a pass, and see that all ranks ended theirs.

        Raises:
            RankRefused: another rank raised (MC709).
            Exception: what the job raised.
        """
        if not self._compares:
            return job()
        try:
            result = job()
        except RankLost:
            raise
        except Exception as error:
            self._exchanged(GroupPass.end, error)
            raise
        self._check(self._exchanged(GroupPass.end, None))
        return result

    def _noted(self) -> int:
        """Note this call on a GPU; returns all calls as a number where ranks compare them now."""
        if self._compares or not self.call:
            return 0
        calls = self.plan.once(("calls", id(self.ranks.group)), Calls)
        due = calls.add(self.call, self.values)
        return calls.digest | 1 << 61 if due and not _captures(self.device) else 0

    @property
    def _compares(self) -> bool:
        """Whether ranks are compared in each call."""
        return self.ranks.size > 1 and self.device.type == "cpu"

    def _exchanged(self, at: GroupPass, failure: BaseException | None, calls: int = 0) -> list[Own]:
        """Gather the description of each rank's call, by rank."""
        code = 0 if failure is None else int(getattr(failure, "code", "MC000")[2:]) or -1
        known = number_of(self.plan.digest), number_of(repr(self.call))
        values = number_of(repr(self.values)) if self.call else 0
        told_own = Own(at, *known, self.wrong, self.tokens, code, values, calls)
        return [Own(*values) for values in exchanged(self.ranks, self.device, told_own)]

    def _check(self, told: Sequence[Own]) -> None:
        refused = [rank for rank, report in enumerate(told) if report.code]
        if refused:
            codes = ", ".join(dict.fromkeys(_shown(told[rank].code) for rank in refused))
            raise RankRefused(_listed(refused), codes, at="group")
        for what, field in (("the pass", "at"), ("the plan", "plan"),
                            ("shapes, dtype, layer or options", "call"),
                            ("the values of options", "values"),
                            ("the calls before this one", "calls")):  # fmt: skip
            values = [getattr(report, field) for report in told]
            others = [rank for rank, value in enumerate(values) if value != values[0]]
            if others:
                fault = f"rank 0 has another one than {_listed(others)}"
                raise RanksDisagree(what, fault, at="plan")
        for rank, report in enumerate(told):
            if report.wrong:
                raise self._wrong_length(report.wrong, report.tokens, rank)

    def _wrong_length(self, wrong: int, tokens: int, rank: int) -> ShardLength:
        """The mistake of q, k or v, by its number from 1 on."""
        layout = self.plan.layout_of("qkk"[wrong - 1])
        return wrong_length(layout, "qkv"[wrong - 1], tokens, rank)


def _captures(device: Any) -> bool:
    """Whether the current stream records a CUDA graph, in which nobody may wait."""
    import torch

    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def exchanged(ranks: Ranks, device: Any, integers: Sequence[int]) -> list[list[int]]:
    """Integers of all ranks, by rank.

    Raises:
        RankLost: a rank is gone (MC705).
    """
    import torch
    import torch.distributed as dist

    mine = torch.tensor(integers, dtype=torch.int64, device=device)
    received = [torch.empty_like(mine) for _ in range(ranks.size)]
    if device.type == "cpu":  # one by one, so that a rank that is gone is named
        received[ranks.rank] = mine
        messages = Exchange(ranks)
        for rank in range(ranks.size):
            if rank != ranks.rank:
                messages.send(mine, rank)
                messages.receive(received[rank], rank)
        messages.start()
        messages.wait()
    else:
        dist.all_gather(received, mine, group=ranks.group)
    return [numbers.tolist() for numbers in received]


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")


def _shown(code: int) -> str:
    return f"MC{code}" if code > 0 else "another error"


def wrong_length(layout: TokenLayout, name: str, tokens: int, rank: int) -> ShardLength:
    """The mistake of a tensor that is not a shard of a rank."""
    holds = f"{layout.tokens[rank]} of the plan's {layout.n}"
    held = f"rank {rank} of {layout.ranks} holds {holds}"
    return ShardLength(name, tokens, held, at=name.split()[0])


def number_of(text: str) -> int:
    """A number for a text, the same in all processes; it fits 60 bits."""
    return int(sha256(text.encode()).hexdigest()[:15], 16)
