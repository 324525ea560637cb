"""Options of `maskc bench` for suites and for their earlier results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import Any

import click

from maskc.cli.output import FilePath
from maskc.core.errors import UsageMistake

SUITES_HELP = (
    "A suite of cases, not a pattern: cpu, sm80, anchors, decoding, documents, selections, "
    "grids, calibration or correctness."
)
Command = Callable[..., Any]
Report = dict[str, Any]


@dataclass(frozen=True)
class SuiteAsked:
    """The suite, the part of it that runs, and what to do with the results."""

    name: str | None
    impls: tuple[str, ...]
    cases: tuple[str, ...]
    minutes: float | None
    results: str | None
    """A file that was measured before."""
    into: str | None
    table: str | None
    plot: str | None
    calibrate: str | None
    """A file for coefficients of the cost model."""

    @property
    def written(self) -> bool:
        """Whether results go to a file in a form of their own."""
        return bool(self.table or self.plot or self.calibrate)

    def run(
        self, target: str | None, directions: tuple[str, ...], repeats: int,
        progress: Callable[[str], Any],
    ) -> Report:  # fmt: skip
        """Run the suite; with --into, the result is all that the file then holds.

        The file is written after each case: what ends the process early loses one case.
        """
        from maskc.bench.runs import added, next_number
        from maskc.bench.suite import Limits, run_suite

        before = _read(self.into) if self.into and Path(self.into).is_file() else None
        deadline = None if self.minutes is None else monotonic() + 60 * self.minutes
        limits = Limits(
            self.cases, impls=self.impls, directions=directions, repeats=repeats, deadline=deadline
        )
        number = next_number(before)

        def keep(so_far: Report) -> None:
            if self.into:
                _write(self.into, added(before, so_far, number))

        report = run_suite(self.name, limits, progress=progress, target=target, each=keep)
        return added(before, report, number) if self.into else report

    def read(self) -> Report:
        """The results of --from-json."""
        if self.name or self.into:
            hint = "run a suite, or show what one measured"
            raise UsageMistake("--from-json measures nothing", hint, at="--from-json")
        return _read(self.results)

    def write(self, report: Report) -> None:
        """--table, --plot and --calibrate."""
        if not self.written:
            return
        if self.calibrate:
            from maskc.bench.fitting import calibrate

            click.echo(calibrate(report, self.calibrate), nl=False)
        if not (self.table or self.plot):
            return
        from maskc.bench.standings import draw, markdown

        if self.table:
            Path(self.table).write_text(markdown(report))
        if self.plot:
            draw(report, self.plot)


def _write(path: str, report: Report) -> None:
    """Replace a file as a whole: neither a reader nor an interruption finds a part of it."""
    beside = Path(f"{path}.part")
    beside.write_text(json.dumps(report, indent=1) + "\n")
    beside.replace(path)


def _read(path: str) -> Report:
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsageMistake(f"{path}: {error}", "give a file that maskc bench wrote") from None
    if not isinstance(found, dict) or not {"environment", "rows"} <= set(found):
        raise UsageMistake(f"{path} holds no results", "give a file that maskc bench wrote")
    return found


def suite_options(command: Command) -> Command:
    """--suite and what belongs to it; the command gets `suite`, a SuiteAsked."""
    options = (
        click.option("--suite", "name", metavar="NAME", help=SUITES_HELP),
        click.option(
            "--impl", "impls", multiple=True, metavar="NAME", help="Only these of the suite."
        ),
        click.option(
            "--cases", multiple=True, metavar="GLOB", help="Only cases of the suite that match."
        ),
        click.option(
            "--minutes", type=click.FloatRange(0, min_open=True), metavar="M",
            help="No case of the suite starts later.",
        ),
        click.option(
            "--into", type=FilePath(dir_okay=False), metavar="FILE",
            help="Add the results to a JSON file as one more run, after each case.",
        ),
        click.option(
            "--from-json", "results", type=FilePath(dir_okay=False), metavar="FILE",
            help="Show results measured before.",
        ),
        click.option(
            "--table", type=FilePath(dir_okay=False), metavar="FILE",
            help="Write a table in Markdown.",
        ),
        click.option(
            "--calibrate", type=FilePath(dir_okay=False), metavar="FILE",
            help="Write the cost model's coefficients, found by the suite `calibration`.",
        ),
        click.option(
            "--plot", type=FilePath(dir_okay=False), metavar="FILE",
            help="Draw the results as PNG or SVG.",
        ),
    )  # fmt: skip

    @wraps(command)
    def wrapped(
        name: str | None, impls: tuple[str, ...], cases: tuple[str, ...], minutes: float | None,
        results: str | None, into: str | None, table: str | None, plot: str | None,
        calibrate: str | None, **rest: Any,
    ) -> Any:  # fmt: skip
        if calibrate and not results:
            name = name or "calibration"
        mine = SuiteAsked(name, impls, cases, minutes, results, into, table, plot, calibrate)
        return command(suite=mine, **rest)

    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped
