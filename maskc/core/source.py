"""Places in the user's files."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_PUBLISHED = os.path.join(_PACKAGE, "patterns", "published") + os.sep
"""Pattern files of an installed wheel: their lines are shown like a user's."""
_TORCH = os.path.join("", "site-packages", "torch", "")
"""A part of the paths of torch, which runs this package while it traces a user's call."""


@dataclass(frozen=True, slots=True)
class SourceLoc:
    """A position in a file the user wrote; `line` counts from 1, `col` from 1."""

    file: str
    line: int
    col: int
    end_col: int = 0
    """The column after the last one on the same line; 0 if unknown."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"

    def excerpt(self) -> str:
        """The source line with a caret under the place, or '' when the file cannot be read."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        width = max(1, self.end_col - self.col) if self.end_col else 1
        return f"    {text}\n    {' ' * (self.col - 1)}{'^' * width}"


_written: ContextVar[SourceLoc | None] = ContextVar("written", default=None)


@contextmanager
def written_at(place: SourceLoc) -> Iterator[None]:
    """Say that what is called meanwhile was written there, in text that no frame runs."""
    token = _written.set(place)
    try:
        yield
    finally:
        _written.reset(token)


_base: ContextVar[Path | None] = ContextVar("base", default=None)


@contextmanager
def seen_from(folder: Path) -> Iterator[None]:
    """Places found meanwhile are shown relative to this folder, whatever the working directory."""
    token = _base.set(folder)
    try:
        yield
    finally:
        _base.reset(token)


def keep_text(name: str, text: str) -> None:
    """Let messages quote a text that is in no file."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def caller() -> SourceLoc | None:
    """The innermost position outside this package: the call the user wrote.

    Columns come from the bytecode's own position table (PEP 657).
    """
    if (place := _written.get()) is not None:
        return place
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = name.startswith((_PACKAGE, "<string>", "<frozen")) or _TORCH in name
        if not inside or name.startswith(_PUBLISHED):
            return _position(frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return None


def located(frame: FrameType, offset: int) -> SourceLoc:
    """The position of an instruction of a frame, by its offset in bytes."""
    return _position(frame, offset, frame.f_lineno)


def raised_at(error: BaseException, file: str) -> SourceLoc | None:
    """The innermost position in `file` (as messages show it) that an exception passed through."""
    position = None
    trail = error.__traceback__
    while trail is not None:
        if _relative(trail.tb_frame.f_code.co_filename, _folder()) == file:
            position = _position(trail.tb_frame, trail.tb_lasti, trail.tb_lineno)
        trail = trail.tb_next
    return position


def _position(frame: FrameType, instruction: int, lineno: int) -> SourceLoc:
    return _position_in(_Code(frame.f_code), _folder(), instruction, lineno)


class _Code:
    """A code object, compared by identity: equal ones may come from files of other names, and those
    of torch.compile may hold constants without a hash."""

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Code) and self.code is other.code


@lru_cache(maxsize=1024)
def _position_in(key: _Code, folder: str, instruction: int, lineno: int) -> SourceLoc:
    code = key.code
    name, shown = code.co_filename, _relative(code.co_filename, folder)
    for index, (line, end_line, col, end_col) in enumerate(code.co_positions()):
        if index == instruction // 2:
            if line is None or col is None:
                break
            last = _chars(name, line, end_col) + 1 if end_line == line and end_col else 0
            return SourceLoc(shown, line, _chars(name, line, col) + 1, last)
    return SourceLoc(shown, lineno, 1)


def _chars(name: str, line: int, column: int) -> int:
    """PEP 657 counts UTF-8 bytes; people count characters."""
    text = linecache.getline(name, line)
    return len(text.encode()[:column].decode(errors="ignore")) if text else column


def _folder() -> str:
    """The folder that paths are shown relative to; empty if the working directory was removed."""
    try:
        return str(_base.get() or os.getcwd())
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _relative(name: str, folder: str) -> str:
    """The path as the user would type it: relative when it lies below the folder."""
    try:
        return str(Path(name).relative_to(folder)) if folder else name
    except ValueError:
        return name


def outside() -> int:
    """The stack level of the user's own code, counted from the function that asks."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("maskc."):
        frame, level = frame.f_back, level + 1
    return level
