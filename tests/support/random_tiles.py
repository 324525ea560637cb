"""Random masks times random tiles, in child processes: neither an abort nor a wrong tile.

    python -m tests.support.random_tiles --masks 20000 [--seed 0] [--batch 100] [--checked]

Every mask is drawn together with its meaning, a NumPy formula written from docs/language.md. A
batch of masks runs in a process of its own, which names every mask before it begins it: whatever
kills the process is attributed to one mask, and the rest of the batch goes on in another process.
isl's budget is drawn, too, so that it runs out everywhere, and masks take less time.
`--checked` has glibc check the heap at every call (needs libc_malloc_debug).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import maskc as mc
from maskc.plan import recipe

ROOT = Path(__file__).parents[2]

Pairs = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
"""(q [n_q, 1], k [1, n_kv], n_q, n_kv) -> booleans that broadcast to [n_q, n_kv]."""


@dataclass(frozen=True)
class Drawn:
    """A mask and what it means."""

    mask: mc.Mask
    keep: Pairs
    text: str


class Draw:
    """One mask of a seed, and lengths and tiles for it."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        """low .. high, both included."""
        return int(self.rng.integers(low, high + 1))

    def one_of(self, *values: int) -> int:
        return values[self.number(0, len(values) - 1)]

    def mask(self, depth: int = 3) -> Drawn:
        if depth == 0 or self.rng.random() < 0.15:
            return self._atom()
        if self.rng.random() < 0.1:
            inner = self.mask(depth - 1)
            return Drawn(~inner.mask, lambda *at: ~inner.keep(*at), f"~{inner.text}")
        a, b = self.mask(depth - 1), self.mask(depth - 1)
        match self.number(0, 5):
            case 0 | 1:
                mask, keep, sign = a.mask & b.mask, lambda *at: a.keep(*at) & b.keep(*at), "&"
            case 2 | 3:
                mask, keep, sign = a.mask | b.mask, lambda *at: a.keep(*at) | b.keep(*at), "|"
            case 4:
                mask, keep, sign = a.mask - b.mask, lambda *at: a.keep(*at) & ~b.keep(*at), "-"
            case _:
                mask, keep, sign = a.mask ^ b.mask, lambda *at: a.keep(*at) ^ b.keep(*at), "^"
        return Drawn(mask, keep, f"({a.text} {sign} {b.text})")

    def _atom(self) -> Drawn:
        atoms = (
            self._causal, self._window, self._dilated, self._strided, self._prefix, self._blocks,
            self._affine, self._residue, self._floor, self._floors,
        )  # fmt: skip
        return atoms[self.number(0, len(atoms) - 1)]()

    def _align(self) -> tuple[str, int]:
        return (("end", 1), ("start", 0))[self.number(0, 1)]

    def _causal(self) -> Drawn:
        align, by = self._align()
        mask = mc.causal(align=align)
        return Drawn(mask, lambda q, k, n, m: k <= q + by * (m - n), str(mask))

    def _window(self) -> Drawn:
        (align, by), left, right = self._align(), self.number(0, 20), self.number(0, 6)
        mask = mc.window(left, right, align=align)

        def keep(q: np.ndarray, k: np.ndarray, n: int, m: int) -> np.ndarray:
            apart = q + by * (m - n) - k
            return (apart <= left) & (-apart <= right)

        return Drawn(mask, keep, str(mask))

    def _dilated(self) -> Drawn:
        (align, by), left, stride = self._align(), self.number(0, 8), self.number(2, 9)
        mask = mc.dilated(left, stride=stride, align=align)

        def keep(q: np.ndarray, k: np.ndarray, n: int, m: int) -> np.ndarray:
            apart = q + by * (m - n) - k
            return (apart >= 0) & (apart <= left * stride) & (apart % stride == 0)

        return Drawn(mask, keep, str(mask))

    def _strided(self) -> Drawn:
        stride = self.number(2, 12)
        phase = self.number(0, stride - 1)
        return Drawn(
            mc.strided(stride, phase), lambda q, k, n, m: k % stride == phase,
            f"strided({stride}, {phase})",
        )  # fmt: skip

    def _prefix(self) -> Drawn:
        size = self.number(0, 20)
        return Drawn(mc.prefix(size), lambda q, k, n, m: k < size, f"prefix({size})")

    def _blocks(self) -> Drawn:
        (align, by), size = self._align(), self.number(2, 17)
        mask = mc.block_diagonal(size, align=align)
        return Drawn(mask, lambda q, k, n, m: (q + by * (m - n)) // size == k // size, str(mask))

    def _affine(self) -> Drawn:
        a, b, c = self.number(-4, 4), self.number(-4, 4), self.number(-30, 60)
        return Drawn(
            mc.where(lambda q, k: a * q + b * k + c >= 0),
            lambda q, k, n, m: a * q + b * k + c >= 0, f"where({a} * q + {b} * k + {c} >= 0)",
        )  # fmt: skip

    def _residue(self) -> Drawn:
        a, b, den = self.number(-3, 3), self.number(-3, 3), self.number(2, 9)
        rest = self.number(0, den - 1)
        return Drawn(
            mc.where(lambda q, k: (a * q + b * k) % den <= rest),
            lambda q, k, n, m: (a * q + b * k) % den <= rest,
            f"where(({a} * q + {b} * k) % {den} <= {rest})",
        )  # fmt: skip

    def _floor(self) -> Drawn:
        den, shift = self.number(2, 11), self.number(-9, 9)
        return Drawn(
            mc.where(lambda q, k: k <= q // den + shift),
            lambda q, k, n, m: k <= q // den + shift, f"where(k <= q // {den} + {shift})",
        )  # fmt: skip

    def _floors(self) -> Drawn:
        one, two, den = self.number(2, 9), self.number(2, 9), self.number(2, 5)
        return Drawn(
            mc.where(lambda q, k: (q // one) % den <= (k // two) % den),
            lambda q, k, n, m: (q // one) % den <= (k // two) % den,
            f"where((q // {one}) % {den} <= (k // {two}) % {den})",
        )  # fmt: skip

    def lengths(self) -> tuple[int, int]:
        n = self.number(1, 90)
        return (n, n) if self.rng.random() < 0.4 else (n, self.number(1, 90))

    def tile(self) -> tuple[int, int]:
        side = self.one_of(1, 2, 3, 4, 5, 7, 8, 16, 31, 64)
        return (side, side) if self.rng.random() < 0.4 else (side, self.number(1, 40))


def tiles_of(keep: Pairs, n_q: int, n_kv: int, tile: tuple[int, int]) -> np.ndarray:
    """uint8 [rows, columns]: 0 no pair of a tile is kept, 1 some, 2 all inside the lengths."""
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None]
    live = np.broadcast_to(keep(q, k, n_q, n_kv), (n_q, n_kv))
    starts = [np.arange(0, n, size) for n, size in zip((n_q, n_kv), tile, strict=True)]
    some, every = (
        pick.reduceat(pick.reduceat(live, starts[0], axis=0), starts[1], axis=1)
        for pick in (np.logical_or, np.logical_and)
    )
    return np.where(every, 2, some).astype(np.uint8)


# ------------------------------------------------------------------ children


def run_batch(seed: int, first: int, stop: int) -> None:
    """Check masks first .. stop - 1 of a seed; one line of JSON before and after each."""
    for number in range(first, stop):
        draw = Draw(seed, number)
        drawn = draw.mask(draw.one_of(1, 1, 2, 2, 3))
        recipe._OPERATIONS = int(10 ** draw.rng.uniform(2.5, 5.0))
        tile = draw.tile()
        print(json.dumps({"mask": number, "text": drawn.text, "tile": tile}), flush=True)
        if os.environ.get("MASKC_TEST_ABORT") == str(number):
            os.abort()
        wrong = list(_compare(drawn, tile, draw))
        print(json.dumps({"done": number, "wrong": wrong}), flush=True)


def _compare(drawn: Drawn, tile: tuple[int, int], draw: Draw) -> Iterator[str]:
    n_q, n_kv = draw.lengths()
    found = drawn.mask.layout(n_q, n_kv, block=tile).to_dense()
    if not np.array_equal(found, tiles_of(drawn.keep, n_q, n_kv, tile)):
        yield f"layout({n_q}, {n_kv}, block={tile})"


@dataclass
class Report:
    """What happened to all masks."""

    masks: int = 0
    aborts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0


def check(masks: int, seed: int = 0, batch: int = 100, checked: bool = False,
          first: int = 0) -> Report:  # fmt: skip
    """Run masks first .. first + masks - 1 of a seed, `batch` of them in a process."""
    report = Report()
    number, last = first, first + masks
    while number < last:
        number = _batch(report, seed, number, min(number + batch, last), checked)
    return report


def _batch(report: Report, seed: int, first: int, stop: int, checked: bool) -> int:
    """Returns the number of the mask to go on with."""
    env = dict(os.environ)
    if checked:
        env |= {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}
        env |= {"MALLOC_PERTURB_": "173"}
    words = [sys.executable, "-m", "tests.support.random_tiles", "--child"]
    words += map(str, (seed, first, stop))
    begun: dict[str, object] = {}
    since = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=env, text=True
        ) as child,
    ):
        for line in child.stdout:
            said = json.loads(line)
            if "done" not in said:
                begun, since = said, time.monotonic()
                continue
            report.masks += 1
            report.slowest = max(report.slowest, time.monotonic() - since)
            report.wrong += [f"{seed}:{said['done']} {begun['text']} {w}" for w in said["wrong"]]
            begun = {}
        if child.wait() == 0:
            return stop
        errors.seek(0)
        error = errors.read()
    last = error.strip().splitlines()[-1:]
    if not begun:
        raise RuntimeError(f"a child ended with {child.returncode} beside its masks: {error}")
    report.masks += 1
    report.aborts.append(f"{seed}:{begun['mask']} {begun['text']} {begun['tile']} ended with "
                         f"{child.returncode}: {last}")  # fmt: skip
    return int(begun["mask"]) + 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--masks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--checked", action="store_true")
    parser.add_argument("--child", type=int, nargs=3, metavar=("SEED", "FIRST", "STOP"))
    given = parser.parse_args()
    if given.child:
        run_batch(*given.child)
        return
    report = check(given.masks, given.seed, given.batch, given.checked, given.first)
    for line in (*report.aborts, *report.wrong):
        print(line)
    print(
        f"{report.masks} masks: {len(report.aborts)} aborts, "
        f"{len(report.wrong)} with wrong tiles; the slowest mask took {report.slowest:.1f} s"
    )
    sys.exit(bool(report.aborts or report.wrong))


if __name__ == "__main__":
    main()
