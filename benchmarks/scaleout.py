"""One sequence on several GPUs: a planned halo beside all-gather and Ulysses, both passes.

    python -m benchmarks.scaleout --out results.json            (all GPUs of this host)
    torchrun --nproc-per-node 2 -m benchmarks.scaleout
    python -m benchmarks.scaleout --device cpu --ranks 2 --tokens 256 --turns 1   (a dry run)
    python -m benchmarks.scaleout --soak 2000                    (random steps, checked; no times)

Methods take turns; before each turn all ranks meet, and a short sleep on the GPU lets the host run
ahead, so that times are those of the GPU. A time is the median over turns of the slowest rank's.
Every method's results are compared with attention over the whole sequence on one GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import maskc as mc
from maskc.distributed.local import Stretch, localized

MASKS: dict[str, Callable[[int], mc.Mask]] = {
    "window 1024": lambda n: mc.causal() & mc.window(1023),
    "window 4096": lambda n: mc.causal() & mc.window(4095),
    "sinks 64 + window 4096": lambda n: mc.causal() & (mc.window(4095) | mc.sinks(64)),
    "chunked 8192": lambda n: mc.chunked(8192),
    "documents": lambda n: mc.causal() & mc.documents("doc"),
    "causal": lambda n: mc.causal(),
    "Longformer 256 + 64": lambda n: mc.window(256, 256) | mc.global_tokens(64),
    "strided 128": lambda n: mc.causal() & (mc.window(127) | mc.strided(128, 127)),
    "dilated 512 / 4": lambda n: mc.causal() & mc.dilated(511, stride=4),
    "BigBird 64": lambda n: mc.random_blocks(64, 3, 0) | mc.window(64, 64) | mc.global_tokens(64),
}
USUAL = tuple(MASKS)[:6]


def documents(n: int, seed: int = 0) -> np.ndarray:
    """Ids of packed documents of about n / 8 tokens, at least 512 on average."""
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

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def draw(self, heads: int, n: int, seed: int) -> torch.Tensor:
        """[1, heads, n, D], the same on every rank, stored as [1, n, heads, D]."""
        made = torch.Generator(self.device).manual_seed(seed)
        shape = 1, n, heads, self.heads[2]
        x = torch.randn(shape, generator=made, device=self.device, dtype=torch.float32)
        return x.to(self.dtype).transpose(1, 2)

    def time(self, run: Callable[[], Any]) -> float:
        """Milliseconds of this rank, all having met before."""
        self.sync()
        dist.barrier()
        if not self.cuda:
            began = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - began)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(4_000_000)
        start.record()
        run()
        end.record()
        self.sync()
        return float(start.elapsed_time(end))

    def slowest(self, values: list[float]) -> list[float]:
        """Of each turn, over ranks."""
        x = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(x, dist.ReduceOp.MAX)
        return x.tolist()


# ------------------------------------------------------------------ methods


class Gather(torch.autograd.Function):
    """Keys or values of all ranks, [B, H, N, D], in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, plan: Any, order: torch.Tensor | None) -> torch.Tensor:
        ctx.made_of = plan, order
        rows = x.permute(2, 0, 1, 3).contiguous()
        whole = rows.new_empty((plan.n, *rows.shape[1:]))
        one_tensor(("all_gather_single", "all_gather_into_tensor"), whole, rows)
        if order is not None:
            ordered = torch.empty_like(whole)
            ordered[order] = whole
            whole = ordered
        return whole.permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        plan, order = ctx.made_of
        rows = grad.permute(2, 0, 1, 3)
        rows = rows.contiguous() if order is None else rows[order]
        own = rows.new_empty((plan.n // dist.get_world_size(), *rows.shape[1:]))
        if dist.get_backend() == "gloo":
            dist.all_reduce(rows)
            size = own.shape[0]
            own = rows[dist.get_rank() * size : (dist.get_rank() + 1) * size].clone()
        else:
            one_tensor(("reduce_scatter_single", "reduce_scatter_tensor"), own, rows)
        return own.permute(1, 2, 0, 3), None, None


def one_tensor(names: tuple[str, ...], made: torch.Tensor, rows: torch.Tensor) -> None:
    """A collective over whole tensors, by the first name that this PyTorch has."""
    next(getattr(dist, name) for name in names if hasattr(dist, name))(made, rows)


def gathered(bench: Bench, plan: Any, mask: mc.Mask, data: dict[str, Any]) -> Callable[..., Any]:
    """All-gather of K and V, then our kernel on the rank's rows."""
    stretches = plan.layout.own.of(bench.rank)
    order = None
    if plan.layout.name != "contiguous":
        order = torch.from_numpy(plan.layout.order).to(bench.device)
    whole = [Stretch(0, 0, plan.n)]
    calls, at = [], 0
    for start, stop in stretches:
        local = localized(mask, plan.n, bench.heads[0], start, stop - start, whole, data)
        calls.append((at, stop - start, local))
        at += stop - start

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (Gather.apply(x, plan, order) for x in (k, v))
        outs = [
            mc.attention(q[:, :, at : at + rows], k, v, local.mask, **local.data)
            for at, rows, local in calls
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)

    return run


class Swap(torch.autograd.Function):
    """[B, H, n, D] with all heads of some tokens <-> [B, H / P, N, D] with all tokens."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, to_heads: bool) -> torch.Tensor:
        ctx.to_heads = to_heads
        return swapped(x, to_heads)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return swapped(grad, not ctx.to_heads), None


def swapped(x: torch.Tensor, to_heads: bool) -> torch.Tensor:
    """One all-to-all; tokens are contiguous on ranks."""
    size = dist.get_world_size()
    batch, heads, n, dim = x.shape
    if to_heads:
        rows = x.reshape(batch, size, heads // size, n, dim).permute(1, 3, 0, 2, 4).contiguous()
        came = torch.empty_like(rows)
        dist.all_to_all_single(came, rows)
        return came.flatten(0, 1).permute(1, 2, 0, 3)
    rows = x.reshape(batch, heads, size, n // size, dim).permute(2, 3, 0, 1, 4).contiguous()
    came = torch.empty_like(rows)
    dist.all_to_all_single(came, rows)  # [sender, tokens, batch, heads, dim]
    return came.permute(2, 0, 3, 1, 4).reshape(batch, size * heads, n // size, dim)


def ulysses(bench: Bench, plan: Any, mask: mc.Mask, data: dict[str, Any]) -> Callable[..., Any]:
    """All-to-all of heads, then our kernel on all tokens of some heads."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (Swap.apply(x, True) for x in (q, k, v))
        return Swap.apply(mc.attention(q, k, v, mask, **data), False)

    return run


def planned(bench: Bench, plan: Any, mask: mc.Mask, data: dict[str, Any]) -> Callable[..., Any]:
    """What maskc.distributed does."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return mc.distributed.attention(q, k, v, plan)

    return run


METHODS = {"planned": planned, "all-gather": gathered, "ulysses": ulysses}


# ------------------------------------------------------------------ one row of the table


def measure(bench: Bench, name: str, tokens: int) -> dict[str, Any]:
    """One mask at so many tokens a rank."""
    n = tokens * bench.size
    mask = MASKS[name](n)
    data = {"doc": documents(n)} if name == "documents" else {}
    hq, hkv, dim = bench.heads
    plan = mc.distributed.plan(
        mask, n, bench.size, heads=(hq, hkv, dim), dtype=str(bench.dtype).split(".")[1], data=data,
        network="nvlink",
    )  # fmt: skip
    draws = (hq, 1), (hkv, 2), (hkv, 3), (hq, 4)
    q, k, v, dout = (bench.draw(heads, n, seed) for heads, seed in draws)
    row: dict[str, Any] = {
        "mask": name, "tokens": tokens, "ranks": bench.size, "heads": [hq, hkv, dim],
        "layout": plan.layout.name, "imbalance": plan.imbalance(),
        "received_MiB": max(plan.received_bytes(r) for r in range(bench.size)) / 2**20,
        "predicted_ms": [x.total for x in plan.times()], "predicted_other_ms": plan.others(),
    }  # fmt: skip
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    want = mc.attention(*leaves, mask, **data)
    want.backward(dout)
    wanted = [want.detach(), *(x.grad for x in leaves)]
    for x in leaves:
        x.grad = None
    row["one_gpu"] = one(bench, leaves, dout, mask, data)
    runs, inputs, errors = {}, {}, {}
    for method, make in METHODS.items():
        layout = plan if method != "ulysses" or plan.layout.name == "contiguous" else None
        if layout is None:  # heads travel, and so the layout of tokens does not matter
            layout = mc.distributed.plan(mask, n, bench.size, heads=(hq, hkv, dim),
                                         layout="contiguous", data=data)  # fmt: skip
        try:
            run = make(bench, layout, mask, data)
            own = [layout.shard(x, 2).clone() for x in (q, k, v, dout)]
            own = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in own]
            given = [x.requires_grad_() for x in own[:3]]
            out = run(*given)
            out.backward(own[3])
            found = [out.detach(), *(x.grad for x in given)]
            errors[method] = [
                error(a, layout.shard(b, 2)) for a, b in zip(found, wanted, strict=True)
            ]
            runs[method], inputs[method] = run, (given, own[3])
        except Exception as failed:  # a method that cannot run says why, on all ranks alike
            row.setdefault("failed", {})[method] = f"{type(failed).__name__}: {failed}"[:300]
    row["errors"] = {key: bench.slowest(values) for key, values in errors.items()}
    del wanted, want, leaves, q, k, v, dout
    row["memory"] = {key: memory(bench, run, *inputs[key]) for key, run in runs.items()}
    row["times_ms"] = turns(bench, runs, inputs)
    return row


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative, of all elements together."""
    wanted = wanted.float()
    return ((found.float() - wanted).norm() / wanted.norm().clamp(min=1e-20)).item()


def one(
    bench: Bench, leaves: list[torch.Tensor], dout: torch.Tensor, mask: mc.Mask, data: Any
) -> list[float]:
    """[forward, backward] of the whole sequence on one GPU, the slowest of all that measure it."""
    found: list[list[float]] = [[], []]
    for _ in range(bench.turns + 2):
        kept: list[torch.Tensor] = []
        found[0].append(bench.time(lambda: kept.append(mc.attention(*leaves, mask, **data))))  # noqa: B023
        found[1].append(bench.time(lambda: kept[0].backward(dout)))  # noqa: B023
        for x in leaves:
            x.grad = None
    return [statistics.median(bench.slowest(x[2:])) for x in found]


def memory(bench: Bench, run: Any, given: list[torch.Tensor], dout: torch.Tensor) -> dict[str, Any]:
    """MiB: kept between the passes besides out, and the most at any time, above what is given."""
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


def turns(bench: Bench, runs: dict[str, Any], inputs: dict[str, Any]) -> dict[str, list[float]]:
    """[forward, backward] of each method, taking turns."""
    found: dict[str, list[list[float]]] = {name: [[], []] for name in runs}
    for _ in range(bench.turns + 3):
        for name, run in runs.items():
            given, dout = inputs[name]
            for x in given:
                x.grad = None
            kept: list[torch.Tensor] = []
            found[name][0].append(bench.time(lambda: kept.append(run(*given))))  # noqa: B023
            found[name][1].append(bench.time(lambda: kept[0].backward(dout)))  # noqa: B023
    return {
        name: [statistics.median(bench.slowest(x[3:])) for x in both]
        for name, both in found.items()
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    """A few lines about a row."""
    times = row["times_ms"]
    print(f"\n{row['mask']}, {row['tokens']} tokens a rank, {row['layout']}, heads {row['heads']}, "
          f"imbalance {row['imbalance']:.3f}, {row['received_MiB']:.1f} MiB come")  # fmt: skip
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
        print(f"  {name:11} {forward:8.3f} {backward:8.3f} ms{beside}{space}  errors {errors}")
    for name, why in row.get("failed", {}).items():
        print(f"  {name:11} {why}")
    sys.stdout.flush()


# ------------------------------------------------------------------ soak


def soak(bench: Bench, steps: int, seconds: float) -> dict[str, Any]:
    """Random steps: masks, lengths, layouts and documents change; every result is compared."""
    wrong, began, worst = [], time.perf_counter(), 0.0
    hq, hkv, dim = bench.heads
    limit = 1e-4 if bench.dtype == torch.float32 else 2e-2
    done = 0
    for step in range(steps):
        late = torch.tensor([time.perf_counter() - began > seconds], device=bench.device)
        dist.broadcast(late, 0)
        if late.item():
            break
        done = step + 1
        draw = np.random.default_rng(step)
        n = int(draw.integers(1, 40)) * 64 + int(draw.integers(0, 64))
        width = int(draw.integers(1, 400))
        choice = int(draw.integers(0, 6))
        mask = [
            mc.causal() & mc.window(mc.param("w", 512)), mc.causal() & mc.documents("doc"),
            mc.causal(), mc.causal() & (mc.window(mc.param("w", 512)) | mc.sinks(16)),
            mc.window(mc.param("w", 512), 64) & mc.documents("doc"), mc.chunked(256),
        ][choice]  # fmt: skip
        data: dict[str, Any] = {}
        if choice in (1, 4):
            data["doc"] = np.sort(draw.integers(0, 1 + n // 200, n))
        if choice in (0, 3, 4):
            data["w"] = width
        layout = ("auto", "contiguous", "zigzag", "balanced")[int(draw.integers(0, 4))]
        plan = mc.distributed.plan(mask, n, bench.size, heads=(hq, hkv, dim), layout=layout,
                                   dtype=str(bench.dtype).split(".")[1], data=data)  # fmt: skip
        draws = (hq, 1), (hkv, 2), (hkv, 3), (hq, 4)
        whole = [bench.draw(heads, n, 4 * step + seed) for heads, seed in draws]
        leaves = [x.detach().requires_grad_() for x in whole[:3]]
        want = mc.attention(*leaves, mask, **data)
        want.backward(whole[3])
        own = [plan.shard(x, 2).clone() for x in whole]
        given = [x.requires_grad_() for x in own[:3]]
        out = mc.distributed.attention(*given, plan)
        out.backward(own[3])
        pairs = zip([out, *(x.grad for x in given)], [want, *(x.grad for x in leaves)], strict=True)
        for name, (found, wanted) in zip(("out", "dq", "dk", "dv"), pairs, strict=True):
            off = error(found.detach(), plan.shard(wanted.detach(), 2)) if found.numel() else 0.0
            worst = max(worst, off)
            if not off <= limit:
                wrong.append(f"step {step}: {name} of {mask} at {n}, {layout}: {off:.1e}")
        if bench.rank == 0 and (step + 1) % 100 == 0:
            print(f"{step + 1} steps, {len(wrong)} wrong, worst {worst:.1e}", flush=True)
    total = torch.tensor([len(wrong)], device=bench.device)
    dist.all_reduce(total)
    for line in wrong[:10]:
        print(f"rank {bench.rank}: {line}", flush=True)
    return {"steps": done, "wrong": int(total), "worst": worst,
            "seconds": time.perf_counter() - began}  # fmt: skip


# ------------------------------------------------------------------ processes


def work(rank: int, size: int, asked: argparse.Namespace, address: str) -> None:
    """One rank."""
    cuda = asked.device == "cuda"
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    rest = {"device_id": device} if cuda else {}
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=address, rank=rank, world_size=size,
        timeout=timedelta(seconds=120), **rest,
    )  # fmt: skip
    dtype = getattr(torch, asked.dtype or ("bfloat16" if cuda else "float32"))
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "torch": torch.__version__, "maskc": mc.__version__, "ranks": size, "rows": [],
    }  # fmt: skip
    for heads in asked.heads:
        bench = Bench(rank, size, device, dtype, tuple(map(int, heads.split("/"))), asked.turns)
        if asked.soak:
            found["soak"] = soak(bench, asked.soak, asked.seconds)
            if rank == 0:
                print(found["soak"], flush=True)
            continue
        for tokens in asked.tokens:
            for name in asked.masks:
                row = measure(bench, name, tokens)
                found["rows"].append(row)
                if rank == 0:
                    show(row)
                    save(asked.out, found)
    if rank == 0:
        save(asked.out, found)
    dist.barrier()
    dist.destroy_process_group()


def save(path: str | None, found: dict[str, Any]) -> None:
    """Write what there is so far."""
    if path:
        with open(path, "w") as file:
            json.dump(found, file, indent=1)


def main() -> None:
    """Read the options and start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--ranks", type=int, help="all GPUs, if not given")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--heads", nargs="+", default=["32/8/128"], help="Hq/Hkv/D")
    parser.add_argument("--masks", nargs="+", default=list(USUAL), choices=list(MASKS))
    parser.add_argument("--dtype")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--soak", type=int, default=0, metavar="STEPS")
    parser.add_argument("--seconds", type=float, default=480, help="of the soak, at most")
    parser.add_argument("--out", metavar="FILE")
    asked = parser.parse_args()
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
