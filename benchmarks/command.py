"""`python -m benchmarks`: run a suite, show what one measured, fit the cost model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import click

from benchmarks.runs import Report, save, saved
from maskc.cli.app import Commands
from maskc.cli.options import LENGTH_TYPE, json_option
from maskc.cli.output import FilePath, told, write_json
from maskc.core.errors import CheckFailed, UsageMistake

Command = Callable[..., Any]


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def main() -> None:
    """Timings of maskc beside other libraries, every result checked, from a checkout.

    A mask of your own is timed by `maskc bench`. Exit codes: 0 fine, 1 a build failed, 2 usage,
    3 a result is wrong.
    """


_REPEATS, _DEVICE, _DTYPE = (
    click.option("--repeats", type=click.IntRange(1), default=20, show_default=True),
    click.option("--device", type=click.Choice(("cuda", "cpu")), default="cuda", show_default=True),
    click.option("--dtype", default="bfloat16", show_default=True),
)


def _file(*names: str, help: str) -> Callable[[Command], Command]:
    """An option that names a file."""
    return click.option(*names, type=FilePath(dir_okay=False), metavar="FILE", help=help)


def _shown(command: Command) -> Command:
    """--table and --plot: a file in another form instead of text."""
    table = _file("--table", help="Write a table in Markdown.")
    plot = _file("--plot", help="Draw the results as PNG or SVG.")
    return table(plot(json_option(command)))


@main.command(short_help="Run a suite.")
@click.argument("suite")
@click.option("--target", metavar="T", help="Instead of the suite's own.")
@click.option("--impl", "impls", multiple=True, metavar="NAME", help="Only these of the suite.")
@click.option("--cases", multiple=True, metavar="GLOB", help="Only cases that match.")
@click.option(
    "--direction", type=click.Choice(("fwd", "bwd", "both")), default="both", show_default=True
)
@_REPEATS
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), metavar="M", help="No case starts later."
)
@_file("-o", "--output", help="Write the results there after each case.")
@_file("--into", help="Add the results to a file as one more run, after each case.")
@_shown
def run(
    suite: str, target: str | None, impls: tuple[str, ...], cases: tuple[str, ...], direction: str,
    repeats: int, minutes: float | None, output: str | None, into: str | None, table: str | None,
    plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run SUITE: cpu, sm80, simt, anchors, decoding, documents, globals, selections, splash, heads,
    grids or correctness."""
    from benchmarks.runs import added, next_number
    from benchmarks.suite import Limits, run_suite

    if output and into:
        raise UsageMistake("--output replaces a file, --into adds to one", "give one of them")
    before = saved(Path(into)) if into else None
    number = next_number(before)
    directions = ("fwd", "bwd") if direction == "both" else (direction,)
    deadline = None if minutes is None else monotonic() + 60 * minutes
    limits = Limits(cases, impls=impls, directions=directions, repeats=repeats, deadline=deadline)

    def keep(so_far: Report) -> None:
        if output:
            save(Path(output), so_far)
        if into:
            save(Path(into), added(before, so_far, number))

    with told() as progress:
        report = run_suite(suite, limits, progress=progress, target=target, each=keep)
    _write(added(before, report, number) if into else report, table, plot, as_json)


@main.command(short_help="Show results measured before.")
@click.argument("results", type=FilePath(dir_okay=False))
@_shown
def show(results: str, table: str | None, plot: str | None, as_json: bool) -> None:
    """Show the RESULTS of a suite, a file that --output or --into wrote."""
    report = saved(Path(results))
    if report is None:
        raise UsageMistake(f"{results}: there is no such file", "give a file that a suite wrote")
    _write(report, table, plot, as_json)


@main.command(short_help="Time attention layers of published models.")
@click.option(
    "--n", "lengths", type=LENGTH_TYPE, multiple=True, default=("8k", "32k"), show_default=True,
    metavar="N", help="Tokens: 4096, 8k.",
)  # fmt: skip
@click.option("--layer", default="*", metavar="GLOB", help="Only layers that match.")
@click.option(
    "--impl", "impls", multiple=True, metavar="NAME",
    help="Among eager, sdpa, flex, flex_flash and maskc; all of them, if not given.",
)  # fmt: skip
@click.option(
    "--repeats", type=click.IntRange(0), default=20, show_default=True,
    help="Rounds of timing; 0 only checks.",
)  # fmt: skip
@_DEVICE
@_DTYPE
@_file("-o", "--output", help="Write the results there after each layer.")
@json_option
def layers(
    lengths: tuple[int, ...], layer: str, impls: tuple[str, ...], repeats: int, device: str,
    dtype: str, output: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Layers shaped like those of gpt-oss, Gemma 2 and 3, and Llama 4, and formulas of the score
    (score_*): forward, and both passes.

    Every result is checked against fp64 first. transformers is not needed.
    """
    from benchmarks.layers import IMPLS, as_text, run_layers

    unknown = [impl for impl in impls if impl not in IMPLS]
    if unknown:
        raise UsageMistake(f"no implementation {unknown[0]!r}", f"one of {', '.join(IMPLS)}")
    with told() as progress:
        report = run_layers(
            lengths, only=layer, impls=impls or tuple(IMPLS), repeats=repeats, device=device,
            dtype=dtype, progress=progress,
            each=lambda so_far: save(Path(output), so_far) if output else None,
        )  # fmt: skip
    if as_json:
        write_json(report)
    else:
        click.echo(as_text(report), nl=False)
    _refuse_wrong(report, lambda row: f"{row['case']} at {row['n']}")


@main.command(short_help="Check tiny models of transformers on a device.")
@click.argument("names", nargs=-1, metavar="[MODEL]...")
@_DEVICE
@_DTYPE
@click.option("--n", type=LENGTH_TYPE, default=300, show_default=True, metavar="N")
def models(names: tuple[str, ...], device: str, dtype: str, n: int) -> None:
    """Forward, generate and gradients of tiny random models, beside eager attention's.

    MODEL is mistral, gemma2, gemma3, gpt_oss or llama4; all of them, if not given.
    """
    from benchmarks.models import MODELS, checks
    from maskc.lab.environment import environment

    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise UsageMistake(f"no model {unknown[0]!r}", f"one of {', '.join(MODELS)}")
    wrong = []
    for what, found, right in checks(names or tuple(MODELS), device, dtype, n):
        click.echo(f"{what}: {'ok' if right else 'WRONG'}\n{found}\n")
        wrong += [] if right else [what]
    about = environment(device)
    click.echo(", ".join(f"{name} {x}" for name, x in about.items() if x is not None))
    if wrong:
        raise CheckFailed(f"different from eager attention: {', '.join(wrong)}")


def _write(report: Report, table: str | None, plot: str | None, as_json: bool) -> None:
    """Whatever was asked for; text where nothing was."""
    from benchmarks import standings
    from benchmarks.report import table as as_text

    if table:
        Path(table).write_text(standings.markdown(report))
    if plot:
        standings.draw(report, plot)
    if as_json:
        write_json(report)
    elif not (table or plot):
        click.echo(as_text(report), nl=False)
    _refuse_wrong(report, lambda row: f"{row['case']} {row['direction']}")


def _refuse_wrong(report: Report, named: Callable[[Report], str]) -> None:
    """Raise CheckFailed where a result of maskc is wrong; what could not run is no result."""
    rows = (row for row in report["rows"] if row["impl"] == "maskc" and not row.get("raised"))
    if wrong := [named(row) for row in rows if not row["ok"]]:
        raise CheckFailed(f"{len(wrong)} results of maskc are wrong: {', '.join(wrong)}")
