"""Compiler logs in the user's terms: the emitted line, its text, and the pattern's own line."""

from __future__ import annotations

import re

from maskc.core.bundle import SourceUnit
from maskc.core.errors import BuildFailed
from maskc.core.source import SourceLoc

_ERROR = re.compile(
    r"^[^\s:()]+(?::(?P<c>\d+)(?::\d+)?:|\((?P<cuda>\d+)\):)\s*(?:fatal |catastrophic )?error:?\s*"
    r"(?P<text>.+)$",
    re.MULTILINE,
)
"""`kernel.c:12:5: error: ...` and `kernel.cu(12): error: ...`."""
_ANY = re.compile(r"^.*\b(?:error|fatal|undefined reference)\b.*$", re.MULTILINE | re.IGNORECASE)
_SHOWN = 3
"""Errors quoted; what follows the first few is mostly their echo."""


def build_failed(toolchain: str, unit: SourceUnit, log: str) -> BuildFailed:
    """The error for a refused source; its place is the user's line nearest above the first error.

    Args:
        toolchain: name and version of the compiler.
        unit: the source, with the origins of its lines.
        log: everything the compiler printed.
    """
    lines = unit.source.splitlines()
    quoted, place = [], None
    for error in list(_ERROR.finditer(log))[:_SHOWN]:
        number = int(error["c"] or error["cuda"])
        text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        quoted.append(f"line {number}: {error['text'].strip()}\n        {text}".rstrip())
        place = place or origin(unit, lines, number)
    if not quoted:
        general = _ANY.search(log) or re.search(r"^.*\S.*$", log, re.MULTILINE)
        quoted.append(general[0].strip() if general else "it said nothing")
    return BuildFailed(toolchain, "\n    ".join(quoted), at=place)


def origin(unit: SourceUnit, lines: list[str], line: int) -> SourceLoc | None:
    """The user's position behind a line of the source: its own, or the nearest above it.

    Args:
        lines: the source's. Those of the config header are among them, in their order.
    """
    header, place, above = unit.text.splitlines(), 0, None
    for number, at, _ in sorted(unit.origins, key=lambda origin: origin[0]):
        place = lines.index(header[number - 1], place) + 1
        if place > line:
            break
        above = at
    return above
