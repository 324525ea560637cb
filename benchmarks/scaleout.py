"""One sequence on several GPUs: maskc's plan beside all-gather, a ring, Ulysses and torch's own.

    python -m benchmarks.scaleout --out results.json            (all GPUs of this host)
    torchrun --nproc-per-node 2 -m benchmarks.scaleout
    python -m benchmarks.scaleout --device cpu --ranks 2 --tokens 256 --turns 1   (a dry run)
    python -m benchmarks.scaleout --soak 2000                    (random steps, checked; no times)

First every way runs once for every mask and length, and its results are compared with attention
over the whole sequence on one GPU; kernels are built meanwhile. Then the ways take turns. Before
each turn all ranks meet, on the GPU too, and a short sleep there lets the host run ahead, so that
times are those of the GPU. A time is the median over turns of the slowest rank's. What is done is
written at once; when --seconds are over, no further row begins.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prepare import use_caches

use_caches()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import maskc as mc  # noqa: E402
from benchmarks.runs import save as replace_file  # noqa: E402
from benchmarks.sharing import METHODS, SLOW, Case, Method, Piece, Run, kernel, one_tensor  # noqa: E402
from maskc.distributed import exchange, passes  # noqa: E402
from maskc.dsl.nodes import structure  # noqa: E402
from maskc.lab.rivals import Unavailable  # noqa: E402
from maskc.runtime.launch import ahead  # noqa: E402

MASKS: dict[str, Callable[[int], mc.Mask]] = {
    "window 1024": lambda n: mc.causal() & mc.window(1023),
    "window 4096": lambda n: mc.causal() & mc.window(4095),
    "causal": lambda n: mc.causal(),
    "sinks 64 + window 4096": lambda n: mc.causal() & (mc.window(4095) | mc.sinks(64)),
    "chunked 8192": lambda n: mc.chunked(8192),
    "documents": lambda n: mc.causal() & mc.documents("doc"),
    "Longformer 256 + 64": lambda n: mc.window(256, 256) | mc.global_tokens(64),
    "strided 128": lambda n: mc.causal() & (mc.window(127) | mc.strided(128, 127)),
    "dilated 512 / 4": lambda n: mc.causal() & mc.dilated(511, stride=4),
    "BigBird 64": lambda n: mc.random_blocks(64, 3, 0) | mc.window(64, 64) | mc.global_tokens(64),
}
HELD_BACK = ("window 1024", "window 4096", "sinks 64 + window 4096")
"""Masks on which it is measured how long kernels should wait for messages to begin."""
_WARM = 2
"""Turns that do not count."""
_LONGEST = 32 * 1024
"""Tokens of a call that builds a kernel ahead; longer sequences have the same one."""


def documents(n: int, seed: int = 0) -> np.ndarray:
    """Draw ids, int64 [n], of packed documents of about n / 8 tokens, at least 512 on average."""
    draw = np.random.default_rng(seed)
    ids, at, number = np.empty(n, np.int64), 0, 0
    while at < n:
        size = int(draw.integers(1, max(1024, n // 4)))
        ids[at : at + size], at, number = number, at + size, number + 1
    return ids


@dataclass
class Bench:
    """This rank, and what it measures with."""

    rank: int
    size: int
    device: torch.device
    dtype: torch.dtype
    heads: tuple[int, int, int]
    turns: int
    ends: float
    """When no further row begins, of time.monotonic()."""
    row_seconds: float
    """After so long a row takes no more turns."""

    @property
    def cuda(self) -> bool:
        """Whether ranks have GPUs."""
        return self.device.type == "cuda"

    def sync(self) -> None:
        """Wait for what was enqueued."""
        if self.cuda:
            torch.cuda.synchronize()

    def late(self, ends: float | None = None) -> bool:
        """Whether the time is over, as rank 0 sees it."""
        over = time.monotonic() > (self.ends if ends is None else ends)
        told = torch.tensor([over], device=self.device)
        dist.broadcast(told, 0)
        return bool(told.item())

    def draw(self, heads: int, n: int, seed: int) -> torch.Tensor:
        """[1, heads, n, D], the same on every rank, stored as [1, n, heads, D]."""
        made = torch.Generator(self.device).manual_seed(seed)
        shape = 1, n, heads, self.heads[2]
        x = torch.randn(shape, generator=made, device=self.device, dtype=self.dtype)
        return x.transpose(1, 2)

    def tensors(self, n: int, seed: int = 0) -> list[torch.Tensor]:
        """Draw q, k, v and dout of the whole sequence, [1, H, n, D]."""
        hq, hkv, _ = self.heads
        draws = (hq, 1), (hkv, 2), (hkv, 3), (hq, 4)
        return [self.draw(heads, n, 4 * seed + number) for heads, number in draws]

    def time(self, run: Callable[[], Any]) -> float:
        """Milliseconds of this rank, all having met before."""
        self.sync()
        dist.barrier()
        if not self.cuda:
            began = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - began)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(8_000_000)
        dist.all_reduce(torch.zeros(1, device=self.device))  # the GPUs meet
        start.record()
        run()
        end.record()
        self.sync()
        return float(start.elapsed_time(end))

    def slowest(self, values: list[float]) -> list[float]:
        """The slowest rank of each turn."""
        x = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(x, dist.ReduceOp.MAX)
        return x.tolist()

    def case(self, name: str, tokens: int) -> Case:
        """A mask at so many tokens a rank."""
        n = tokens * self.size
        data = {"doc": documents(n)} if name == "documents" else {}
        return Case(name, tokens, MASKS[name](n), data, self.heads, self.dtype, self.rank,
                    self.size, self.device)  # fmt: skip


# ------------------------------------------------------------------ building ahead


class Builder:
    """Kernels are built in threads, each by a call of its own on this rank's GPU."""

    def __init__(self, bench: Bench, workers: int) -> None:
        self._bench = bench
        self._pool = ThreadPoolExecutor(workers)
        self._known: dict[object, Future[None]] = {}

    def add(self, pieces: Iterable[Piece]) -> None:
        """Build what these need, unless that has begun."""
        for each in pieces:
            sizes = each.rows, each.keys
            if each.rows == each.keys > _LONGEST and not each.local.data:
                each = replace(each, rows=_LONGEST, keys=_LONGEST)
            key = structure(each.local.mask), sizes
            if each.rows and each.keys and key not in self._known:
                self._known[key] = self._pool.submit(self._build, each)

    def _build(self, piece: Piece) -> None:
        bench = self._bench
        if bench.cuda:
            torch.cuda.set_device(bench.device)
        hq, hkv, dim = bench.heads
        shapes = (hq, piece.rows), (hkv, piece.keys), (hkv, piece.keys)
        q, k, v = (
            torch.zeros((1, n, heads, dim), device=bench.device, dtype=bench.dtype).transpose(1, 2)
            for heads, n in shapes
        )
        attn, data = kernel(piece, q, v), piece.local.data
        out, lse = attn.launch(q, k, v, return_lse=True, data=data)
        attn.backward(q, k, v, out, lse, out, **data)
        bench.sync()

    def finish(self, seconds: float) -> str:
        """Wait for all of them; says how many there were, and how many failed."""
        done, left = wait(self._known.values(), timeout=max(0.0, seconds))
        failed = [x.exception() for x in done if x.exception() is not None]
        self._pool.shutdown(wait=False, cancel_futures=True)
        return f"{len(done)} calls built ahead, {len(left)} not, {len(failed)} failed {failed[:1]}"


# ------------------------------------------------------------------ results compared


def checked(bench: Bench, case: Case, names: Iterable[str], row: dict[str, Any]) -> None:
    """Run each way once, and compare with one GPU; a way that cannot run says why."""
    runs = {}
    for name in names:
        try:
            runs[name] = case.method(name)
        except Unavailable as why:
            row["missing"][name] = str(why)
        except Exception as why:  # another's own failure is a finding, on all ranks alike
            row["missing"][name] = f"{type(why).__name__}: {why}"[:300]
    if not runs:
        return
    *given, dout = bench.tensors(case.n)
    leaves = [x.detach().requires_grad_() for x in given]
    want = mc.attention(*leaves, case.mask, **case.data)
    want.backward(dout)
    wanted = [want.detach(), *(x.grad for x in leaves)]
    for name, method in runs.items():
        try:
            parts, of_out = shards(method, (*given, dout))
            out = method.run(*parts)
            out.backward(of_out)
            found = [out.detach(), *(x.grad for x in parts)]
            pairs = zip(found, wanted, strict=True)
            row["errors"][name] = bench.slowest([error(a, method.own(b)) for a, b in pairs])
        except Exception as why:
            row["missing"][name] = f"{type(why).__name__}: {why}"[:300]
    if bench.cuda:
        torch.cuda.empty_cache()


def shards(
    method: Method, whole: Iterable[torch.Tensor]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """A rank's q, k and v, which have gradients, and dout: copies that lie as [1, n, heads, D]."""
    own = (method.own(x.detach()).transpose(1, 2) for x in whole)
    *given, dout = (x.clone(memory_format=torch.contiguous_format).transpose(1, 2) for x in own)
    return [x.requires_grad_() for x in given], dout


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative error of a tensor of any shape, by the norm of the difference."""
    if not wanted.numel():
        return 0.0
    wanted = wanted.float()
    return ((found.float() - wanted).norm() / wanted.norm().clamp(min=1e-20)).item()


# ------------------------------------------------------------------ one row of the table


def start_row(bench: Bench, case: Case) -> dict[str, Any]:
    """What a row says before anything runs."""
    plan = case.plan
    return {
        "mask": case.name, "tokens": case.tokens, "ranks": bench.size, "heads": [*bench.heads],
        "layout": plan.layout.name, "moved": [[x.start, x.stop] for x in plan.layer().visits],
        "imbalance": plan.imbalance(),
        "received_MiB": max(plan.received_bytes(r) for r in range(bench.size)) / 2**20,
        "sent_MiB": max(plan.sent_bytes(r) for r in range(bench.size)) / 2**20,
        "predicted_ms": [x.total for x in plan.times()], "predicted_other_ms": plan.others(),
        "errors": {}, "missing": {}, "memory": {}, "times_ms": {},
    }  # fmt: skip


def timed(bench: Bench, case: Case, row: dict[str, Any]) -> None:
    """One GPU, then all ways by turns."""
    *given, dout = bench.tensors(case.n)
    whole = partial(mc.attention, mask=case.mask, **case.data)
    leaves = [x.requires_grad_() for x in given]
    alone = turns(bench, {"": whole}, {"": (leaves, dout)}, bench.row_seconds / 4)
    row["one_gpu"] = medians(alone[""])
    inputs: dict[str, tuple[list[torch.Tensor], torch.Tensor]] = {}
    runs: dict[str, Run] = {}
    for name in row["errors"]:
        method = case.method(name)
        runs[name], inputs[name] = method.run, shards(method, (*given, dout))
    del given, leaves, dout
    row["memory"] = {key: memory(bench, run, *inputs[key]) for key, run in runs.items()}
    found = turns(bench, runs, inputs, bench.row_seconds)
    row["times_ms"] = {name: medians(times) for name, times in found.items()}
    row["turns"] = len(next(iter(found.values()))[0]) if found else 0


def memory(bench: Bench, run: Any, given: list[torch.Tensor], dout: torch.Tensor) -> dict[str, Any]:
    """Measure MiB above what is given: kept between the passes besides out, and the most at any
    time.

    Args:
        given: q, k, v [1, H, N, D]; dout: [1, Hq, N, D].
    """
    if not bench.cuda:
        return {}
    for x in given:
        x.grad = None
    bench.sync()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run(*given)
    bench.sync()
    kept = torch.cuda.memory_allocated() - before - out.numel() * out.element_size()
    out.backward(dout)
    bench.sync()
    most = torch.cuda.max_memory_allocated() - before
    found = bench.slowest([float(kept), float(most)])
    return {"kept_MiB": found[0] / 2**20, "peak_MiB": found[1] / 2**20}


def turns(
    bench: Bench, runs: dict[str, Run], inputs: dict[str, Any], seconds: float
) -> dict[str, list[list[float]]]:
    """[forward, backward] of each method, taking turns for so long; the slowest rank's.

    Args:
        inputs: what `shards` made for each.
    """
    found: dict[str, list[list[float]]] = {name: [[], []] for name in runs}
    began = time.monotonic()
    for number in range(bench.turns + _WARM):
        for name, run in runs.items():
            given, dout = inputs[name]
            for x in given:
                x.grad = None
            kept: list[torch.Tensor] = []
            found[name][0].append(bench.time(lambda: kept.append(run(*given))))  # noqa: B023
            found[name][1].append(bench.time(lambda: kept[0].backward(dout)))  # noqa: B023
        if number >= _WARM and bench.late(began + seconds):
            break
    return {name: [bench.slowest(x[_WARM:]) for x in both] for name, both in found.items()}


def medians(times: list[list[float]]) -> list[float]:
    """Median milliseconds over all turns, forward and backward."""
    return [statistics.median(x) for x in times]


def show(row: dict[str, Any]) -> None:
    """A few lines about a row."""
    times = row["times_ms"]
    print(f"\n{row['mask']}, {row['tokens']} tokens a rank, {row['layout']}, heads {row['heads']}, "
          f"imbalance {row['imbalance']:.3f}, {row['received_MiB']:.1f} MiB come, "
          f"{row.get('turns', 0)} turns")  # fmt: skip
    for name, (forward, backward) in times.items():
        beside = ""
        if name == "planned":
            predicted = row["predicted_ms"]
            share = [a / (row["ranks"] * b) for a, b in
                     zip(row["one_gpu"], (forward, backward), strict=True)]  # fmt: skip
            beside = (f"  predicted {predicted[0]:.3f} {predicted[1]:.3f}; efficiency "
                      f"{share[0]:.2f} {share[1]:.2f}")  # fmt: skip
        elif "planned" in times:
            own = times["planned"]
            beside = f"  planned is {forward / own[0]:.2f}x {backward / own[1]:.2f}x as fast"
        errors = " ".join(f"{x:.1e}" for x in row["errors"][name])
        kept = row["memory"][name]
        space = f"  kept {kept['kept_MiB']:.0f} MiB" if kept else ""
        print(f"  {name:15} {forward:8.3f} {backward:8.3f} ms{beside}{space}  errors {errors}")
    for name, why in row["missing"].items():
        print(f"  {name:15} {why}")
    sys.stdout.flush()


# ------------------------------------------------------------------ the network


def network(bench: Bench) -> dict[str, list[float]]:
    """Milliseconds of the slowest rank by megabytes: what predictions reckon with."""
    found = {}
    sizes = (0.25, 1, 4, 16, 64, 256) if bench.cuda else (0.25,)
    for name, make in (("neighbour", _neighbour), ("from rank 0", _from_first),
                       ("all-gather", _all_gather), ("all-to-all", _all_to_all)):  # fmt: skip
        for size in sizes:
            run = make(bench, int(size * 2**20) // 2 // bench.size * bench.size)
            times = [bench.time(run) for _ in range(9)][2:]
            found[f"{name} {size:g} MiB"] = [statistics.median(bench.slowest(times))]
    return found


def _buffer(bench: Bench, size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.bfloat16, device=bench.device)


def _exchange(ops: list[Any]) -> None:
    for each in dist.batch_isend_irecv(ops) if ops else ():
        each.wait()


def _neighbour(bench: Bench, size: int) -> Callable[[], None]:
    """Each rank sends to the next one, as a window's halo goes."""
    came, sent = _buffer(bench, size), _buffer(bench, size)

    def run() -> None:
        ops = []
        if bench.rank:
            ops.append(dist.P2POp(dist.irecv, came, bench.rank - 1))
        if bench.rank < bench.size - 1:
            ops.append(dist.P2POp(dist.isend, sent, bench.rank + 1))
        _exchange(ops)

    return run


def _from_first(bench: Bench, size: int) -> Callable[[], None]:
    """Rank 0 sends the same to everybody, as sinks go."""
    buffer = _buffer(bench, size)

    def run() -> None:
        if bench.rank:
            _exchange([dist.P2POp(dist.irecv, buffer, 0)])
        else:
            _exchange([dist.P2POp(dist.isend, buffer, each) for each in range(1, bench.size)])

    return run


def _all_gather(bench: Bench, size: int) -> Callable[[], None]:
    """Gathers so much of each rank."""
    own, whole = _buffer(bench, size), _buffer(bench, size * bench.size)
    return lambda: one_tensor(("all_gather_single", "all_gather_into_tensor"), whole, own)


def _all_to_all(bench: Bench, size: int) -> Callable[[], None]:
    """Sends so much of each rank to all, in equal parts."""
    came, sent = _buffer(bench, size), _buffer(bench, size)
    return lambda: dist.all_to_all_single(came, sent)


# ------------------------------------------------------------------ when kernels begin


def held_back(bench: Bench, cases: list[Case]) -> dict[str, Any]:
    """How long kernels should wait for messages to begin: times by cycles; the best is taken.

    `priority` is without waiting, in a group whose messages have a stream of high priority;
    `no messages` computes what it would, from keys that nobody sent; `in turn` begins rows that
    read the buffer when the others have ended.
    """
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True) if bench.cuda else None
    first = dist.new_group(list(range(bench.size)), pg_options=options)
    found: dict[str, Any] = {}
    usual, start = exchange._HELD_BACK, exchange.Exchange.start
    choices = [(str(x), x, None) for x in (0, 5_000, 10_000, 20_000, 40_000)]
    others = [("priority", 0, first), ("0 again", 0, None), ("no messages", 0, None),
              ("in turn", usual, None), ("default", usual, None)]  # fmt: skip
    for name, cycles, group in choices + others:
        exchange._HELD_BACK = cycles
        silent: Any = lambda self, patient=True: None  # noqa: E731
        exchange.Exchange.start = silent if name == "no messages" else start
        passes.TWO_STREAMS = name != "in turn"
        for case in cases:
            method = case.method("planned")
            run = partial(mc.distributed.attention, plan=case.plan, group=group)
            given = {name: shards(method, bench.tensors(case.n))}
            times = medians(turns(bench, {name: run}, given, bench.row_seconds)[name])
            found.setdefault(name, {})[f"{case.name} at {case.tokens}"] = {"times_ms": times}
    exchange._HELD_BACK, exchange.Exchange.start = usual, start
    sums = {
        cycles: sum(x["times_ms"][0] for x in found[name].values()) for name, cycles, _ in choices
    }
    exchange._HELD_BACK = min(sums, key=lambda x: (sums[x] > 1.01 * min(sums.values()), x))
    return {"taken": exchange._HELD_BACK, "by cycles": found}


# ------------------------------------------------------------------ soak


@dataclass
class Drawn:
    """A random step."""

    mask: mc.Mask
    n: int
    layout: str
    data: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, torch.Tensor] = field(default_factory=dict)
    """What its formula learns."""


def _drawn(bench: Bench, step: int) -> Drawn:
    """What a step computes, the same on every rank."""
    draw = np.random.default_rng(step)
    n = int(draw.integers(1, 40)) * 64 + int(draw.integers(0, 64))
    width = int(draw.integers(1, 400))
    choice = int(draw.integers(0, 8))
    mask = [
        mc.causal() & mc.window(mc.param("w", 512)), mc.causal() & mc.documents("doc"),
        mc.causal(), mc.causal() & (mc.window(mc.param("w", 512)) | mc.sinks(16)),
        mc.window(mc.param("w", 512), 64) & mc.documents("doc"), mc.chunked(256),
        mc.window(mc.param("w", 512), 128) | mc.global_tokens(64),
        mc.causal() & mc.window(mc.param("w", 512)),
    ][choice]  # fmt: skip
    data: dict[str, Any] = {}
    if choice in (1, 4):
        data["doc"] = np.sort(draw.integers(0, 1 + n // 200, n))
    if choice in (0, 3, 4, 6, 7):
        data["w"] = width
    layout = ("auto", "contiguous", "zigzag", "balanced")[int(draw.integers(0, 4))]
    found = Drawn(mask, n, layout, data)
    if choice == 5:  # whose kernels have the lengths in them
        found.n = 1024 * int(draw.integers(1, 3))
    if choice == 7:  # kernels of formulas have places in them
        found.n, found.layout = 2048, "contiguous"
        shapes = {"near": (bench.heads[0], 32), "key": (2048,), "slope": ()}
        found.options["score"] = _SCORE
        found.tables = {
            name: torch.from_numpy(draw.normal(0, 0.5, shape).astype(np.float32)).to(bench.device)
            for name, shape in shapes.items()
        }
    if choice == 7 or int(draw.integers(0, 3)) == 0:
        found.options |= {"dropout_p": 0.25, "dropout_seed": step}
    return found


_SCORE = mc.score(
    lambda s, q, k, h: s + mc.table("near")[h, mc.scores.minimum(q - k, 31)]
    + mc.param("slope", 1.0) * mc.table("key")[k]
)  # fmt: skip


def soak(bench: Bench, steps: int, first: int = 0) -> dict[str, Any]:
    """Random steps from `first` on: masks, lengths, layouts, documents, dropout and tables of a
    formula change; every result is compared."""
    wrong, began, done = [], time.perf_counter(), 0
    worst = dict.fromkeys(("out", "dq", "dk", "dv", "near", "key", "slope"), 0.0)
    limit = 1e-4 if bench.dtype == torch.float32 else 2e-2
    for step in range(first, first + steps):
        if bench.late():
            break
        done += 1
        one = _drawn(bench, step)
        plan = mc.distributed.plan(
            one.mask, one.n, bench.size, heads=bench.heads, layout=one.layout,
            dtype=str(bench.dtype).split(".")[1], data=one.data, move_rows=(None, True)[step % 2],
        )  # fmt: skip
        if plan.block % 16:
            one.options.pop("dropout_p", None)
        whole, results = bench.tensors(one.n, step), list[list[torch.Tensor]]()
        for own in (lambda x: x, lambda x: plan.shard(x, 2)):  # noqa: B023
            leaves = [own(x).detach().clone().requires_grad_() for x in whole[:3]]
            learnt = {name: x.clone().requires_grad_() for name, x in one.tables.items()}
            if results:
                out = mc.distributed.attention(*leaves, plan, **one.options, **learnt)
            else:
                out = mc.attention(*leaves, one.mask, **one.data, **one.options, **learnt)
            out.backward(own(whole[3]))
            grads: list[Any] = [x.grad for x in (*leaves, *learnt.values())]
            results.append([out.detach(), *grads])
        for number, (name, wanted, found) in enumerate(zip(worst, *results, strict=False)):
            if number < 4:
                wanted = plan.shard(wanted, 2)
            else:
                dist.all_reduce(found)
            off = error(found, wanted)
            worst[name] = max(worst[name], off)
            if not off <= (limit if number < 4 else 3 * limit):  # whose terms cancel
                wrong.append(f"step {step}: {name} of {one.mask} at {one.n}, {one.layout}, "
                             f"{one.options}: {off:.1e}")  # fmt: skip
        if bench.rank == 0 and (step + 1) % 100 == 0:
            print(f"{step + 1} steps, {len(wrong)} wrong, worst {worst}", flush=True)
    total = torch.tensor([len(wrong)], device=bench.device)
    dist.all_reduce(total)
    for line in wrong[:10]:
        print(f"rank {bench.rank}: {line}", flush=True)
    far = bench.slowest(list(worst.values()))
    return {"first": first, "steps": done, "wrong": int(total),
            "worst": dict(zip(worst, far, strict=True)),
            "seconds": time.perf_counter() - began}  # fmt: skip


# ------------------------------------------------------------------ processes


def work(rank: int, size: int, asked: argparse.Namespace, address: str) -> None:
    """One rank."""
    cuda = asked.device == "cuda"
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    rest = {"device_id": device} if cuda else {}
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=address, rank=rank, world_size=size,
        timeout=timedelta(seconds=180), **rest,
    )  # fmt: skip
    ahead.start = lambda jobs: None  # each rank builds what it calls, and not for other lengths
    dtype = getattr(torch, asked.dtype or ("bfloat16" if cuda else "float32"))
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "torch": torch.__version__, "maskc": mc.__version__, "ranks": size, "rows": [],
    }  # fmt: skip
    for heads in asked.heads:
        bench = Bench(rank, size, device, dtype, tuple(map(int, heads.split("/"))), asked.turns,
                      asked.began + asked.seconds, asked.row_seconds)  # fmt: skip
        if asked.soak:
            found["soak"] = soak(bench, asked.soak, asked.soak_from)
            if rank == 0:
                print(found["soak"], flush=True)
        else:
            table(bench, asked, found)
    if rank == 0:
        save(asked.out, found)
    dist.barrier()
    dist.destroy_process_group()


def table(bench: Bench, asked: argparse.Namespace, found: dict[str, Any]) -> None:
    """All rows: results first, then times."""
    torch._dynamo.config.recompile_limit = 64

    def told(text: str) -> None:
        if bench.rank == 0:
            print(f"{time.monotonic() - asked.began:5.0f} s  {text}", flush=True)

    ends = asked.began + min(asked.seconds, asked.check_seconds)
    builder = Builder(bench, asked.builders)
    later = asked.masks if asked.later_masks is None else asked.later_masks
    cases = [
        bench.case(name, tokens)
        for number, tokens in enumerate(asked.tokens) for name in (later if number else asked.masks)
    ]  # fmt: skip
    cases = cases[: asked.rows]
    quick = [name for name in asked.methods if name not in SLOW]

    def ways(case: Case) -> list[str]:
        return [name for name in quick if name != "ring" or case.name in asked.ring_masks]

    for case in cases:
        builder.add([case.whole])
        for name in ways(case):
            try:
                builder.add(case.method(name).pieces)
            except Unavailable:
                continue
    told(f"{len(cases)} rows planned")
    told(builder.finish(ends - time.monotonic()))
    rows = [start_row(bench, case) for case in cases]
    slow = [name for name in asked.methods if name in SLOW]
    for names in (quick, slow):
        for case, row in zip(cases, rows, strict=True):
            if names is slow and not (
                case.name in asked.slow_masks and case.tokens in asked.slow_at
            ):
                continue
            if names is slow and bench.late(ends):
                continue
            if names and not bench.late():
                checked(bench, case, ways(case) if names is quick else names, row)
                wrong = {key: value for key, value in row["errors"].items() if max(value) > 2e-2}
                told(f"{case.name} at {case.tokens}: wrong {wrong}, missing {row['missing']}")
    found["rows"] = rows
    found["network_ms"] = network(bench)
    told(f"network {found['network_ms']}")
    if asked.held_back:
        tried = [
            case for case, row in zip(cases, rows, strict=True)
            if case.name in HELD_BACK and case.tokens == asked.tokens[0] and row["errors"]
        ]  # fmt: skip
        try:
            found["held_back"] = held_back(bench, tried)
        except Exception as why:  # the usual time is kept
            found["held_back"] = f"{type(why).__name__}: {why}"
        told(f"kernels held back: {found['held_back']}")
    for case, row in zip(cases, rows, strict=True):
        if not row["errors"] or bench.late():
            continue
        timed(bench, case, row)
        if bench.rank == 0:
            show(row)
            save(asked.out, found)
    told("done")


def save(path: str | None, found: dict[str, Any]) -> None:
    """Write what there is so far."""
    if path:
        replace_file(
            Path(path), {**found, "rows": [row for row in found["rows"] if row["times_ms"]]}
        )


def main() -> None:
    """Read the options and start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--ranks", type=int, help="all GPUs, if not given")
    add("--tokens", type=int, nargs="+", default=[16384, 32768, 8192], help="of a rank")
    add("--heads", nargs="+", default=["32/8/128"], help="Hq/Hkv/D")
    add("--masks", nargs="+", default=list(MASKS), choices=list(MASKS))
    add("--later-masks", nargs="*", choices=list(MASKS), help="at all lengths but the first")
    add("--ring-masks", nargs="*", default=list(MASKS), choices=list(MASKS), help="that go round")
    add("--rows", type=int, help="at most so many, of the first length first")
    add("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    add("--slow-at", type=int, nargs="*", default=[16384], help="tokens at which slow ones run")
    add("--slow-masks", nargs="*", default=list(MASKS)[:6], choices=list(MASKS))
    add("--dtype")
    add("--turns", type=int, default=15)
    add("--row-seconds", type=float, default=6.0, help="after which a row takes no more turns")
    add("--check-seconds", type=float, default=1e9, help="for building and slow ways' results")
    add("--seconds", type=float, default=1e9, help="after which no further row or step begins")
    add("--builders", type=int, default=12, help="threads that build kernels")
    add("--held-back", action="store_true", help="measure how long kernels should wait to begin")
    add("--soak", type=int, default=0, metavar="STEPS")
    add("--soak-from", type=int, default=0, metavar="STEP", help="the first one")
    add("--out", metavar="FILE")
    asked = parser.parse_args()
    asked.began = time.monotonic()
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), asked, "env://")
        return
    size = asked.ranks or (torch.cuda.device_count() if asked.device == "cuda" else 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    torch.multiprocessing.spawn(work, (size, asked, address), nprocs=size)


if __name__ == "__main__":
    main()
