"""Time and check kernels on the GPU at hand: `python -m benchmarks.campaign`.

Runs the suite sm80, the host time of a call and the suite correctness, each in a process of its
own, and writes benchmarks/results/{sm80,host,correctness}-h200.json after every case. A case that
takes the process down, or does not end, is recorded as failed and the rest goes on in a new one.
Ends within --minutes. Needs PyTorch and CuPy.

`--jobs anchors` runs the suite of all rivals instead and adds a run to anchors-h200.json; several
runs may share the work (--cases, --impl, --direction, --missing), times are compared inside each.
Cases of the run that was going on when the time was up are missing and can be run again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.files import RESULTS, save, saved

ROOT = Path(__file__).resolve().parent.parent
JOBS = ("sm80", "host", "correctness", "anchors")
STALL = 150
"""Seconds without news after which a process is given up."""
RETRIES = 20
LAST_START = {"anchors": 40}
"""Seconds before the end in which no case of a job starts; 15 for the others."""


def say(text: str) -> None:
    """Progress goes to stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def child(job: str, path: Path, seconds: float, options: argparse.Namespace) -> None:
    """One job, from where an earlier process left it."""
    from benchmarks.host_time import host_time
    from benchmarks.suite import Limits, run_suite
    from maskc.core.errors import UsageMistake

    if job == "host":
        save(path, host_time(progress=say))
        return
    limits = Limits(
        tuple(options.only), repeats=options.repeats, deadline=time.monotonic() + seconds
    )
    if job == "anchors":
        try:
            anchors(path, limits, options)
        except UsageMistake as mistake:  # nothing to do, or another card: no use trying again
            say(str(mistake))
        return
    run_suite(
        job, limits, progress=say, target=options.target or "sm_80",
        each=partial(save, path), resume=saved(path),
    )  # fmt: skip


def anchors(path: Path, limits: object, options: argparse.Namespace) -> None:
    """The suite of all rivals, as one run of the file."""
    from dataclasses import replace

    from benchmarks.runs import added, measured, one_run
    from benchmarks.suite import run_suite

    before = saved(path)
    directions = tuple(options.direction)
    limits = replace(
        limits, impls=tuple(options.impl), directions=directions, seconds=options.seconds,
        without=frozenset(measured(before, directions)) if options.missing else frozenset(),
    )  # fmt: skip
    run_suite(
        "anchors", limits, progress=alive(path), target=options.target,
        each=lambda report: save(path, added(before, report, options.run)),
        resume=one_run(before, options.run),
    )  # fmt: skip


def alive(path: Path) -> Callable[[str], None]:
    """Progress that also counts as news of the result file."""

    def told(text: str) -> None:
        say(text)
        if path.exists():
            os.utime(path)

    return told


def supervise(job: str, path: Path, ends: float, options: argparse.Namespace) -> None:
    """Run a job in new processes until one of them ends well, or the time is up."""
    with tempfile.TemporaryDirectory() as empty:
        # kernels of this job are compiled here and now, so that compiling them can be timed
        cache = {"MASKC_CACHE_DIR": empty} if job == "anchors" else {}
        for _ in range(RETRIES):
            seconds = ends - time.monotonic()
            if seconds < 20:
                say(f"{job}: no time left")
                return
            command = arguments(job, seconds - LAST_START.get(job, 15), options)
            process = subprocess.Popen(command, env=os.environ | cache, cwd=ROOT)
            if ended_well(process, path, ends):
                return
            say(f"{job}: its process ended early; going on with the next case")


def arguments(job: str, seconds: float, options: argparse.Namespace) -> list[str]:
    """The command line of a process for one job."""
    command = [
        sys.executable, "-m", "benchmarks.campaign", "--child", job, "--suffix", options.suffix,
        "--minutes", str(seconds / 60), "--repeats", str(options.repeats),
        "--seconds", str(options.seconds), "--run", str(options.run),
        "--direction", *options.direction,
    ]  # fmt: skip
    for name in ("only", "impl"):
        if getattr(options, name):
            command += [f"--{name}", *getattr(options, name)]
    if options.target:
        command += ["--target", options.target]
    return command + (["--missing"] if options.missing else [])


def ended_well(process: subprocess.Popen, path: Path, ends: float) -> bool:
    """Wait; end a process that is silent for too long or beyond its time."""
    began = time.time()
    while process.poll() is None:
        time.sleep(0.2)
        news = max(began, path.stat().st_mtime if path.exists() else 0)
        if time.time() - news > STALL or time.monotonic() > ends:
            process.kill()
            process.wait()
            return False
    return process.returncode == 0


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", "--cases", nargs="*", default=(), help="shell patterns of case names"
    )
    parser.add_argument("--jobs", nargs="*", default=JOBS[:3], choices=JOBS, help="what to run")
    parser.add_argument("--repeats", type=int, default=20, help="rounds of the timing")
    parser.add_argument("--minutes", type=float, default=7.5, help="all jobs together")
    parser.add_argument("--suffix", default="h200", help="names the result files")
    parser.add_argument("--target", help="of maskc; what this machine has, or sm_80")
    parser.add_argument("--impl", nargs="*", default=(), help="only these (anchors)")
    parser.add_argument(
        "--direction", nargs="*", default=("fwd", "bwd"), choices=("fwd", "bwd"), help="(anchors)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="a rival's time in all rounds (anchors)"
    )
    parser.add_argument(
        "--missing", action="store_true", help="only what no run has of maskc yet (anchors)"
    )
    parser.add_argument("--child", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    paths = {job: RESULTS / f"{job}-{options.suffix}.json" for job in JOBS}
    if options.child:
        child(options.child, paths[options.child], 60 * options.minutes, options)
        return
    from benchmarks.host_time import host_table
    from benchmarks.report import table
    from benchmarks.runs import next_number
    from benchmarks.standings import markdown

    ends = time.monotonic() + 60 * options.minutes
    for job in options.jobs:
        if job == "anchors":
            options.run = next_number(saved(paths[job]))
        else:
            paths[job].unlink(missing_ok=True)
        supervise(job, paths[job], ends, options)
    texts = {"host": host_table, "anchors": markdown}
    for job in options.jobs:
        report = saved(paths[job])
        print(f"== {job}\n{texts.get(job, table)(report) if report else 'no result'}")


if __name__ == "__main__":
    main()
