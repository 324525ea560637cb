"""Writes the report as Markdown, drawings as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from maskc.lab.report.document import Block, Code, Command, Document, Figure, ReportTable, Words

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|!~&])")
_UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """A text on one line in which nothing is a mark of Markdown or HTML."""
    line = " ".join(_UNSHOWN.sub("\ufffd", text).split())
    line = _MARKS.sub(r"\\\1", line)
    return re.sub(r"^(\d+)([.)]) |^([-+=]) ", lambda m: f"\\{m[0]}" if m[3] else f"{m[1]}\\{m[2]} ",
                  line)  # fmt: skip


def _marks(text: str) -> str:
    """More backticks in a row than the text has."""
    return "`" * (1 + max(map(len, re.findall(r"`+", text)), default=0))


def fenced(text: str) -> str:
    """Lines between fences that none of them can end."""
    kept = _UNSHOWN.sub("\ufffd", text).rstrip("\n")
    fence = max("```", _marks(kept), key=len)
    return f"{fence}text\n{kept}\n{fence}"


def quoted(text: str) -> str:
    """A text on one line in a fixed font."""
    kept = " ".join(_UNSHOWN.sub("\ufffd", text).split())
    marks = _marks(kept)
    space = " " if "`" in kept else ""
    return f"{marks}{space}{kept}{space}{marks}"


def markdown(report: Document) -> str:
    """The whole report."""
    parts = [f"# {plain(report.title)}", plain(report.subtitle), quoted(report.formula)]
    for section in report.sections:
        parts.append(f"## {plain(section.title)}")
        for block in section.blocks:
            parts += _block(block)
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Words(text):
            yield plain(text)
        case Code(text, caption):
            yield plain(caption)
            yield fenced(text)
        case Command(text):
            yield f"Made by {quoted(text)}"
        case Figure(_, caption, twin):
            yield plain(caption)
            yield fenced(twin)
        case ReportTable(heads, rows, numbers):
            sides = "|".join("---:" if i in numbers else "---" for i in range(len(heads)))
            yield "\n".join([_line(heads), f"|{sides}|", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"
