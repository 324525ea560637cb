"""Cases for ranks on cards that need more than a mask: dropout, score formulas, data of a step.

The rows of a case run on two streams; lengths are such that kernels of both run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import maskc as mc
from maskc.core.attention_call import CallOptions
from maskc.distributed import passes, plan
from maskc.distributed.exchange import ExchangedRows
from maskc.distributed.groups import Accord, Ranks

BOUNDS = {torch.bfloat16: 1e-2, torch.float32: 1e-5}
"""Bound on a result's distance from one process, relative to its norm."""
TABLES = {torch.bfloat16: 3e-2, torch.float32: 1e-4}
"""Bound on gradients of tables, whose terms cancel."""


@dataclass(frozen=True)
class Shared:
    name: str
    mask: mc.Mask
    n: int
    layout: str = "contiguous"
    heads: tuple[int, int, int] = (4, 2, 64)
    dtype: torch.dtype = torch.bfloat16
    options: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of what the formula learns; () is a parameter."""
    deterministic: bool = False

    def plan(self, size: int, **data: Any) -> Any:
        return plan(
            self.mask, self.n, size, heads=self.heads, layout=self.layout, block=128,
            dtype=str(self.dtype).split(".")[1], data=data or self.data, move_rows=True,
        )  # fmt: skip

    def drawn(self, device: torch.device) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """q, k, v and dout of the whole sequence; tables and parameters."""
        draw = torch.Generator().manual_seed(self.n)
        hq, hkv, dim = self.heads

        def made(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draw)

        whole = [made(1, self.n, heads, dim) for heads in (hq, hkv, hkv, hq)]
        tables = {name: 0.5 * made(*shape).to(device) for name, shape in self.tables.items()}
        return [x.to(device, self.dtype).transpose(1, 2) for x in whole], tables


def _relative() -> Any:
    return mc.score(
        lambda s, q, k, h: s + mc.table("near")[h, mc.scores.minimum(abs(q - k), 31)]
        + mc.param("slope", 1.5) * mc.table("key")[k]
    )  # fmt: skip


RELATIVE = _relative()
DISTANCE = mc.score(lambda s, q, k, h: s - 0.001 * (h + 1) * (q - k))
CAPPED = mc.score(lambda s, q, k: mc.param("cap", 4.0) * mc.scores.tanh(s / mc.param("cap", 4.0)))
DROPS = {"dropout_p": 0.25, "dropout_seed": 3}
_SINKS = mc.causal() & (mc.window(700) | mc.sinks(16))


def _documents(n: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).integers(0, 9, n))


CASES = (
    Shared("dropout, window", mc.causal() & mc.window(900), 8192, options=DROPS),
    Shared("dropout, sinks, same bits", _SINKS, 6144, "zigzag", options=DROPS, deterministic=True),
    Shared("dropout, documents", mc.causal() & mc.documents("doc"), 6144, "balanced", options=DROPS,
           data={"doc": _documents(6144, 1)}),
    Shared("dropout, entmax", mc.window(200, 50), 4096,
           options={**DROPS, "normalizer": "entmax"}),
    Shared("tables, window, same bits", mc.causal() & mc.window(900), 4096, deterministic=True,
           options={"score": RELATIVE}, tables={"near": (4, 32), "key": (4096,), "slope": ()}),
    Shared("tables, sinks", _SINKS, 6144, "zigzag", options={"score": RELATIVE},
           tables={"near": (4, 32), "key": (6144,), "slope": ()}),
    Shared("tables and dropout", _SINKS, 4096, "zigzag", options={"score": RELATIVE, **DROPS},
           tables={"near": (4, 32), "key": (4096,), "slope": ()}),
    Shared("distance, causal", mc.causal(), 8192, "zigzag", options={"score": DISTANCE}),
    Shared("a cap that is learnt", mc.causal(), 4096, "zigzag", options={"score": CAPPED},
           tables={"cap": ()}),
    Shared("distance, fp32", mc.causal() & mc.window(300), 1536, dtype=torch.float32,
           options={"score": DISTANCE, **DROPS}),
    Shared("documents of a step", mc.causal() & mc.documents("doc"), 12288, "balanced",
           data={"doc": _documents(12288, 1)}),
    Shared("a window of a step", mc.causal() & (mc.window(mc.param("w", 9)) | mc.sinks(5)), 12288,
           "zigzag", data={"w": 900}),
    Shared("rows that see all keys", mc.window(256, 256) | mc.global_tokens(64), 8192),
    Shared("rows that see all keys, dropout, same bits", mc.window(256, 256) | mc.global_tokens(64),
           8192, options=DROPS, deterministic=True),
    Shared("rows that see all keys, tables", mc.window(256, 256) | mc.global_tokens(64), 4096,
           options={"score": RELATIVE}, tables={"near": (4, 32), "key": (4096,), "slope": ()}),
)  # fmt: skip


# ------------------------------------------------------------------ building


def jobs(case: Shared, rank: int, size: int, device: torch.device) -> list[Callable[[], None]]:
    """Calls that build all kernels of a case; they need no other rank."""
    made = case.plan(size)
    given = dict(case.options)
    score, drops = given.pop("score", None), "dropout_p" in given
    options = CallOptions(**given, deterministic=case.deterministic)
    dropout = {}
    if drops:
        from maskc.runtime.dropout import asked

        dropout = asked(None, options.dropout_p, options.dropout_seed)
        options = options.undropped()
    work = made.work(rank, None, drops or score is not None)
    _, tables = case.drawn(device)
    accord = Accord(made, Ranks(None, rank, size, ()), device)
    step = passes.PassStep(made, work, accord, options, dropout,
                       made.once(("kernels",), dict), score, tables, tuple(tables))  # fmt: skip
    hq, hkv, dim = case.heads

    def zeros(heads: int, tokens: int) -> torch.Tensor:
        x = torch.zeros(1, tokens, heads, dim, device=device, dtype=case.dtype)
        return x.transpose(1, 2)

    def one(call: Any, rows: int) -> None:
        torch.cuda.set_device(device)
        q, of_own = zeros(hq, rows), zeros(hkv, work.tokens)
        of_buffer = ExchangedRows(1, hkv, dim, dim).keys(
            torch.zeros(work.size, 2 * hkv * dim, device=device, dtype=case.dtype)
        )
        k = of_own if call.own_keys else of_buffer
        forward = passes.Forward(step, q, k, k, None, None)
        results = passes.RankOutput(q, q, 2)
        forward.launch(call, q, k, k, results)
        saved = passes.Saved(q, q, results.all[1].zero_(), q, None)
        backward = passes.Backward(step, k, k, saved, None, list(tables))
        backward.launch(call, k, k, saved, backward.dq, passes.KeyGradients(k.shape[2]))
        torch.cuda.synchronize(device)

    def whole() -> None:
        torch.cuda.set_device(device)
        alone(case, device)
        torch.cuda.synchronize(device)

    calls = [(call, work.tokens) for call in work.calls]
    calls += [(call, guest.rows) for guest in work.guests for call in guest.calls]
    return [whole, *(lambda call=call, rows=rows: one(call, rows) for call, rows in calls)]


def built(cases: Iterable[Shared], rank: int, size: int, device: torch.device) -> list[str]:
    """Build what cases need, in threads; what failed, as text."""

    def tried(job: Callable[[], None]) -> str:
        try:
            job()
        except Exception as why:
            return f"{type(why).__name__}: {why}"
        return ""

    with ThreadPoolExecutor(16) as pool:
        found = pool.map(tried, [job for x in cases for job in jobs(x, rank, size, device)])
        return [x for x in found if x]


# ------------------------------------------------------------------ results


def _leaves(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


def alone(case: Shared, device: torch.device, **data: Any) -> list[torch.Tensor]:
    """out, lse, dq, dk, dv and gradients of tables of one process."""
    (*given, dout), tables = case.drawn(device)
    leaves, learnt = _leaves(given), dict(zip(tables, _leaves(list(tables.values())), strict=True))
    out, lse = mc.attention(
        *leaves, case.mask, return_lse=True, deterministic=case.deterministic, **case.options,
        **(data or case.data), **learnt,
    )  # fmt: skip
    out.backward(dout)
    return [out.detach(), lse.detach(), *(x.grad for x in (*leaves, *learnt.values()))]


def shared(case: Shared, made: Any, device: torch.device, group: Any = None) -> list[torch.Tensor]:
    """Results of this rank; gradients of tables are those of all ranks."""
    whole, tables = case.drawn(device)
    *given, dout = (made.shard(x, 2, group) for x in whole)
    leaves, learnt = _leaves(given), dict(zip(tables, _leaves(list(tables.values())), strict=True))
    out, lse = mc.distributed.attention(
        *leaves, made, group=group, return_lse=True, deterministic=case.deterministic,
        **case.options, **learnt,
    )  # fmt: skip
    out.backward(dout)
    sums = [x.grad for x in learnt.values()]
    for x in sums:
        dist.all_reduce(x, group=group)
    return [out.detach(), lse.detach(), *(x.grad for x in leaves), *sums]


def distances(
    case: Shared, found: list[torch.Tensor], wanted: list[torch.Tensor], made: Any
) -> tuple[dict[str, float], list[str]]:
    """(distance of each result from one process's shard, what is too far)."""
    names = ["out", "lse", "dq", "dk", "dv", *case.tables]
    told, wrong = {}, []
    for number, (name, one, other) in enumerate(zip(names, wanted, found, strict=True)):
        one = made.shard(one, 2) if number < 5 else one
        norm = one.double().norm().clamp(min=1e-20)
        off = ((one.double() - other.double()).norm() / norm).item()
        told[name] = off
        if not off <= (BOUNDS if number < 5 else TABLES)[case.dtype]:
            wrong.append(f"{case.name}: {name} is off by {off:.1e}")
    return told, wrong


def compared(case: Shared, size: int, device: torch.device) -> tuple[dict[str, float], list[str]]:
    """Compare a case with one process, and with its own bits where it says so."""
    made = case.plan(size)
    found, wanted = shared(case, made, device), alone(case, device)
    told, wrong = distances(case, found, wanted, made)
    if case.deterministic:
        for _ in range(3):
            again = shared(case, made, device)
            if not all(map(torch.equal, found, again)):
                wrong.append(f"{case.name}: other bits")
    for step in range(1, 6) if case.data else ():  # data change under what is still running
        data = changed(case, step)
        now = made.given(**data)
        found = shared(case, now, device)
        _, more = distances(case, found, alone(case, device, **data), now)
        wrong += [f"step {step}, {x}" for x in more]
    return told, wrong


def changed(case: Shared, step: int) -> dict[str, Any]:
    """Other data of a case."""
    own = dict(case.data)
    if "doc" in own:
        own["doc"] = _documents(case.n, step)
    if "w" in own:
        own["w"] = own["w"] + 37 * step
    return own


def everything(rank: int, size: int) -> tuple[dict[str, Any], list[str]]:
    """Distances of every case, and all that is wrong, as text."""
    device = torch.device("cuda", rank)
    wrong = built(CASES, rank, size, device)
    told: dict[str, Any] = {}
    for case in CASES:
        told[case.name], more = compared(case, size, device)
        wrong += more
    return told, wrong
