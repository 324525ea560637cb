"""The base of all errors: a code, a place, a finding, a remedy."""

from __future__ import annotations

import string
from typing import Any

from maskc.core.source import SourceLoc


def with_article(kind: str) -> str:
    """Return the name of a type as a sentence says it: "an int", "a list", "None"."""
    if kind == "NoneType":
        return "None"
    starts_with_vowel = kind[:1].lower() in set("aeiou") or kind.startswith("nd")
    return f"an {kind}" if starts_with_vowel else f"a {kind}"


class _Formatter(string.Formatter):
    """Formats messages; `{1:a}` is the name of a type with its article."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if format_spec == "a":
            return with_article(str(value))
        return super().format_field(value, format_spec)


class MaskcError(Exception):
    """Base of everything maskc raises for a user's mistake.

    Attributes:
        code: `MCnnn`, stable across releases.
        exit_code: what the command line exits with (1 pattern or build, 2 usage, 3 failed check).
        at: the place: a `SourceLoc`, an argument's name, or None.
    """

    code = "MC000"
    exit_code = 1
    message = "{}"
    hint = ""
    hint_at: int | None = None
    """Index of the argument that replaces the hint, where a raiser gives one."""
    _excerpt: str | None = None
    """The quoted line of a pickled error: its file may not be where it is read."""

    def __init__(self, *args: object, at: SourceLoc | str | None = None) -> None:
        self.args = args
        self.at = at
        super().__init__(*args)
        if self.hint_at is not None and len(args) > self.hint_at:
            self.hint = f"{{{self.hint_at}}}"

    @property
    def finding(self) -> str:
        """The message with its arguments, without place and hint."""
        return _Formatter().format(self.message, *self.args)

    def __str__(self) -> str:
        place = f" {self.at}" if self.at is not None else ""
        lines = [f"{self.code}{place}  {self.finding}"]
        if excerpt := self._quoted():
            lines.append(excerpt)
        if self.hint:
            lines.append(f"    hint: {self.hint.format(*self.args)}")
        return "\n".join(lines)

    def _quoted(self) -> str:
        if self._excerpt is not None:
            return self._excerpt
        return self.at.excerpt() if isinstance(self.at, SourceLoc) else ""

    def __reduce__(self) -> tuple[object, ...]:
        """Code, place and text survive, whatever the message was made of."""
        state = {**self.__dict__, "_excerpt": self._quoted()}
        return _restored, (type(self), tuple(map(_portable, self.args)), state)


def _restored(
    kind: type[MaskcError], args: tuple[object, ...], state: dict[str, object]
) -> MaskcError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _Shown(str):
    """Some object as messages show it, in its place."""

    def __new__(cls, text: str, representation: str) -> _Shown:
        shown = super().__new__(cls, text)
        shown.representation = representation
        return shown

    representation: str

    def __repr__(self) -> str:
        return self.representation

    def __reduce__(self) -> tuple[object, ...]:
        return _Shown, (str(self), self.representation)


def _portable(value: object) -> object:
    """Return a value that another process can read and show in the same way."""
    if isinstance(value, tuple):
        return tuple(map(_portable, value))
    if value is None or type(value) in (bool, int, float, str, _Shown):
        return value
    return value if isinstance(value, MaskcError) else _Shown(str(value), repr(value))


class SeveralErrors(MaskcError):
    """Every mistake of one pattern file, in the order of its lines."""

    code = "MC001"

    def __init__(self, errors: tuple[MaskcError, ...]) -> None:
        super().__init__(*errors)
        self.errors = errors
        self.exit_code = max(error.exit_code for error in errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)
