"""Attention on several ranks compared with attention in one process: twelve masks, both passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import maskc as mc
from maskc.distributed import plan
from tests.support.thorough import THOROUGH

BOUND = 1e-5
SIZES = (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Case:
    name: str
    mask: mc.Mask
    n: int
    layout: str = "auto"
    heads: tuple[int, ...] = (4, 2, 32)
    data: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    swapped: bool = False


def _ids(n: int, mixed: bool = False) -> np.ndarray:
    rng = np.random.default_rng(n)
    ids = rng.integers(0, 5, n)
    return ids if mixed else np.sort(ids)


CASES = (
    Case("causal", mc.causal(), 257, "zigzag", swapped=True),
    Case("full", mc.full(), 130),
    Case("window", mc.causal() & mc.window(37), 401),
    Case("sinks and a window", mc.causal() & (mc.window(30) | mc.sinks(5)), 333, "contiguous",
         swapped=True),
    Case("chunked", mc.chunked(48), 400, "contiguous", swapped=True),
    Case("documents", mc.causal() & mc.documents("doc"), 300, "contiguous",
         data={"doc": _ids(300)}),
    Case("dilated", mc.dilated(7, stride=4), 310, "contiguous"),
    Case("strided", mc.causal() & (mc.window(15) | mc.strided(16, 15)), 280, "contiguous"),
    Case("Longformer", mc.window(16, 16) | mc.global_tokens([3, 70]), 350, "contiguous"),
    Case("BigBird", mc.random_blocks(16, 2, 1) | mc.window(16, 16) | mc.global_tokens(16), 384,
         "contiguous"),
    Case("prefix", mc.causal() | mc.prefix(40), 222, "zigzag"),
    Case("NATTEN", mc.where(lambda q, k: abs(k - min(max(q, 8), mc.n_q - 9)) <= 8), 360,
         "contiguous"),
)  # fmt: skip
"""Twelve masks, for every number of ranks."""


TRIED = (8, 3, 4, 2, 3, 1, 2, 3, 4, 2, 3, 4)
"""On how many ranks each of them runs in CI."""


def sizes(number: int) -> tuple[int, ...]:
    """On how many ranks a case runs, by its place.

    Each number has masks of different kinds; a thorough run (`make matrix`) takes all numbers for
    all masks. What travels for any mask and any number of
    ranks is drawn in property/test_distributed_masks.py.
    """
    return SIZES if THOROUGH else (TRIED[number],)


MORE = (
    Case("two sequences", mc.window(12, 9), 401, batch=2),
    Case("mixed documents", mc.documents("doc"), 200, data={"doc": _ids(200, True)}),
    Case("a mask a head", mc.per_head([mc.causal() & mc.window(8), mc.full()]), 190,
         "contiguous", heads=(2, 1, 32)),
    Case("sink logits and a cap", mc.causal() & mc.window(20), 300, "striped",
         options={"softcap": 5.0, "sink_logits": True}),
    Case("Dv beside D", mc.causal() & mc.window(50), 260, "contiguous", heads=(2, 2, 32, 16)),
    Case("entmax", mc.causal() & mc.window(20), 200, "contiguous",
         options={"normalizer": "entmax"}),
    Case("chosen blocks", mc.topk(2, mc.chunked(64), "block_mean", block=16, q_block=16), 256,
         "contiguous"),
    Case("sinks and a window of a step", mc.causal() & (mc.window(mc.param("w", 9)) | mc.sinks(5)),
         333, "contiguous", data={"w": 30}),
    Case("ALiBi", mc.causal() & mc.window(40), 256, "contiguous", options={"alibi_slopes": True}),
    Case("a score formula", mc.causal() & (mc.window(30) | mc.sinks(5)), 333, "zigzag",
         options={"score": mc.score(lambda s, q, k, h: s + 0.01 * (h + 1) * (q - 2 * k))}),
    Case("dropout", mc.causal() & (mc.window(30) | mc.sinks(5)), 500, "zigzag", batch=2,
         options={"dropout_p": 0.3, "dropout_seed": 7}),
    Case("dropout in documents", mc.causal() & mc.documents("doc"), 400, "balanced",
         data={"doc": _ids(400)}, options={"dropout_p": 0.5, "dropout_seed": -1}),
    Case("global rows and sink logits", mc.window(20, 20) | mc.global_tokens([3, 170]), 400,
         "contiguous", options={"sink_logits": True, "softcap": 9.0}, batch=2, swapped=True),
    Case("global rows in two chunks", mc.window(20, 20) | mc.global_tokens([3, 90, 399]), 400,
         "zigzag", options={"dropout_p": 0.2, "dropout_seed": 5}),
    Case("global rows in documents",
         (mc.window(9, 20) | mc.global_tokens([9])) & mc.documents("doc"), 400, "striped",
         data={"doc": np.arange(400) // 300}),
    Case("global rows and entmax", mc.window(20, 9) | mc.global_tokens([3]), 200, "contiguous",
         options={"normalizer": "entmax"}),
    Case("global rows and a formula", mc.window(20, 20) | mc.global_tokens([3, 300]), 400,
         "balanced",
         options={"score": mc.score(lambda s, q, k, h: s + 0.01 * (h + 1) * (q - 2 * k))}),
    Case("dropout and entmax", mc.window(40, 9), 400, "contiguous",
         options={"dropout_p": 0.1, "dropout_seed": 1 << 63, "normalizer": "entmax"}),
)  # fmt: skip
"""Further options of calls."""


def tensors(case: Case) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    """q, k, v; what is given per head; and the gradient of out."""
    draw = torch.Generator().manual_seed(case.n)
    hq, hkv, dim, *rest = case.heads
    dim_v = rest[0] if rest else dim

    def made(heads: int, size: int) -> torch.Tensor:
        return torch.randn(case.batch, heads, case.n, size, generator=draw)

    given = [made(hq, dim), made(hkv, dim), made(hkv, dim_v)]
    heads = {
        name: torch.rand(hq, generator=draw)
        for name in ("sink_logits", "alibi_slopes") if name in case.options
    }  # fmt: skip
    return given, heads, made(hq, dim_v)


def alone(case: Case) -> list[torch.Tensor]:
    """out, lse and all gradients of one process."""
    given, heads, dout = tensors(case)
    leaves = [x.requires_grad_() for x in (*given, *heads.values())]
    options = {**case.options, **heads, **case.data}
    out, lse = mc.attention(*given, case.mask, return_lse=True, **options)
    out.backward(dout)
    return [out.detach(), lse.detach(), *(x.grad for x in leaves)]


def shared(case: Case, size: int, group: Any, made: Any) -> list[torch.Tensor]:
    """Results of `size` ranks, put together."""
    given, heads, dout = tensors(case)
    own = [made.shard(x, 2, group).clone() for x in given]
    if case.swapped:  # [B, N, H, D] in memory, as models have it
        own = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in own]
    own = [x.requires_grad_() for x in own]
    of_heads = {name: x.requires_grad_() for name, x in heads.items()}
    options = {**case.options, **of_heads}
    out, lse = mc.distributed.attention(*own, made, group=group, return_lse=True, **options)
    out.backward(made.shard(dout, 2, group))
    parts = [out.detach(), lse.detach(), *(x.grad for x in own)]
    whole = [made.unshard(x, 2, group) for x in parts]
    for x in of_heads.values():
        if group is not None:
            dist.all_reduce(x.grad, group=group)
        whole.append(x.grad)
    return whole


def planned(case: Case, size: int) -> Any:
    return plan(
        case.mask, case.n, size, heads=case.heads, dtype="float32", layout=case.layout,
        batch=case.batch, data=case.data, move_rows=True,
    )  # fmt: skip


def all_cases(rank: int, size: int) -> list[str]:
    """Every case on its numbers of ranks; what is wrong, as text.

    Rank 0 makes the plans, as pickles of it must do for the others, and compares.
    """
    groups = {p: dist.new_group(list(range(p))) for p in SIZES}
    wrong: list[str] = []
    jobs = [(case, p) for number, case in enumerate(CASES) for p in sizes(number)]
    plans = [[planned(*job) for job in jobs] if rank == 0 else None]
    dist.broadcast_object_list(plans)
    expected: dict[str, list[torch.Tensor]] = {}
    for (case, p), made in zip(jobs, plans[0], strict=True):
        if rank >= p:
            continue
        found = shared(case, p, None if p == 1 else groups[p], made)
        if rank == 0:
            wanted = expected.setdefault(case.name, []) or alone(case)
            expected[case.name] = wanted
            wrong += compared(f"{case.name} on {p}", wanted, found)
    return wrong


def compared(what: str, wanted: list[torch.Tensor], found: list[torch.Tensor]) -> list[str]:
    wrong = []
    for name, one, other in zip(NAMES, wanted, found, strict=False):
        dead = torch.isinf(one)
        same = torch.equal(dead, torch.isinf(other))
        size_of = one[~dead].abs().max().clamp(min=1) if (~dead).any() else 1
        error = ((one - other)[~dead].abs().max() / size_of).item() if same else 1.0
        if not error <= BOUND:
            wrong.append(f"{what}: {name} is off by {error:.1e}")
    return wrong


NAMES = ("out", "lse", "dq", "dk", "dv", "first of heads", "second of heads")
