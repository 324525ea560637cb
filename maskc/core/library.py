"""The static parts of kernels (`templates/*/lib`): `#include "sm90a/lib/x.cuh"` stands for one.

A source that is compiled stands alone: it has their text. One that is kept to be read may have the
lines instead, as `shared` writes it; `expanded` gives the same source back, to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from maskc.core.package import template_folder

_INCLUDE = re.compile(r'^#include "([\w/.]+)"$', re.MULTILINE)
"""A static file; headers of the toolkit come in angle brackets and stay."""
SHAPING = {"WITH_SCORE": "score", "WITH_SHIFTS": "shifts", "WITH_CAP": "caps",
           "ADDS_DIAGONALS": "adds_diagonals", "WITH_THRESHOLDS": "thresholds",
           "WITH_DROPOUT": "dropout", "WIDE": "wide"}  # fmt: skip
"""Macros that are resolved when a source is written, and what of its specification defines each."""
_LEAST = 4
"""Lines of a text that an include line replaces; shorter ones are read faster where they are."""


@cache
def static(file: str) -> str:
    """The text of a static file, by its path below templates/, with what it includes."""
    return inlined((template_folder() / file).read_text("utf-8"))


def inlined(text: str) -> str:
    """The text with the static files that it includes, each as often as it is included."""
    return _INCLUDE.sub(lambda line: static(line[1]).rstrip("\n"), text)


def resolved(lines: Iterable[str], defined: Iterable[str]) -> Iterator[str]:
    """The lines without `#if NAME`, `#else` and `#endif` of SHAPING's names, and without what
    these leave out.

    What shapes a source once and for all needs no macro in it, and sources without it stay as
    they are.
    """
    stays = {f"#if {name}": name in defined for name in SHAPING}
    depth: list[bool | None] = []  # of every #if: whether its lines stay; None: not ours
    dropped = False
    for line in lines:
        word = line.split("//")[0].strip() if line.lstrip().startswith("#") else ""
        if word.startswith("#if"):
            depth.append(stays.get(word))
        elif word == "#else" and depth and depth[-1] is not None:
            depth[-1] = not depth[-1]
        elif word == "#endif":
            ours = depth.pop() is not None
            dropped = False in depth
            if ours:
                continue
        if word in stays or (word == "#else" and depth and depth[-1] is not None):
            dropped = False in depth
        elif not dropped:
            yield line


def standing_alone(text: str, defined: Iterable[str] = ()) -> str:
    """A source with all that it includes, its SHAPING macros resolved, no two empty lines."""
    lines = [line.rstrip() for line in resolved(inlined(text).splitlines(), defined)]
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).strip("\n") + "\n"


@cache
def _blocks() -> dict[str, str]:
    """Include line -> the lines that it stands for where no SHAPING macro is defined; the longest
    first, so that a file goes before those that it includes."""
    folder = template_folder()
    files = sorted(file for kind in ("cuh", "h") for file in folder.glob(f"*/lib/*.{kind}"))
    found = {
        f'#include "{name}"\n': standing_alone(static(name))
        for name in (file.relative_to(folder).as_posix() for file in files)
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def shared(text: str) -> str:
    """A source with include lines in place of the static files whose text it has unchanged."""
    for line, block in _blocks().items():
        if block.count("\n") >= _LEAST:
            text = text.replace(f"\n{block}", f"\n{line}")
    return text


def expanded(text: str) -> str:
    """The source from which `shared` made the text; any other text as it is."""
    return _INCLUDE.sub(lambda line: _blocks().get(f"{line[0]}\n", f"{line[0]}\n")[:-1], text)
