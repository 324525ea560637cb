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


CASES: dict[str, Callable[[], object]] = {
    "ranks": lambda: plan(mc.causal(), 1024, 0, heads=HEADS),
    "layer": lambda: plan(
        {"full": mc.causal(), "near": mc.chunked(64)}, 1024, 2, heads=HEADS
    ).layer("far"),
    "data": lambda: plan(mc.documents("doc"), 64, 2, heads=HEADS).work(0),
    "a name": lambda: plan(mc.documents("doc"), 64, 2, heads=HEADS).given(dok=[0] * 64),
    "ranking": lambda: plan(mc.topk(4, of=mc.causal(), score="indexer"), 64, 2, heads=HEADS).given(
        index_q=0
    ),
    "lists": lambda: plan(mc.key_lists("kept"), 64, 2, heads=HEADS).given(kept=0),
    "layout": lambda: plan(mc.causal(), 64, 2, heads=HEADS, layout="diagonal"),
    "layout of keys": lambda: plan(mc.full(), 64, 2, heads=HEADS, n_kv=80, key_layout="auto"),
    "a token twice": lambda: plan(mc.causal(), 4, 2, heads=HEADS, layout=[[0, 1], [1, 3]]),
    "no layout": lambda: plan(mc.causal(), 4, 2, heads=HEADS, layout=2.5),
    "edges": lambda: mc.distributed.zigzag([0, 9, 5], 2),
    "scattered tokens": lambda: mc.distributed.attention(
        tokens(160, 4),
        tokens(160),
        tokens(160),
        SCATTERED,
        dropout_p=0.5,
        dropout_seed=0,
        score=mc.score(lambda s, q: s + q),
    ),
    "whole": lambda: plan(mc.causal(), 64, 1, heads=HEADS).shard(torch.zeros(1, 65)),
    "shard": lambda: attend(63),
    "group": lambda: plan(mc.causal(), 64, 2, heads=HEADS).shard(torch.zeros(1, 64)),
    "balancer": lambda: mc.distributed.load_balancer(plan(mc.causal(), 63, 2, heads=HEADS)),
    "network": lambda: plan(mc.causal(), 64, 2, heads=HEADS, network="pigeons"),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, message):
    with pytest.raises(MaskcError) as caught:
        CASES[name]()
    message("scale", name, str(caught.value))


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
