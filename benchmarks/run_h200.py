"""Time and check the sm_80 kernels on the GPU at hand: `python benchmarks/run_h200.py`.

Runs the suite sm80, the host time of a call and the suite correctness, each in a process of its
own, and writes benchmarks/results/{sm80,host,correctness}-h200.json after every case. A case that
takes the process down, or does not end, is recorded as failed and the rest goes on in a new one.
Ends within --minutes. Needs PyTorch and CuPy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import common

JOBS = ("sm80", "host", "correctness")
STALL = 150
"""Seconds without news after which a process is given up."""
RETRIES = 20


def child(job: str, path: Path, seconds: float, options: argparse.Namespace) -> None:
    """One job, from where an earlier process left it."""
    from maskc.bench.host_time import host_time
    from maskc.bench.suite import run_suite

    if job == "host":
        common.save(path, host_time(progress=common.say))
        return
    run_suite(
        job, only=options.only, repeats=options.repeats, progress=common.say, target="sm_80",
        each=partial(common.save, path), resume=common.saved(path),
        deadline=time.monotonic() + seconds,
    )  # fmt: skip


def supervise(job: str, path: Path, ends: float, options: argparse.Namespace) -> None:
    """Run a job in new processes until one of them ends well, or the time is up."""
    for _ in range(RETRIES):
        seconds = ends - time.monotonic()
        if seconds < 20:
            common.say(f"{job}: no time left")
            return
        command = [
            sys.executable, __file__, "--child", job, "--suffix", options.suffix,
            "--minutes", str((seconds - 15) / 60), "--repeats", str(options.repeats),
        ]  # fmt: skip
        if options.only:
            command += ["--only", *options.only]
        if ended_well(subprocess.Popen(command), path, ends):
            return
        common.say(f"{job}: its process ended early; going on with the next case")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=(), help="shell patterns of case names")
    parser.add_argument("--jobs", nargs="*", default=JOBS, choices=JOBS, help="what to run")
    parser.add_argument("--repeats", type=int, default=20, help="rounds of the timing")
    parser.add_argument("--minutes", type=float, default=7.5, help="all jobs together")
    parser.add_argument("--suffix", default="h200", help="names the result files")
    parser.add_argument("--child", choices=JOBS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    paths = {job: common.RESULTS / f"{job}-{options.suffix}.json" for job in JOBS}
    if options.child:
        child(options.child, paths[options.child], 60 * options.minutes, options)
        return
    from maskc.bench.host_time import host_table
    from maskc.bench.report import table

    ends = time.monotonic() + 60 * options.minutes
    for job in options.jobs:
        paths[job].unlink(missing_ok=True)
        supervise(job, paths[job], ends, options)
    for job in options.jobs:
        report, shown = common.saved(paths[job]), host_table if job == "host" else table
        print(f"== {job}\n{shown(report) if report else 'no result'}")


if __name__ == "__main__":
    main()
