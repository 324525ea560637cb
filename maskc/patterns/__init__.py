"""The library of published masks: `maskc.patterns.longformer(window=128)`.

A pattern is an attribute of this module, read from its file on first use. `names()` lists all
patterns, and `about(name)` returns a pattern's description and paper.
"""

from __future__ import annotations

import ast
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

from maskc.core.package import pattern_folder
from maskc.dsl.pattern import Pattern


class About(NamedTuple):
    """Description of a pattern, from its file."""

    name: str
    title: str
    """One line."""
    paper: str
    """Authors, title and year."""
    file: Path
    link: str
    """Address of the paper."""


@cache
def names() -> tuple[str, ...]:
    """The names of all patterns, sorted."""
    return tuple(sorted(file.stem for file in pattern_folder().glob("[!_]*.py")))


@cache
def about(name: str) -> About:
    """Return the description of a pattern from the docstring of its file, without running it.

    Args:
        name: one of `names()`.

    Raises:
        AttributeError: there is no such pattern.
    """
    if name not in names():
        raise AttributeError(_unknown(name))
    file = pattern_folder() / f"{name}.py"
    text = ast.get_docstring(ast.parse(file.read_bytes())) or name
    title, _, rest = text.partition("\n\n")
    source = " ".join(rest.partition("\n\n")[0].split())
    until_year = re.match(r".*?, (19|20)\d\d\b", source)
    paper = until_year[0] if until_year else source
    address = re.search(r"https://\S+", source)
    link = address[0] if address else ""
    return About(name, " ".join(title.split()).rstrip("."), paper, file, link)


@cache
def _loaded(name: str) -> Pattern[...]:
    from maskc.dsl.loader import load

    return load(about(name).file)[name]  # type: ignore[return-value]


def _unknown(name: str) -> str:
    near = get_close_matches(name, names(), n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"maskc.patterns has no pattern {name!r}{meant}"


def __getattr__(name: str) -> Pattern[...]:
    """Return the pattern of this name."""
    if name.startswith("__"):  # Python looks up its own names, too
        raise AttributeError(f"module 'maskc.patterns' has no attribute {name!r}")
    return _loaded(name)


def __dir__() -> list[str]:
    return [*names(), "about", "names"]
