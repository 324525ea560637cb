"""The static parts of kernels, and how a source includes them.

A source is a *config header*: the mask, named constants, and the policies of a kernel. It ends with
`#include "sm90a/forward.cuh"`, a static file of templates/. `standing_alone` inlines the text
of all such files for the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256

from maskc.core.package import template_folder

SWITCHES = (
    "WITH_SCORE", "WITH_SHIFTS", "WITH_CAP", "WITH_PAIR_ROWS", "WITH_PAIR_TILES", "WITH_PAIR_RING",
    "ADDS_DIAGONALS", "ADDS_PAIRS", "WITH_THRESHOLDS", "WITH_DROPOUT", "WITH_FP8", "WITH_PAGES",
    "E4M3_POOLS", "WIDE", "FORMULA_BENDS", "FORMULA_FAR", "HAS_INTERVALS",
    "HAS_ALWAYS_KEPT", "DATA_ROWS", "TILE_RANGES", "GRID", "LONG_SUMS", "DQ_LAUNCH",
    "HALF_SHARE",
    "GATHER_TABLES", "HAS_BOUNDS", "HAS_SELECTIONS",
    "INTERLEAVED", "DOCUMENT_ROWS",
)  # fmt: skip
"""Macros that a config header alone defines, as 1, or that a mode has; otherwise they are 0."""

_INCLUDE = re.compile(r'#\s*include\s+(?:"([\w/.]+)"|(\w+))')
"""An include of a static file, or of a policy: a macro that names one. Headers of the toolkit have
angle brackets and are not inlined."""
_INCLUDES = re.compile(r'^\s*#\s*include\s+["\w]', re.MULTILINE)
_DEFINE = re.compile(r'#\s*define\s+(\w+)\s+(?:(\d+)|"([\w/.]+)")\s*(?://.*)?')
"""A macro that is a number or names a file."""
_BRANCHES = re.compile(r"\s*#\s*(?:if|el|endif|include)")
"""Directives of a static file that may change its text."""
_DIRECTIVES = re.compile(r"\s*#\s*(?:if|el|endif|include|define)")
"""Directives that matter in a config header: its macros decide branches."""
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_COMMENT = re.compile(r"//.*")
_SUM = re.compile(r"(?:\d+|and|or|not|[()<>=!+*\s-])+")
"""A condition whose names have become numbers."""
_ONCE = "#pragma once\n"
"""The first line of a file that a source includes once, however often it is named."""


@cache
def static(file: str) -> str:
    """The text of a static file, by its path below templates/."""
    return (template_folder() / file).read_text("utf-8")


@dataclass
class _Branch:
    """An `#if` that is open."""

    decided: bool
    """Whether the config header determines the condition; otherwise its lines stay for the
    compiler."""
    stays: bool
    """Whether lines here stay."""
    taken: bool
    """Whether this branch, or one before it, is the one that stays."""


def _parts(text: str, split_at: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Split a text at some lines of its preprocessor.

    Yields:
        (the directive without its comment, its line), or ("", all lines up to the next one).
    """
    plain: list[str] = []
    for line in map(str.rstrip, text.splitlines()):
        if split_at.match(line):
            if plain:
                yield "", "\n".join(plain)
            plain = []
            yield _COMMENT.sub("", line).strip(), line
        else:
            plain.append(line)
    if plain:
        yield "", "\n".join(plain)


@lru_cache(maxsize=512)
def _static_parts(body: str) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """Return whether a source includes a static file only once, and the parts of its text."""
    has_pragma = body.startswith(_ONCE)
    text = (body[len(_ONCE) :] if has_pragma else body).strip("\n")
    return has_pragma, tuple(_parts(text, _BRANCHES))


class _Inlining:
    """One source while static files take the places of lines that include them."""

    def __init__(self, macros: tuple[str, ...]) -> None:
        self.known: dict[str, str] = dict.fromkeys(SWITCHES, "0") | dict.fromkeys(macros, "1")
        """Macros that the config header defines: numbers, and files of policies."""
        self.files: dict[str, str] = {}
        """The files that were put in: their texts, in their order."""
        self.marked = ""
        """The file that the latest mark names; the config header has no name."""

    def lines(self, parts: Iterable[tuple[str, str]], file: str = "") -> Iterator[str]:
        """Yield the lines that a text stands for, without branches that the config header rules
        out.

        Args:
            parts: the text, see `_parts`.
            file: the static file that it is; empty for the config header.
        """
        branches: list[_Branch] = []
        stays = True  # whether all open branches do
        for word, line in parts:
            if not word:
                if stays and line.strip():
                    yield from self._mark(file)
                if stays:
                    yield line
                continue
            if word.startswith("#if"):
                asked, line = self._settled(word, line)
                branches.append(_Branch(asked is not None, asked is not False, asked is True))
                open_branch = branches[-1]
            elif word.startswith(("#elif", "#else", "#endif")):
                open_branch = branches.pop()
                if word != "#endif":
                    branches.append(self._next(open_branch, word, file))
            else:
                if stays:
                    yield from self._stays(line, word, branches, file)
                continue
            stays = all(branch.stays for branch in branches)
            outer = branches if word == "#endif" else branches[:-1]
            if not open_branch.decided and all(branch.stays for branch in outer):
                yield from self._mark(file)
                yield line

    def _mark(self, file: str) -> Iterator[str]:
        """Yield a comment that says from which file the next lines are, if it is another one."""
        if file != self.marked:
            self.marked = file
            yield f"\n// ======== {file or 'the config header'}\n"

    def _next(self, branch: _Branch, word: str, file: str) -> _Branch:
        """Return the branch after an `#elif` or `#else`."""
        if not branch.decided:
            return branch
        asked = True if word == "#else" else self._value(word.removeprefix("#elif"))
        if asked is None:
            raise ValueError(f"{file}: {word}: the branches before it are decided, it is not")
        return _Branch(True, asked and not branch.taken, asked or branch.taken)

    def _settled(self, word: str, line: str) -> tuple[bool | None, str]:
        """Return the value of an `#if`, or None and its line without first terms that hold."""
        if word[3:4] not in (" ", "(", "!"):
            return None, line  # #ifdef
        first, _, rest = word[3:].partition("&&")
        if not rest or set(first) & {"(", "|"}:
            return self._value(word[3:]), line
        if not (holds := self._value(first)):
            return holds, line
        line = f"#if {rest.strip()}"
        return self._settled(line, line)

    def _value(self, condition: str) -> bool | None:
        """Return the value of a condition, or None if the config header alone cannot tell."""
        if not set(_NAME.findall(condition)) <= self.known.keys():
            return None
        return _holds(_NAME.sub(lambda name: self.known[name[0]], condition))

    def _stays(self, line: str, word: str, branches: list[_Branch], file: str) -> Iterator[str]:
        """A line, or the file that it includes."""
        settled = all(branch.decided for branch in branches)
        if not file and settled and (defined := _DEFINE.fullmatch(word)):
            self.known[defined[1]] = defined[2] or defined[3]
        included = _INCLUDE.fullmatch(word)
        name = included and (included[1] or self.known.get(included[2]))
        if not name:
            yield from self._mark(file)
            yield line
            return
        try:
            body = static(name)
        except FileNotFoundError:
            yield line  # the compiler says which file is missing
            return
        has_pragma, parts = _static_parts(body)
        if has_pragma and name in self.files:
            return
        self.files[name] = body
        yield from self.lines(parts, name)


@lru_cache(maxsize=1024)
def _holds(condition: str) -> bool | None:
    """Return the value of a condition whose names have become values, None where it is no sum."""
    text = condition.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text).strip()
    if not _SUM.fullmatch(text):
        return None
    return bool(eval(text, {"__builtins__": {}}))  # numbers and operators alone


def tidy(text: str) -> str:
    """The text without spaces at the ends of lines and without two empty lines in a row."""
    return _joined(map(str.rstrip, text.splitlines()))


def _joined(pieces: Iterable[str]) -> str:
    """One text of lines without spaces at their ends, without two empty ones in a row."""
    text = "\n".join(pieces)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.strip("\n") + "\n"


@lru_cache(maxsize=64)
def _whole(text: str, macros: tuple[str, ...] = ()) -> tuple[str, dict[str, str]]:
    """Return the source with all includes inlined, and the texts of the static files."""
    if not _INCLUDES.search(text):
        return text, {}
    made = _Inlining(macros)
    return _joined(made.lines(_parts(text, _DIRECTIVES))), made.files


def standing_alone(text: str, macros: tuple[str, ...] = ()) -> str:
    """Inline all static files that a config header includes.

    A source without includes is returned unchanged.

    Args:
        text: the config header.
        macros: those of SWITCHES that the compiler defines.
    """
    return _whole(text, macros)[0]


def library_of(text: str) -> str:
    """Return the digest, without comments, of the static files that a config header includes; empty
    if it includes none. It identifies the version of these files."""
    files = _whole(text)[1]
    return digest_of("\n".join(f"{name}\n{body}" for name, body in files.items())) if files else ""


def digest_of(text: str) -> str:
    """The sha256 of a text without its comments, hexadecimal."""
    lines = [line.partition("//")[0].rstrip() for line in text.splitlines()]
    return sha256("\n".join(filter(None, lines)).encode()).hexdigest()
