"""Time the CPU kernels beside PyTorch: `python benchmarks/run_cpu.py`.

Needs PyTorch, a C compiler and a quiet machine. Writes benchmarks/results/cpu.json after every
case and prints the table.
"""

from __future__ import annotations

import argparse
from functools import partial

import common


def main() -> None:
    from maskc.bench.report import table
    from maskc.bench.suite import Limits, run_suite

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=(), help="shell patterns of case names")
    parser.add_argument("--repeats", type=int, default=20, help="rounds of the timing")
    options = parser.parse_args()
    path = common.RESULTS / "cpu.json"
    report = run_suite(
        "cpu", Limits(tuple(options.only), repeats=options.repeats), progress=common.say,
        each=partial(common.save, path),
    )  # fmt: skip
    print(table(report))


if __name__ == "__main__":
    main()
