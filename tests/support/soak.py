"""Asks masks and calls kernels many times, and watches the memory of the process.

    python -m tests.support.soak --rounds 100000

Prints how many KB each kind of question left behind. Resident memory moves by whole pages, so that
few rounds say little.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import maskc as mc

LONGEST = 200
"""Lengths are below it: a program that runs for days meets the same ones again and again."""


def resident() -> int:
    """KB of memory that the process holds."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def questions(rng: np.random.Generator) -> dict[str, Callable[[], object]]:
    """Calls that a training loop may make at every step, by name."""
    window, causal = mc.window(9), mc.causal()
    wide = mc.window(mc.param("width", 5)) & causal
    packed = mc.documents("doc") & causal
    per_head = mc.per_head([causal, mc.window(3)])
    table = np.arange(2 * LONGEST) % 7
    formula = mc.from_mask_mod(lambda b, h, q, k: (table[q] == table[k]) & (q >= k))
    x = rng.standard_normal((1, 1, 40, 16)).astype(np.float32)
    compiled = window.compile(16, dtype="float32", target="cpu")

    def n() -> int:
        return int(rng.integers(1, LONGEST))

    def ids() -> np.ndarray:
        return np.sort(rng.integers(0, 5, 64))

    return {
        "count": lambda: window.count(n()),
        "layout": lambda: window.layout(n(), block=(16, 16)),
        "a mask made anew": lambda: (causal & mc.window(9)).layout(n(), block=(16, 16)),
        "a parameter": lambda: wide.layout(n(), block=(16, 16), width=int(rng.integers(0, 9))),
        "documents": lambda: (packed.count(64, doc=ids()), packed.layout(64, doc=ids())),
        "heads": lambda: (per_head.count(n()), per_head.layout(n(), head=1)),
        "a formula": lambda: (formula.count(n()), formula.layout(n())),
        "equals": lambda: (window.equals(causal), packed.subset_of(causal), wide.equals(window)),
        "diff": lambda: mc.diff(window, causal),
        "cache": lambda: (causal & window).cache(queries=2),
        "dense": lambda: window.dense(n()),
        "a call": lambda: compiled(x, x, x),
        "attention": lambda: mc.attention(x, x, x, mc.window(9)),
        "compile": lambda: mc.window(9).compile(16, dtype="float32", target="cpu"),
    }


def growth(rounds: int, warm_up: int) -> Iterator[tuple[str, float]]:
    """KB that each round of a question leaves behind, by its name, after a warm-up."""
    for name, ask in questions(np.random.default_rng(0)).items():
        for _ in range(warm_up):
            ask()
        before = resident()
        for _ in range(rounds):
            ask()
        yield name, (resident() - before) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=1_000)
    options = parser.parse_args()
    for name, kilobytes in growth(options.rounds, options.warm_up):
        print(f"{kilobytes:8.3f} KB  {name}", flush=True)


if __name__ == "__main__":
    main()
