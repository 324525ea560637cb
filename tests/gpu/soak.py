"""Thousands of launches of random masks, shapes, types and modes, each checked against fp64.

    python tests/gpu/soak.py --launches 10000 --seconds 240
    compute-sanitizer python tests/gpu/soak.py --tiny

Kernels are compiled first, for a pool of masks; then calls are drawn from the pool until there were
enough launches or the time is over. Exit codes: 0 all right, 1 a wrong result or a CUDA error,
2 usage, 3 a launch that does not end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import maskc as mc
from maskc.core.errors import MaskcError
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.testing.strategies import masks
from maskc.verify.samples import sample_data
from tests.support import hopper
from tests.support.exact_attention import (
    DEVICE,
    called,
    excess,
    fits,
    live_pairs,
    results,
    tensors,
    vectors,
)

MASKS = {
    "full": mc.full(),
    "causal": mc.causal(),
    "window": mc.window(40, 7),
    "streaming": mc.causal() & (mc.sinks(5) | mc.window(60)),
    "longformer": mc.window(30, 30) | mc.global_tokens(9),
    "prefix": mc.causal() | mc.prefix(mc.n_kv // 3),
    "blocks": mc.block_diagonal(70),
    "chunked": mc.chunked(90),
    "strided": mc.causal() & mc.strided(5),
    "dilated": mc.dilated(9, stride=7),
    "lattice": mc.offsets([0, 1, 2, 4, 8, 16, 32, 64, 128]),
    "random blocks": mc.random_blocks(32, 2, 1) | mc.window(10),
    "documents": mc.causal() & mc.documents("doc"),
    "flags": mc.flags("seen") | mc.window(3),
    "spans": mc.intervals("span"),
    "tree": mc.tree("walk"),
    "table": mc.block_table("grid", 32),
    "corner": mc.where(lambda q, k: (q >= 100) & (k >= 130)),
    "heads": mc.per_head([mc.causal(), mc.window(9), mc.strided(2), mc.full()]),
    "nothing": mc.sinks(0),
}
HEADS = 4
LENGTHS = [1, 2, 17, 63, 64, 65, 100, 127, 128, 129, 191, 192, 193, 200, 255, 257, 300, 333, 385]
TINY = [1, 40, 65, 130, 193]
EXTRAS = [(), (), ("sink_logits",), ("alibi_slopes",), ("alibi_slopes", "sink_logits")]


@dataclass
class Subject:
    """A mask with its kernels, and calls it was drawn for."""

    name: str
    mask: mc.Mask
    attn: mc.CompiledMask
    dim: int
    dtype: torch.dtype
    features: dict[str, object]
    calls: list[tuple[int, int, dict, torch.Tensor]] = field(default_factory=list)
    """(n_q, n_kv, data, live pairs)."""

    def __str__(self) -> str:
        return f"{self.name} ({self.mask}), {self.dim}, {self.dtype}, {sorted(self.features)}"


def random_masks(count: int, number: int) -> Iterator[tuple[str, mc.Mask]]:
    """Masks per head drawn by hypothesis."""
    found: list[mc.Mask] = []

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(masks(max_depth=2))
    def take(mask: mc.Mask) -> None:
        if fits(mask, 1):
            found.append(mask)

    take()
    for index, mask in enumerate(found):
        yield f"random {index}", mask


def subject(
    name: str, mask: mc.Mask, rng: random.Random, lengths: list[int], calls: int
) -> Subject:
    """A mask made to run some way."""
    dims = Target.named(hopper.TARGET).head_dims or (64, 128)
    dim, dtype = rng.choice(dims), rng.choice(["bfloat16", "float16"])
    attn = hopper.compiled(
        mask, dim, dtype, HEADS if name == "heads" else None,
        rng.choice(["default", "persistent"]), rng.choice([256, 1, 2]),
    )  # fmt: skip
    features: dict[str, object] = dict(vectors(rng.choice(EXTRAS), HEADS, rng.randrange(99)))
    if rng.random() < 0.25:
        features["softcap"] = 3.0
    made = Subject(name, mask, attn, dim, getattr(torch, dtype), features)
    for _ in range(calls):
        n_q = rng.choice(lengths)
        n_kv = n_q if rng.random() < 0.5 else rng.choice(lengths)
        data = sample_data(mask, n_q, n_kv, seed=rng.randrange(99))
        made.calls.append((n_q, n_kv, data, live_pairs(mask, n_q, n_kv, data, HEADS)))
    return made


def prepared(options: argparse.Namespace, rng: random.Random) -> list[Subject]:
    """The pool, compiled."""
    count = 30 if options.tiny else options.masks
    pool = [*MASKS.items(), *random_masks(4 * count, options.seed)]
    pool = [pool[i % len(pool)] for i in range(count)]
    lengths, calls = (TINY, 1) if options.tiny else (LENGTHS, 10)
    subjects = [subject(name, mask, rng, lengths, calls) for name, mask in pool]

    def build(each: Subject) -> None:
        names = {"sink_logits": "sinks", "alibi_slopes": "alibi"}
        each.attn.warmup([names.get(name, name) for name in each.features])

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        list(workers.map(build, subjects))
    return subjects


# ------------------------------------------------------------------ running


class Watchdog(threading.Thread):
    """Ends the process where nothing was heard for too long: a kernel that waits for ever."""

    def __init__(self, patience: float) -> None:
        super().__init__(daemon=True)
        self.patience, self.heard, self.doing = patience, time.monotonic(), "nothing yet"

    def pat(self, doing: str) -> None:
        self.heard, self.doing = time.monotonic(), doing

    def run(self) -> None:
        while time.monotonic() - self.heard < self.patience:
            time.sleep(0.5)
        print(f"hangs for {self.patience:g} s: {self.doing}", flush=True)
        os._exit(3)


@dataclass
class Verdicts:
    """Errors on the device, read now and then."""

    pending: list[tuple[str, list[str], torch.Tensor]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, title: str, errors: dict[str, torch.Tensor]) -> None:
        """`errors`: at most 1 where all is well."""
        if errors:
            values = torch.stack([x.double() for x in errors.values()])
            self.pending.append((title, list(errors), values))

    def read(self) -> None:
        """Waits for the device."""
        for title, names, values in self.pending:
            for name, value in zip(names, values.tolist(), strict=True):
                if not value <= 1:
                    self.wrong.append(f"{title}: {name} has {value:.3g} times the error allowed")
                    print(self.wrong[-1], flush=True)
        self.pending.clear()


BACKWARD = Direction.backward in Target.named(hopper.TARGET).directions


def run(each: Subject, rng: random.Random, verdicts: Verdicts) -> int:
    """One call of a subject, checked; returns the passes that were launched."""
    n_q, n_kv, data, live = rng.choice(each.calls)
    number, scale = rng.randrange(1 << 20), rng.choice([None, None, None, 0.3, -0.2, 0.0])
    batch = rng.choice([1, 2, 3])
    kv_heads, deterministic = rng.choice([1, 2, 4]), rng.random() < 0.5
    made = tensors(n_q, n_kv, each.dim, each.dtype, number, batch=batch, heads=HEADS,
                   kv_heads=kv_heads)  # fmt: skip
    if rng.random() < 0.3:
        made = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made]
    features = {**each.features, "scale": scale}
    title = (f"{each}: n {n_q} x {n_kv}, batch {batch}, kv heads {kv_heads}, scale {scale}, "
             f"deterministic {deterministic}, seed {number}")  # fmt: skip
    found = called(each.attn, *made[:3], made[3] if BACKWARD else None, data=data,
                   deterministic=deterministic, **features)  # fmt: skip
    exact, rough = (
        results(*made, live, kind, backward=BACKWARD, **features)
        for kind in (torch.float64, each.dtype)
    )
    verdicts.add(title, excess(found, exact, rough))
    again = called(each.attn, *made[:3], data=data, **features)
    differs = [(found[name] != again[name]).any() for name in ("out", "lse")]
    verdicts.add(f"{title}, again", {"its bits": 2 * torch.stack(differs).any()})
    return 3 if BACKWARD else 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=10_000, help="passes to launch")
    parser.add_argument("--seconds", type=float, default=240, help="then stop, compiling excluded")
    parser.add_argument("--masks", type=int, default=48, help="size of the pool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=60, help="seconds that mean a hang")
    parser.add_argument("--tiny", action="store_true", help="thirty tiny masks, once each")
    options = parser.parse_args()
    rng, verdicts = random.Random(options.seed), Verdicts()
    begin = time.monotonic()
    subjects = prepared(options, rng)
    print(f"{len(subjects)} masks compiled in {time.monotonic() - begin:.0f} s", flush=True)
    watchdog = Watchdog(options.patience * (20 if options.tiny else 1))
    watchdog.start()
    begin, launched, calls, recent = time.monotonic(), 0, 0, []
    turns = iter(subjects) if options.tiny else iter(lambda: rng.choice(subjects), None)
    try:
        for each in turns:
            recent = [*recent[-9:], str(each)]
            launched += run(each, rng, verdicts)
            calls += 1
            if options.tiny or calls % 10 == 0:
                verdicts.read()
                watchdog.pat("; ".join(recent))
            over = launched >= options.launches or time.monotonic() - begin > options.seconds
            if over and not options.tiny:
                break
        verdicts.read()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    except (RuntimeError, MaskcError) as error:
        print(f"{error}\none of: " + "\n        ".join(recent), flush=True)
        return 1
    took = time.monotonic() - begin
    print(f"{launched} launches in {took:.0f} s, {len(verdicts.wrong)} results wrong")
    return 1 if verdicts.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
