"""The group of commands. Only here are errors caught and printed."""

from __future__ import annotations

import json
import sys
import warnings

import click

from maskc import __version__
from maskc.cli.bench import bench
from maskc.cli.calibrate import calibrate
from maskc.cli.compile import compile_command
from maskc.cli.doctor import doctor
from maskc.cli.evaluate import evaluate
from maskc.cli.explain import explain
from maskc.cli.explore import explore
from maskc.cli.output import done, is_terminal
from maskc.cli.patterns import init, patterns
from maskc.cli.plan import plan
from maskc.cli.report import report
from maskc.cli.test import test
from maskc.cli.verify import verify
from maskc.cli.visualize import visualize
from maskc.core.errors import MaskcError, SeveralErrors
from maskc.core.source import SourceLoc

_JSON = "maskc.json"


class Commands(click.Group):
    """Turns errors into messages and exit codes: 1 pattern or build, 2 usage, 3 failed check."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note whether errors are wanted as JSON before anything can go wrong."""
        ctx.meta[_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except MaskcError as error:
            done()
            _show(error, ctx.meta[_JSON])
            ctx.exit(error.exit_code)
        except click.UsageError as error:
            if not ctx.meta[_JSON]:
                raise
            _write_json([_usage(error)], error.exit_code)
            ctx.exit(error.exit_code)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="maskc")
def main() -> None:
    """Compile attention masks, written as sets of (query, key) pairs, into block-sparse kernels.

    FILE is a pattern file or the name of a published mask (maskc patterns lists them).
    A pattern file is executed as Python; --expr parses an expression and executes nothing.
    Results go to stdout, everything else to stderr. Exit codes: 0 success; 1 the pattern, the
    build or a property test failed; 2 wrong usage; 3 generated files differ, or a check failed.
    """


for command in (
    compile_command, visualize, explore, explain, verify, test, bench, evaluate, report, plan,
    calibrate, doctor, patterns, init,
):  # fmt: skip
    main.add_command(command)


# ------------------------------------------------------------------ mistakes


def _show(error: MaskcError, as_json: bool) -> None:
    if as_json:
        parts = error.errors if isinstance(error, SeveralErrors) else (error,)
        _write_json([_plain(part) for part in parts], error.exit_code)
        return
    text = str(error)
    click.echo(_colored(text) if is_terminal(sys.stderr) else text, err=True)


def _write_json(errors: list[dict[str, object]], exit_code: int) -> None:
    click.echo(json.dumps({"errors": errors, "exit_code": exit_code}, indent=2), err=True)


def _plain(error: MaskcError) -> dict[str, object]:
    at = error.at
    place = (
        {"file": at.file, "line": at.line, "column": at.col} if isinstance(at, SourceLoc) else at
    )
    hint = error.hint.format(*error.args) if error.hint else ""
    return {"code": error.code, "at": place, "finding": error.finding, "hint": hint}


def _usage(error: click.UsageError) -> dict[str, object]:
    hint = error.ctx.get_usage() if error.ctx else ""
    return {"code": "usage", "at": None, "finding": error.format_message(), "hint": hint}


def _colored(text: str) -> str:
    """The message with its code, caret and hint in colour."""
    return "\n".join(map(_colored_line, text.split("\n")))


def _colored_line(line: str) -> str:
    code, space, rest = line.partition(" ")
    if code.startswith("MC") and code[2:].isdigit():
        return click.style(code, fg="red", bold=True) + space + click.style(rest, bold=True)
    if line.strip() and not line.strip(" ^"):
        return click.style(line, fg="red", bold=True)
    if line.startswith("    hint: "):
        return click.style(line, fg="cyan")
    return line


def _show_warning(message: Warning | str, *place: object, **more: object) -> None:
    """Print a warning in one line, without the line of maskc that raised it."""
    click.echo(f"warning: {message}", err=True)
