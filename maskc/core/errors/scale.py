"""Mistakes around sequences that several ranks share."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class PlanArgument(MaskcError):
    """An argument of a plan is out of range."""

    code = "MC700"
    message = "{0} is {1}, expected {2}"
    hint = "a plan takes masks, n >= 0 tokens and ranks >= 1, for example plan(mask, 131072, 8)"


class LayerUnknown(MaskcError):
    """A plan has several masks, and the call names none of them."""

    code = "MC701"
    message = "layer={0!r} is none of the plan's masks: {1}"
    hint = "pass one of these names: plan(...) got the masks as a dict"


class PlanData(MaskcError):
    """A plan lacks data that its mask reads, or got data that its mask does not read."""

    code = "MC702"
    message = "{0}"
    hint = "{1}"


class RanksDisagree(MaskcError):
    """Ranks called with different plans, lengths or masks."""

    code = "MC703"
    message = "ranks disagree about {0}: {1}"
    hint = "make the plan from the same masks, lengths, heads and data on every rank"


class ShardLength(MaskcError):
    """A tensor is not the shard that the plan gives to this rank."""

    code = "MC704"
    message = "{0} has {1} tokens, {2}"
    hint = "shard with plan.shard(x, dim), which also says how many tokens a rank has"


class RankLost(MaskcError):
    """A rank did not send the messages of the plan, or died."""

    code = "MC705"
    message = "waiting for rank {0} failed after {1} of {2} messages had arrived: {3}"
    hint = (
        "look at that rank's own output first; if it is only slow, raise the timeout, "
        "init_process_group(timeout=...)"
    )


class WrongGroup(MaskcError):
    """The process group does not fit the plan."""

    code = "MC706"
    message = "the plan is for {0} ranks, {1}"
    hint = "{2}"


class NotShared(MaskcError):
    """A call or a mask cannot run on shards."""

    code = "MC707"
    message = "{0} cannot run on shards: {1}"
    hint = "{2}"


class NetworkUnknown(MaskcError):
    """The network is neither known nor described."""

    code = "MC708"
    exit_code = 2
    message = "no network {0!r}"
    hint = "use one of {1}, or a speed per rank such as 400Gb/s or 50GB/s"


class RankRefused(MaskcError):
    """Another rank's part of a call raised; the call ended on all ranks."""

    code = "MC709"
    message = "the call ended on all ranks: rank {0} raised {1}"
    hint = "see the output of that rank for the whole error; later calls may continue"


class LayoutPositions(MaskcError):
    """A layout passed by the caller does not place every token exactly once."""

    code = "MC710"
    message = "{0}"
    hint = "{1}"
