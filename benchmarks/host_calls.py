"""Host time of calls on a GPU: layouts, gradients, score formulas, tile lists, steps over pages.

    python -m benchmarks.host_calls -o benchmarks/results/host-calls-h200.json [--base TREE]

Tensors are small, so that the GPU is done before the next launch arrives. `us` is the fastest of
many repetitions, each of a few calls; `p10_us` and `median_us` are their quantiles. On a busy host,
compare the low quantiles. With --base, a copy of the repository in another folder is measured in
turns, in a process of its own. Both processes can share one core, see --core; to compare two
versions, start them several times, see --rounds. Results are compared with those of the same call
in another form first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any, NamedTuple

import torch

import maskc as mc

_HEADS, _KV, _DIM, _TOKENS = 8, 2, 64, 128
_LAYERS, _SEQUENCES, _KEYS, _PAGE = 32, 32, 128, 16
_TURNS, _SECONDS, _BOUND = 4, 0.12, 2e-2
_AXES = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}
_CAUSAL, _DOCUMENTS = mc.causal(), mc.causal() & mc.documents("doc")


class Measured(NamedTuple):
    """Something to time."""

    run: Callable[[], Any]
    error: float
    """Largest difference from the same call in another form, relative to the largest result."""
    calls: int = 1
    """Calls in a run."""


def _tensors(sequences: int = 1) -> list[torch.Tensor]:
    """q, k and v [B, H, N, D]."""
    generator = torch.Generator("cuda").manual_seed(0)
    return [
        torch.randn(
            sequences, heads, _TOKENS, _DIM, device="cuda", dtype=torch.bfloat16,
            generator=generator,
        )
        for heads in (_HEADS, _KV, _KV)
    ]  # fmt: skip


def _apart(results: Any, wanted: Any) -> float:
    """The largest difference of tensors, relative to the largest entry."""
    pairs = [(x.detach(), y.detach()) for x, y in zip(results, wanted, strict=True)]
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)


def _compiled() -> Measured:
    q, k, v = _tensors()
    attn = mc.window(7).compile(_DIM, dtype="bfloat16")
    return Measured(lambda: attn(q, k, v), _apart([attn(q, k, v)], [_dense(q, k, v, 7)]))


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, width: int) -> torch.Tensor:
    """Attention to the keys up to `width` before each query, in fp32."""
    live = torch.tensor(mc.window(width).dense(_TOKENS), device="cuda")
    k, v = (x.repeat_interleave(_HEADS // _KV, 1) for x in (k, v))
    scores = (q.float() @ k.float().mT / _DIM**0.5).masked_fill(~live, -torch.inf)
    return scores.softmax(-1) @ v.float()


def _layout(layout: str, passes: str) -> Measured:
    """Calls in a layout; `passes`: forward without and with a graph, or both passes."""
    axes = _AXES.get(layout, (0, 2, 1, 3))
    first = _tensors(1 if layout == "packed" else 2)
    turned = [x.permute(axes).contiguous() for x in first]
    turned = [x[0] for x in turned] if layout == "packed" else turned
    options: dict[str, Any] = {} if layout == "bhsd" else {"layout": layout}
    if layout == "packed":
        options = {"cu_seqlens_q": torch.tensor([0, 50, _TOKENS], device="cuda").int()}
    for x in turned:
        x.requires_grad_(passes != "no graph")
    dout = torch.randn_like(turned[0])

    def run() -> Any:
        out = mc.attention(*turned, _CAUSAL, **options)
        return torch.autograd.grad(out, turned, dout) if passes == "fwd+bwd" else (out,)

    data = {}
    mask = _CAUSAL
    if layout == "packed":
        mask, data = _DOCUMENTS, {"doc": (torch.arange(_TOKENS, device="cuda") >= 50).int()}
    first = [x.requires_grad_() for x in first]
    wanted = (mc.attention(*first, mask, **data),)
    if passes == "fwd+bwd":
        back = [axes.index(axis) for axis in range(4)]
        own = (dout[None] if layout == "packed" else dout).permute(back)
        wanted = torch.autograd.grad(wanted[0], first, own)
    turned_back = [x.permute(axes) for x in wanted]
    turned_back = [x[0] for x in turned_back] if layout == "packed" else turned_back
    return Measured(run, _apart(run(), turned_back))


def _score(kind: str) -> Measured:
    q, k, v = _tensors()
    table = torch.randn(_HEADS, _TOKENS, _TOKENS, device="cuda")
    slopes = torch.rand(_HEADS, device="cuda")
    distance = (torch.arange(_TOKENS)[:, None] - torch.arange(_TOKENS)).abs().to("cuda")
    of_alibi = -slopes[:, None, None] * distance
    score, data, added = {
        "bias": (mc.scores.bias(), {"bias": table[None].bfloat16()}, table[None].bfloat16()),
        "alibi": (mc.scores.alibi(), {"slopes": slopes}, of_alibi[None]),
        "captured": (mc.score(lambda s, q, k, h: s + table[h, q, k]), {}, table[None]),
    }[kind]

    def run() -> Any:
        return mc.attention(q, k, v, _CAUSAL, score=score, **data)

    live = torch.tensor(_CAUSAL.dense(_TOKENS), device="cuda")
    mine = added.float().masked_fill(~live, -torch.inf).to(torch.bfloat16)
    wide = (x.repeat_interleave(_HEADS // _KV, 1) for x in (k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, *wide, attn_mask=mine)
    return Measured(run, _apart([run()], [wanted]))


def _lists(which: str, passes: str) -> Measured:
    """Documents with ids that stay, that are written before each call, or that are other arrays."""
    tensors = _tensors()
    dout = torch.randn_like(tensors[0])
    for x in tensors:
        x.requires_grad_(passes == "fwd+bwd")
    ids = [torch.arange(_TOKENS, device="cuda").int() // 50 for _ in range(8)]
    turns = cycle(ids)

    def run() -> Any:
        doc = next(turns) if which == "other arrays" else ids[0]
        if which == "written":
            torch.autograd.graph.increment_version(doc)
        out = mc.attention(*tensors, _DOCUMENTS, doc=doc)
        return torch.autograd.grad(out, tensors, dout) if passes == "fwd+bwd" else (out,)

    ends = torch.tensor([0, 50, 100, _TOKENS], device="cuda").int()
    turned = (x.transpose(1, 2) for x in tensors)
    wanted = (mc.attention(*turned, _CAUSAL, cu_seqlens_q=ends, layout="bshd").transpose(1, 2),)
    if passes == "fwd+bwd":
        wanted = torch.autograd.grad(wanted[0], tensors, dout)
    return Measured(run, _apart(run(), wanted))


def _pages(pool_dtype: str | None, updated: bool) -> Measured:
    """A step of layers that share a plan."""
    kind = torch.bfloat16 if pool_dtype is None else torch.float8_e4m3fn
    attn = mc.paged(
        mc.causal(), page_size=_PAGE, head_dim=128, n_heads=32, n_kv_heads=8, dtype="bfloat16",
        pool_dtype=pool_dtype,
    )  # fmt: skip
    width = _KEYS // _PAGE
    pages = _SEQUENCES * width
    table = torch.randperm(pages, device="cuda").int().reshape(_SEQUENCES, width)
    lens = torch.full((_SEQUENCES,), _KEYS, dtype=torch.int32, device="cuda")
    shape = pages, _PAGE, 8, 128
    pools = [
        tuple(torch.randn(shape, device="cuda").to(kind) for _ in range(2)) for _ in range(_LAYERS)
    ]
    scales: list[dict[str, Any]] = [{} for _ in pools]
    if pool_dtype is not None:
        scales = [
            {"k_scale": torch.rand(8, device="cuda") + 0.5,
             "v_scale": torch.rand(1, device="cuda") + 0.5}
            for _ in pools
        ]  # fmt: skip
    q = torch.randn(_SEQUENCES, 32, 128, device="cuda", dtype=torch.bfloat16)
    plan = attn.plan(table, 1, lens)

    def run() -> Any:
        if updated:
            plan.update(table, 1, lens)
        return [
            attn.run(q, *pool, plan, **factors)[0]
            for pool, factors in zip(pools, scales, strict=True)
        ]

    run()
    results = run()
    wanted = [
        attn.run(q, *pool, attn.plan(table, 1, lens), **factors)[0]
        for pool, factors in zip(pools, scales, strict=True)
    ]
    return Measured(run, _apart(results, wanted), _LAYERS)


CASES: dict[str, tuple[float | None, Callable[[], Measured]]] = {
    "compiled mask": (15, _compiled),
    **{
        f"{layout}, {passes}": (None, lambda layout=layout, passes=passes: _layout(layout, passes))
        for passes in ("no graph", "fwd", "fwd+bwd")
        for layout in (*_AXES, "packed")
    },
    **{
        f"score, {kind}": (40, lambda kind=kind: _score(kind))
        for kind in ("bias", "alibi", "captured")
    },
    **{
        f"documents, {which}{of_passes}": (bar, lambda w=which, p=passes: _lists(w, p))
        for of_passes, passes, bar in (("", "fwd", 30), (", fwd+bwd", "fwd+bwd", None))
        for which in ("kept", "written", "other arrays")
    },
    **{
        f"layer over pages, {name}{', updated' * updated}": (
            15, lambda kind=kind, updated=updated: _pages(kind, updated)
        )
        for name, kind in (("bf16", None), ("E4M3", "float8_e4m3fn"))
        for updated in (False, True)
    },
}  # fmt: skip
"""Microseconds that are allowed, and how to make the case."""


def timed(case: Measured) -> list[float]:
    """Microseconds of a call in many repetitions; nothing waits for the GPU inside of one."""
    runs, times = max(1, 8 // case.calls), []
    end = perf_counter() + _SECONDS
    while perf_counter() < end:
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(runs):
            case.run()
        times.append((perf_counter() - start) / (runs * case.calls) * 1e6)
    return times


def _serve() -> None:
    """Answer the names of cases by lines of JSON."""
    made: dict[str, Measured] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in made:
                made.clear()
                made[name] = CASES[name][1]()
                timed(made[name])
            answer = {"error": made[name].error, "times": timed(made[name])}
        except Exception as problem:  # an older version may lack something
            answer = {"problem": f"{type(problem).__name__}: {problem}"[:200]}
        print(json.dumps(answer), flush=True)


class Tree:
    """A process that measures one copy of the repository."""

    def __init__(self, folder: Path, core: int | None = None) -> None:
        """Start it, on one core if one is given."""
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        if core is not None:  # before it has threads, which inherit this
            os.sched_setaffinity(self._process.pid, {core})

    def ask(self, name: str) -> dict[str, Any]:
        """Measure a case once."""
        into, out = self._process.stdin, self._process.stdout
        if into is None or out is None:
            return {"problem": "no pipe"}
        into.write(name + "\n")
        into.flush()
        line = out.readline()
        return dict(json.loads(line)) if line else {"problem": "the process ended"}

    def close(self) -> None:
        """Let it end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def measured(
    folders: dict[str, Path], names: list[str], turns: int, rounds: int, core: int | None
) -> Iterator[dict[str, Any]]:
    """Measure the cases of all trees in turns; every second turn is in reverse order.

    Each round starts new processes, because a process keeps its speed: with the same code, two of
    them differ by up to 5 %. Rows count all times so far.
    """
    answers: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        trees = {tree: Tree(folder, core) for tree, folder in folders.items()}
        for name in names:
            for turn in range(turns):
                for tree in [*trees][:: -1 if turn % 2 else 1]:
                    answers.setdefault((name, tree), []).append(trees[tree].ask(name))
            yield from (_row(name, tree, answers[name, tree]) for tree in trees)
        for process in trees.values():
            process.close()


def _row(name: str, tree: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of a case, from the answers of a tree."""
    allowed = CASES[name][0]
    row: dict[str, Any] = {"case": name, "impl": tree, "allowed_us": allowed}
    problem = next((x["problem"] for x in answers if "problem" in x), None)
    if problem is not None:
        return row | {"problem": problem, "ok": False}
    times = [time for x in answers for time in x["times"]]
    error = max(x["error"] for x in answers)
    p10, *_, median = quantiles(times, n=10)[:5]
    return row | {
        "us": round(min(times), 1), "p10_us": round(p10, 1), "median_us": round(median, 1),
        "error": float(f"{error:.2g}"),
        "ok": error < _BOUND and (allowed is None or median <= allowed),
    }  # fmt: skip


def main() -> None:
    """Measure, print, and write what has times; end with an error if a call has none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--base", type=Path, help="another copy of the repository")
    parser.add_argument("--cases", help="only cases that match this expression", default="")
    parser.add_argument("--turns", type=int, default=_TURNS, help="in each process")
    parser.add_argument("--rounds", type=int, default=1, help="how often processes start anew")
    parser.add_argument("--core", type=int, help="run all calls on this core")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve()
        return
    from maskc.lab.environment import environment

    folders = {"maskc": Path(__file__).parents[1]}
    if given.base is not None:
        folders["base"] = given.base.resolve()
    names = [name for name in CASES if re.search(given.cases, name)]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in measured(folders, names, given.turns, given.rounds, given.core):
        print(" ".join(f"{key}={x}" for key, x in row.items()), flush=True)
        rows[row["case"], row["impl"]] = row
        timed = [row for row in rows.values() if "us" in row]
        if given.output is not None and timed:
            about = environment("cuda") | {
                "turns": given.turns, "rounds": given.rounds, "core": given.core,
                "layers": _LAYERS, "keys": _KEYS,
            }  # fmt: skip
            given.output.write_text(json.dumps({"environment": about, "rows": timed}, indent=1))
    failed = sum("us" not in row for row in rows.values())
    if failed:
        raise SystemExit(f"{failed} of {len(rows)} calls have no times")


if __name__ == "__main__":
    main()
