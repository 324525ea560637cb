"""Attention on several ranks beside attention in one process: twelve masks, both passes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import maskc as mc
from maskc.distributed import plan

BOUND = 1e-5


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


def _ids(n: int, mixed: bool = False) -> np.ndarray:
    rng = np.random.default_rng(n)
    ids = rng.integers(0, 5, n)
    return ids if mixed else np.sort(ids)


CASES = (
    Case("causal", mc.causal(), 257, "zigzag"),
    Case("full", mc.full(), 130),
    Case("window", mc.causal() & mc.window(37), 401, batch=2),
    Case("sinks and a window", mc.causal() & (mc.window(30) | mc.sinks(5)), 333, "contiguous"),
    Case("chunked", mc.chunked(48), 400, "contiguous"),
    Case("documents", mc.causal() & mc.documents("doc"), 300, "contiguous", data={"doc": _ids(300)}),
    Case("mixed documents", mc.documents("doc"), 200, data={"doc": _ids(200, True)}),
    Case("dilated", mc.dilated(7, stride=4), 310, "contiguous"),
    Case("strided", mc.causal() & (mc.window(15) | mc.strided(16, 15)), 280, "contiguous"),
    Case("Longformer", mc.window(16, 16) | mc.global_tokens([3, 70]), 350, "contiguous"),
    Case("BigBird", mc.random_blocks(16, 2, 1) | mc.window(16, 16) | mc.sinks(16), 384,
         "contiguous"),
    Case("prefix", mc.causal() | mc.prefix(40), 222, "zigzag"),
    Case("NATTEN", mc.where(lambda q, k: abs(k - min(max(q, 8), mc.n_q - 9)) <= 8), 360,
         "contiguous"),
    Case("a mask a head", mc.per_head([mc.causal() & mc.window(8), mc.full()]), 190,
         "contiguous", heads=(2, 1, 32)),
    Case("sink logits and a cap", mc.causal() & mc.window(20), 300, "contiguous",
         options={"softcap": 5.0, "sink_logits": True}),
    Case("Dv beside D", mc.causal() & mc.window(50), 260, "contiguous", heads=(2, 2, 32, 16)),
    Case("entmax", mc.causal() & mc.window(20), 200, "contiguous",
         options={"normalizer": "entmax"}),
    Case("chosen blocks", mc.topk(2, mc.chunked(64), "block_mean", block=16, q_block=16), 256,
         "contiguous"),
    Case("ALiBi", mc.causal() & mc.window(40), 256, "contiguous", options={"alibi_slopes": True}),
)  # fmt: skip
SIZES = (1, 2, 3)


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


def shared(case: Case, size: int, group: Any) -> list[torch.Tensor]:
    """The same of `size` ranks, put together."""
    made = plan(
        case.mask, case.n, size, heads=case.heads, dtype="float32", layout=case.layout,
        batch=case.batch, data=case.data,
    )  # fmt: skip
    given, heads, dout = tensors(case)
    own = [made.shard(x, 2, group).clone().requires_grad_() for x in given]
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


def all_cases(rank: int, size: int) -> list[str]:
    """Every case on every number of ranks; what is wrong, as text."""
    groups = {p: dist.new_group(list(range(p))) for p in SIZES}
    wrong = []
    for number, case in enumerate(CASES):
        wanted = alone(case)
        for p in SIZES:
            if rank >= p:
                continue
            began = time.process_time()
            found = shared(case, p, None if p == 1 else groups[p])
            for name, one, other in zip(NAMES, wanted, found, strict=False):
                dead = torch.isinf(one)
                same = torch.equal(dead, torch.isinf(other))
                size_of = one[~dead].abs().max().clamp(min=1) if (~dead).any() else 1
                error = ((one - other)[~dead].abs().max() / size_of).item() if same else 1.0
                if not error <= BOUND:
                    wrong.append(f"{case.name} on {p}, rank {rank}: {name} is off by {error:.1e}")
            if __debug__ and rank == 0 and __name__ == "__main__":
                print(number, case.name, p, round(time.process_time() - began, 2), flush=True)
    return wrong


NAMES = ("out", "lse", "dq", "dk", "dv", "first of heads", "second of heads")
