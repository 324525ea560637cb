"""From a template to the text of a source.

Templates (`*.j2`) insert typed values and branch; they never compute. Most of a kernel lies in
static files (`lib/*.cuh`, `lib/*.h`), which Jinja does not read: a line
`#include "sm90a/lib/x.cuh"` becomes that file's text, so that a source stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache

import jinja2

from maskc.core.package import template_folder


def _finalize(value: object) -> object:
    """Refuse to print anything but text, numbers and names of enum members."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (str, int)):
        return value
    raise TypeError(f"a template may not print a {type(value).__name__}")


@cache
def environment() -> jinja2.Environment:
    """Strict: an unknown name is an error, never an empty string."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folder()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )


_INCLUDE = re.compile(r'^#include "([\w/.]+)"$', re.MULTILINE)
"""A static file; headers of the toolkit come in angle brackets and stay."""


@cache
def static(file: str) -> str:
    """The text of a static file, by its path below templates/, with what it includes."""
    return inlined((template_folder() / file).read_text("utf-8"))


def inlined(text: str) -> str:
    """The text with the static files that it includes, each as often as it is included."""
    return _INCLUDE.sub(lambda line: static(line[1]).rstrip("\n"), text)


def resolved(lines: Iterable[str], name: str, defined: bool) -> Iterator[str]:
    """The lines without `#if NAME`, `#else` and `#endif`, and without what these leave out.

    What shapes a source once and for all needs no macro in it, and sources without it stay as
    they are.
    """
    depth: list[bool | None] = []  # of every #if: whether its lines stay; None: not ours
    for line in lines:
        word = line.split("//")[0].strip()
        if word.startswith("#if"):
            depth.append(defined if word == f"#if {name}" else None)
            if depth[-1] is not None:
                continue
        elif word in ("#else", "#endif") and depth and depth[-1] is not None:
            if word == "#else":
                depth[-1] = not depth[-1]
            else:
                depth.pop()
            continue
        elif word == "#endif":
            depth.pop()
        if False not in depth:
            yield line


def render(template: str, spec: object) -> str:
    """The text of one source."""
    text = inlined(environment().get_template(template).render(spec=spec))
    lines: Iterable[str] = text.splitlines()
    spoken_of = {"WITH_SCORE": "score", "WITH_SHIFTS": "shifts", "WITH_CAP": "caps",
                 "ADDS_DIAGONALS": "adds_diagonals", "WITH_THRESHOLDS": "thresholds",
                 "WITH_DROPOUT": "dropout", "PADDED": "pieces"}  # fmt: skip
    for name, value in spoken_of.items():
        lines = resolved(lines, name, getattr(spec, value, None) not in (None, False))
    lines = [line.rstrip() for line in lines]
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).strip("\n") + "\n"
