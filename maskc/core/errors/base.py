"""The base of all errors: a code, a place, a finding, a remedy."""

from __future__ import annotations

from maskc.core.source import SourceLoc


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

    def __init__(self, *args: object, at: SourceLoc | str | None = None) -> None:
        self.args = args
        self.at = at
        super().__init__(*args)

    @property
    def finding(self) -> str:
        """The message with its arguments, without place and hint."""
        return self.message.format(*self.args)

    def __str__(self) -> str:
        place = f" {self.at}" if self.at is not None else ""
        lines = [f"{self.code}{place}  {self.finding}"]
        if isinstance(self.at, SourceLoc) and (excerpt := self.at.excerpt()):
            lines.append(excerpt)
        if self.hint:
            lines.append(f"    hint: {self.hint.format(*self.args)}")
        return "\n".join(lines)


class SeveralErrors(MaskcError):
    """Every mistake of one pattern file, in the order of its lines."""

    code = "MC001"

    def __init__(self, errors: tuple[MaskcError, ...]) -> None:
        super().__init__(*errors)
        self.errors = errors
        self.exit_code = max(error.exit_code for error in errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)
