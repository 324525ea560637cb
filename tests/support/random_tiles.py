"""Random masks times random tiles, in child processes: neither an abort nor a wrong tile.

    python -m tests.support.random_tiles --masks 20000 [--seed 0] [--batch 100] [--checked]

Every mask is drawn together with its meaning, see tests/support/drawn_masks. A batch of masks
runs in a process of its own, which names every mask before it begins it. A crash is attributed to
one mask. The rest of the batch goes on in another process.
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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from maskc.plan import recipe
from tests.support.drawn_masks import FORMULAS, Drawer, Place, tiles

ROOT = Path(__file__).parents[2]

SIDES = (1, 2, 3, 4, 5, 7, 8, 16, 31, 64)
"""Sides of tiles."""


# ------------------------------------------------------------------ children


def run_batch(seed: int, first: int, stop: int) -> None:
    """Check masks first .. stop - 1 of a seed; one line of JSON before and after each."""
    for number in range(first, stop):
        rng = np.random.default_rng([seed, number])
        drawn = Drawer(rng, 1, kinds=FORMULAS).draw(int(rng.choice([1, 1, 2, 2, 3])))
        recipe._OPERATIONS = int(10 ** rng.uniform(2.5, 5.0))
        tile = pair(rng, *rng.choice(SIDES, 2).tolist())
        print(json.dumps({"mask": number, "text": str(drawn.mask), "tile": tile}), flush=True)
        if os.environ.get("MASKC_TEST_ABORT") == str(number):
            os.abort()
        sizes = pair(rng, *rng.integers(1, 91, 2).tolist())
        shows = drawn.shows(Place(*sizes, 0, 0, {}, {}))
        same = np.array_equal(drawn.mask.layout(*sizes, block=tile).to_dense(), tiles(shows, tile))
        wrong = [] if same else [f"layout{sizes}, block={tile}"]
        print(json.dumps({"done": number, "wrong": wrong}), flush=True)


def pair(rng: np.random.Generator, one: int, other: int) -> tuple[int, int]:
    """Two numbers, which are the same at times."""
    return (one, one) if rng.random() < 0.4 else (one, other)


@dataclass
class Report:
    """Outcome of all masks."""

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
