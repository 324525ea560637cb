"""A report before it is HTML or Markdown: sections of paragraphs, code, tables and figures.

All texts are plain: whoever writes them out makes sure that nothing in them is markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines in a fixed font."""

    text: str
    caption: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Rows of cells."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    """Columns that are flush right."""


@dataclass(frozen=True)
class Figure:
    """A drawing, and a text version of its content."""

    svg: str
    """An <svg> element without scripts, styles and references; every text in it is escaped."""
    caption: str
    twin: str
    """Lines in a fixed font."""


@dataclass(frozen=True)
class Command:
    """The command that reproduces the numbers of a section."""

    text: str


Block = Words | Code | ReportTable | Figure | Command


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    key: str
    """A word of letters, for links."""
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    subtitle: str
    """May be empty."""
    formula: str
    """The mask as text."""
    sections: Sequence[Section]
