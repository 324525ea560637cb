"""Output of results and progress: rich tables and JSON to stdout, progress to stderr."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from maskc.core.errors import UsageMistake

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_PLAIN_WIDTH = 112
"""Columns where the output is not a terminal."""


def write_json(value: object) -> None:
    """Print one JSON document to stdout."""
    echo(json.dumps(value, indent=2))


def columns() -> int:
    """The width of the terminal, or of a page."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _PLAIN_WIDTH


def is_terminal(stream: TextIO | None) -> bool:
    """Whether that is a terminal, and not a stream that was closed (None)."""
    return stream is not None and stream.isatty()


def wants_color() -> bool:
    """Whether stdout is a terminal that has not said otherwise."""
    return is_terminal(sys.stdout) and "NO_COLOR" not in os.environ and not _dumb()


def _dumb() -> bool:
    """Whether the terminal shows escape sequences as they are."""
    return os.environ.get("TERM") == "dumb"


def _console() -> Console:
    from rich.console import Console

    width = None if is_terminal(sys.stdout) else _PLAIN_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


def write_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()
) -> None:
    """A table on stdout; the columns in `numbers` are flush right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, head in enumerate(heads):
        right = index in numbers
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    _line.clear()
    if sys.stdout is not None:
        with _written():
            _console().print(table)


_STYLES = {"ok": "green", "FAILED": "bold red", "missing": "yellow"}


class _Line:
    """The progress line on a terminal's stderr; prints nothing elsewhere."""

    shown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if is_terminal(sys.stderr) and not _dumb():
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[2K{text[:room]}")
            sys.stderr.flush()
            self.shown = True

    def clear(self) -> None:
        """Remove it, before anything else is printed."""
        if self.shown and not sys.stderr.closed:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
        self.shown = False


_line = _Line()
now, done = _line.show, _line.clear
"""Set and clear the progress line on a terminal's stderr."""


def echo(text: str, nl: bool = True, err: bool = False) -> None:
    """Print a line in place of the progress line.

    Raises:
        UsageMistake: stdout takes nothing more, because a disk is full or a device is gone.
    """
    _line.clear()
    with _written():
        click.echo(text, nl=nl, err=err)


@contextmanager
def _written() -> Iterator[None]:
    """Turns the error of a stream that takes nothing more into a mistake; a closed pipe ends."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        hint = "write to a disk with room, or leave the redirection out"
        raise UsageMistake(f"cannot print: {error.strerror}", hint, at="stdout") from None


def one_by_one(items: Sequence[T], doing: str) -> Iterator[T]:
    """Yield items, with a progress line for each on a terminal."""
    try:
        for number, item in enumerate(items, start=1):
            name = getattr(item, "name", item)
            which = f" ({number} of {len(items)})" if len(items) > 1 else ""
            now(f"{doing} {name}{which}")
            yield item
    finally:
        done()


@contextmanager
def told() -> Iterator[Callable[[str], object]]:
    """Return a function that shows progress: a line on stderr, replaced on a terminal."""
    if not is_terminal(sys.stderr) or _dumb():
        yield lambda text: click.echo(text, err=True)
        return
    try:
        yield now
    finally:
        done()


class FilePath(click.Path):
    """A path on the command line; one with a null character is a usage mistake."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as it was given."""
        if "\0" in str(value):
            self.fail(f"{value!r} holds a null character: it names no file", param, ctx)
        return super().convert(value, param, ctx)


def write_file(path: Path, text: str) -> None:
    """Write a text, making its folder.

    Raises:
        UsageMistake: that is not possible.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError | ValueError) -> UsageMistake:
    """The mistake of a place that cannot be written."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        file = next((folder for folder in path.parents if folder.is_file()), None)
        reason = reason if file is None else f"{file} is a file, not a folder"
    return UsageMistake(f"cannot write {path}: {reason}", "choose another place with -o", at="-o")


def machine_line(about: Mapping[str, object]) -> str:
    """Say in one line where numbers were measured."""
    known = ((name, value) for name, value in about.items() if name != "rivals")
    return ", ".join(f"{name} {value}" for name, value in known if value is not None)
