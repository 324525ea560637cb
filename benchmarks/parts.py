"""`python -m benchmarks.parts [--out FILE]`: do calls run in parts where these are faster?

Reads benchmarks/results/parts-h200.json, which needs no GPU: for every timed call, asks the cost
model which way the call goes. Regret is the time of that way divided by the time of the faster one.
With --out, the same calls are timed on this machine first, and saved.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import maskc as mc
from benchmarks.runs import save
from maskc import driver
from maskc.build.toolchain import gpus
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.plan.cost import runs_in_parts
from maskc.plan.types import KernelPlan
from maskc.runtime.compiled import CompiledMask

RESULTS = Path(__file__).parent / "results" / "parts-h200.json"
TARGET, HEADS = "sm_90a", 16
FEW_QUERIES = 64
"""Backward passes with fewer queries are left out."""
_ROUNDS, _SECONDS = 9, 0.02

MASKS: dict[str, Mask] = {
    "sparse_transformer_fixed": mc.patterns.sparse_transformer_fixed(),
    "dilated_longformer": mc.patterns.dilated_longformer(),
    "landmark": mc.patterns.landmark(),
    "landmark128": mc.patterns.landmark(),
    "exponential_dilation": mc.patterns.exponential_dilation(),
    "axial": mc.patterns.axial(),
    "sparse_strided": mc.patterns.sparse_transformer_strided(),
    "dilated 4x64": mc.dilated(64, 64, stride=4),
    "window+dilated": mc.causal() & (mc.window(63) | mc.dilated(512, stride=8)),
    "globals scattered": mc.window(64, 64) | mc.global_tokens(list(range(0, 4096, 300))),
}
"""Masks by their names in the results."""


class Timed(NamedTuple):
    """A pass that was timed both ways, in milliseconds."""

    mask: str
    head_dim: int
    sequences: int
    n_q: int
    n_kv: int
    direction: Direction
    whole: float
    parts: float

    @property
    def in_parts(self) -> bool:
        """Whether the cost model lets the pass run in parts."""
        heads = HEADS * self.sequences
        plan = _plan(self.mask, self.head_dim)
        return runs_in_parts(plan, self.n_q, self.n_kv, self.direction, heads)

    @property
    def regret(self) -> float:
        """The time of the chosen way, relative to the faster one."""
        return (self.parts if self.in_parts else self.whole) / min(self.parts, self.whole)

    def __str__(self) -> str:
        call = f"{self.mask}, D {self.head_dim}, {self.sequences} x {self.n_q} x {self.n_kv}"
        ways = f"whole {self.whole:.4f} ms, in parts {self.parts:.4f} ms"
        return f"{call}, {self.direction.value}: {ways}; {'parts' if self.in_parts else 'whole'}"


@cache
def _plan(name: str, head_dim: int) -> KernelPlan:
    problem = driver.problem(head_dim, None, None, "bfloat16")
    return driver.plan_kernel(MASKS[name], problem, Target.named(TARGET))


def passes(rows: Iterable[list[Any]]) -> Iterator[Timed]:
    """The timed passes of a file's rows."""
    for name, head_dim, sequences, n_q, n_kv, *ms in rows:
        call = name, head_dim, sequences, n_q, n_kv
        yield Timed(*call, Direction.forward, ms[0], ms[1])
        if n_q >= FEW_QUERIES:
            yield Timed(*call, Direction.backward, ms[2], ms[3])


def regret(timed: Iterable[Timed]) -> tuple[float, float]:
    """(geometric mean of the regret, the worst)."""
    regrets = [one.regret for one in timed]
    return math.exp(sum(map(math.log, regrets)) / len(regrets)), max(regrets)


def report(rows: list[list[Any]]) -> Iterator[str]:
    """The regret of both passes, over all calls and over each half of them, and wrong choices."""
    for direction in Direction:
        halves = {"all": rows, "even rows": rows[::2], "odd rows": rows[1::2]}
        for name, half in halves.items():
            timed = [one for one in passes(half) if one.direction is direction]
            mean, worst = regret(timed)
            counts = f"{len(timed)} calls, {mean:.4f} mean, {worst:.3f} worst"
            yield f"{direction.value}, {name}: {counts}"
    wrong = [one for one in passes(rows) if one.regret > 1]
    yield from (f"{one.regret:.3f} {one}" for one in sorted(wrong, key=lambda one: -one.regret))


def measured(rows: list[list[Any]]) -> list[list[Any]]:
    """Time the calls of some rows both ways on this machine."""
    import torch

    from maskc.verify.timing import Timed as Run
    from maskc.verify.timing import take_turns

    made = []
    for name, head_dim, sequences, n_q, n_kv, *_ in rows:
        attn = MASKS[name].compile(head_dim, dtype="bfloat16", target=TARGET)
        whole, parts = (
            CompiledMask(attn.bundle, TARGET, in_parts=in_parts) for in_parts in (False, True)
        )
        q, k, v, dout = (
            torch.randn(sequences, HEADS, n, head_dim, device="cuda", dtype=torch.bfloat16)
            for n in (n_q, n_kv, n_kv, n_q)
        )
        out, lse = whole(q, k, v, return_lse=True)
        runs = {
            "whole": lambda: whole(q, k, v, return_lse=True),  # noqa: B023
            "parts": lambda: parts(q, k, v, return_lse=True),  # noqa: B023
            "whole, backward": lambda: whole.backward(q, k, v, out, lse, dout),  # noqa: B023
            "parts, backward": lambda: parts.backward(q, k, v, out, lse, dout),  # noqa: B023
        }
        timed = {way: Run(run) for way, run in runs.items()}
        ms = take_turns(timed, _ROUNDS, "cuda", _SECONDS)
        times = [round(ms[way], 4) for way in runs]
        made.append([name, head_dim, sequences, n_q, n_kv, *times])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    results = json.loads(RESULTS.read_text())
    if out is not None:
        results |= {"card": gpus()[0].name, "rows": measured(results["rows"])}
        save(out, results)
    print("\n".join(report(results["rows"])))


if __name__ == "__main__":
    main()
