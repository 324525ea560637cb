"""maskc bench: the kernel against dense attention, masked SDPA and FlexAttention, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from maskc.cli.entries import Entry, entries
from maskc.cli.options import (
    Asked,
    data_of,
    json_option,
    length_options,
    problem_options,
    seed_option,
)
from maskc.cli.output import FilePath, told, write_json
from maskc.cli.suites import SuiteAsked, suite_options
from maskc.core.errors import CheckFailed, UsageMistake

Report = dict[str, Any]


@click.command(short_help="Time the kernel beside what torch has, checked.")
@click.argument("file", required=False, type=FilePath())
@click.option("--expr", metavar="E", help="A mask expression instead of a file; runs no code.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Override a parameter."
)
@click.option("--pattern", metavar="NAME", help="Only this pattern of the file.")
@problem_options
@length_options(4096)
@click.option(
    "--kv-heads",
    type=click.IntRange(1),
    metavar="H",
    help="Key/value heads; as --heads, if not given.",
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, metavar="B")
@click.option(
    "--direction", type=click.Choice(("fwd", "bwd", "both")), default="both", show_default=True
)
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True)
@seed_option
@suite_options
@json_option
def bench(
    file: str | None, expr: str | None, settings: tuple[str, ...], pattern: str | None,
    asked: Asked, n: int, n_kv: int, kv_heads: int | None, batch: int, direction: str,
    repeats: int, seed: int, suite: SuiteAsked, as_json: bool,
) -> None:  # fmt: skip
    """Time the mask of FILE, beside PyTorch's attention where torch is installed.

    Every result is checked; exits with 3 where one is wrong.
    """
    directions = ("fwd", "bwd") if direction == "both" else (direction,)
    if (suite.name or suite.results) and (file or expr):
        hint = "drop the file, or --suite and --from-json"
        raise UsageMistake("a suite has cases of its own", hint, at="--suite")
    with told() as progress:
        if suite.results:
            report = suite.read()
        elif suite.name:
            report = suite.run(asked.target, directions, repeats, progress)
        else:
            report = _joined([
                _run(entry, asked, n, n_kv, kv_heads, batch, directions, repeats, seed, progress)
                for entry in entries(file, expr, settings, pattern)
            ])  # fmt: skip
    suite.write(report)
    if as_json:
        write_json(report)
    elif not suite.written:
        from maskc.bench.report import table

        click.echo(table(report), nl=False)
    _refuse_wrong(report)


def _run(
    entry: Entry, asked: Asked, n: int, n_kv: int, kv_heads: int | None, batch: int,
    directions: tuple[str, ...], repeats: int, seed: int, progress: Callable[[str], object],
) -> Report:  # fmt: skip
    from maskc.bench.run import bench_pattern
    from maskc.cli.options import HEADS

    heads = asked.heads_for(entry.mask) or HEADS
    return bench_pattern(
        entry.name, entry.mask, n=n, n_kv=n_kv, heads=heads, kv_heads=kv_heads or heads,
        batch=batch, head_dim=asked.head_dim, dtype=asked.dtype, target=asked.target,
        directions=directions, repeats=repeats, data=data_of(entry, n, n_kv, seed),
        progress=progress,
    )  # fmt: skip


def _joined(reports: list[Report]) -> Report:
    """The reports of several patterns, measured in one process, as one."""
    environment = dict(reports[0]["environment"])
    for part in ("cases", "notes"):
        found = [report["environment"].get(part) for report in reports]
        if all(isinstance(value, dict) for value in found):
            environment[part] = {k: v for value in found for k, v in value.items()}
        elif all(isinstance(value, list) for value in found):
            environment[part] = [item for value in found for item in value]
    return {"environment": environment, "rows": [row for r in reports for row in r["rows"]]}


def _refuse_wrong(report: Report) -> None:
    """Exit 3 where maskc's own result is wrong."""
    wrong = [
        row for row in report["rows"]
        if row["impl"] == "maskc" and not row["ok"] and not row.get("raised")
    ]  # fmt: skip
    if wrong:
        cases = ", ".join(f"{row['case']} {row['direction']}" for row in wrong)
        raise CheckFailed(f"{len(wrong)} results of maskc are wrong: {cases}")
