"""The full text of every refusal around sequences that ranks share (MC700 to MC710)."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import maskc as mc
from maskc.core.errors import MaskcError, RankLost, RankRefused, RanksDisagree
from maskc.distributed import plan

HEADS = (4, 2, 64)


def tokens(n: int, heads: int = 2) -> torch.Tensor:
    return torch.zeros(1, heads, n, 64)


def attend(n: int) -> None:
    made = plan(mc.causal(), 64, 1, heads=HEADS)
    mc.distributed.attention(tokens(n, 4), tokens(n), tokens(n), made)


SCATTERED = plan(
    mc.causal(), 160, 1, heads=HEADS, block=16,
    layout=[[x + y for x in range(144, -1, -16) for y in range(16)]],
)  # fmt: skip
"""A rank with ten stretches of sixteen tokens."""


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "ranks": (
        lambda: plan(mc.causal(), 1024, 0, heads=HEADS),
        "MC700 ranks  ranks is 0, expected an integer in 1..1048576\n"
        "    hint: a plan takes masks, n >= 0 tokens and ranks >= 1, for example plan(mask, 131072, 8)",
    ),
    "layer": (
        lambda: plan({"full": mc.causal(), "near": mc.chunked(64)}, 1024, 2, heads=HEADS).layer(
            "far"
        ),
        "MC701 layer  layer='far' is none of the plan's masks: full, near\n"
        "    hint: pass one of these names: plan(...) got the masks as a dict",
    ),
    "data": (
        lambda: plan(mc.documents("doc"), 64, 2, heads=HEADS).work(0),
        "MC702 plan  the mask reads doc, which the plan was not given\n"
        "    hint: call plan.given(doc=...) with the data of all tokens, step by step",
    ),
    "a name": (
        lambda: plan(mc.documents("doc"), 64, 2, heads=HEADS).given(dok=[0] * 64),
        "MC702 dok  no mask reads 'dok'\n    hint: they read doc",
    ),
    "ranking": (
        lambda: plan(mc.topk(4, of=mc.causal(), score="indexer"), 64, 2, heads=HEADS).given(
            index_q=0
        ),
        "MC702 index_q  index_q chooses keys: calls give it, a plan reads none of it\n"
        "    hint: mc.distributed.attention(q, k, v, plan, index_q=...), this rank's tokens of it",
    ),
    "lists": (
        lambda: plan(mc.key_lists("kept"), 64, 2, heads=HEADS).given(kept=0),
        "MC702 kept  kept chooses keys: calls give it, a plan reads none of it\n"
        "    hint: mc.distributed.attention(q, k, v, plan, kept=...), this rank's tokens of it",
    ),
    "layout": (
        lambda: plan(mc.causal(), 64, 2, heads=HEADS, layout="diagonal"),
        "MC700 layout  layout is 'diagonal', expected auto, contiguous, zigzag, striped, balanced, or the tokens in the slots of each rank\n"
        "    hint: a plan takes masks, n >= 0 tokens and ranks >= 1, for example plan(mask, 131072, 8)",
    ),
    "layout of keys": (
        lambda: plan(mc.full(), 64, 2, heads=HEADS, n_kv=80, key_layout="auto"),
        "MC700 key_layout  key_layout is 'auto', expected contiguous, zigzag, striped, or the tokens in the slots of each rank\n"
        "    hint: a plan takes masks, n >= 0 tokens and ranks >= 1, for example plan(mask, 131072, 8)",
    ),
    "a token twice": (
        lambda: plan(mc.causal(), 4, 2, heads=HEADS, layout=[[0, 1], [1, 3]]),
        "MC710 layout  token 1 lies in slot 1 of rank 0 and in slot 0 of rank 1\n"
        "    hint: give every token of the sequence once: which one lies in each slot of each rank",
    ),
    "no layout": (
        lambda: plan(mc.causal(), 4, 2, heads=HEADS, layout=2.5),
        "MC710 layout  it is an array of float64\n"
        "    hint: use auto, contiguous, zigzag, striped, balanced, or integers: which token lies in each slot",
    ),
    "edges": (
        lambda: mc.distributed.zigzag([0, 9, 5], 2),
        "MC710 cu_seqlens  it is [0, 9, 5]\n"
        "    hint: give the edges of the documents, such as [0, 1024, 4096]",
    ),
    "scattered tokens": (
        lambda: mc.distributed.attention(
            tokens(160, 4),
            tokens(160),
            tokens(160),
            SCATTERED,
            dropout_p=0.5,
            dropout_seed=0,
            score=mc.score(lambda s, q: s + q),
        ),
        "MC707 score  score cannot run on shards: with dropout its kernels are made for few stretches of tokens, and a rank has many\n"
        "    hint: use a layout with at most 8 stretches for each rank",
    ),
    "whole": (
        lambda: plan(mc.causal(), 64, 1, heads=HEADS).shard(torch.zeros(1, 65)),
        "MC704 x  x (dim 1) has 65 tokens, the plan is for 64\n"
        "    hint: shard with plan.shard(x, dim), which also says how many tokens a rank has",
    ),
    "shard": (
        lambda: attend(63),
        "MC704 q  q has 63 tokens, rank 0 of 1 holds 64 of the plan's 64\n"
        "    hint: shard with plan.shard(x, dim), which also says how many tokens a rank has",
    ),
    "group": (
        lambda: plan(mc.causal(), 64, 2, heads=HEADS).shard(torch.zeros(1, 64)),
        "MC706 group  the plan is for 2 ranks, and there is no process group\n"
        "    hint: call torch.distributed.init_process_group first, for example under torchrun",
    ),
    "balancer": (
        lambda: mc.distributed.load_balancer(plan(mc.causal(), 63, 2, heads=HEADS)),
        "MC707 plan  torch's context parallelism cannot run on shards: ranks hold 31 to 32 tokens\n"
        "    hint: pad the sequence",
    ),
    "network": (
        lambda: plan(mc.causal(), 64, 2, heads=HEADS, network="pigeons"),
        "MC708 network  no network 'pigeons'\n"
        "    hint: use one of nvlink, 400Gb/s, 800Gb/s, or a speed per rank such as 400Gb/s or 50GB/s",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name: str):
    wrong, text = CASES[name]
    with pytest.raises(MaskcError) as caught:
        wrong()
    assert str(caught.value) == text


def test_of_several_ranks():
    """Messages of ranks about each other; test_distributed_attention.py makes them say it."""
    other = RanksDisagree("the plan", "rank 0 has another one than 1, 3", at="plan")
    assert str(other) == (
        "MC703 plan  ranks disagree about the plan: rank 0 has another one than 1, 3\n"
        "    hint: make the plan from the same masks, lengths, heads and data on every rank"
    )
    refused = RankRefused("1, 3", "MC401", at="group")
    assert str(refused) == (
        "MC709 group  the call ended on all ranks: rank 1, 3 raised MC401\n"
        "    hint: see the output of that rank for the whole error; later calls may continue"
    )
    lost = RankLost(3, 1, 4, "Connection closed by peer", at="group")
    assert str(lost) == (
        "MC705 group  waiting for rank 3 failed after 1 of 4 messages had arrived: Connection closed by peer\n"
        "    hint: look at that rank's own output first; if it is only slow, raise the timeout, "
        "init_process_group(timeout=...)"
    )
