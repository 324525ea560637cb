"""This package as files: where its templates are, and which state of it this is."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_COUNTED = (".py", ".toml", ".j2", ".cuh", ".h")
"""Suffixes of what the compiled result depends on: code, data, templates and their static parts."""


def template_folder() -> Path:
    """The folder of templates, inside an installed wheel or beside the package in a checkout."""
    inside = _PACKAGE / "templates"
    return inside if inside.is_dir() else _PACKAGE.parent / "templates"


def pattern_folder() -> Path:
    """The folder of published patterns, inside an installed wheel or beside the package."""
    inside = _PACKAGE / "patterns" / "published"
    return inside if inside.is_dir() else _PACKAGE.parent / "patterns"


def _sources() -> list[Path]:
    """The files that decide what is compiled; published patterns are input, not code."""
    found = {*_PACKAGE.rglob("*.*"), *template_folder().rglob("*.*")}
    inputs = pattern_folder()
    return sorted(file for file in found if inputs not in file.parents)


@cache
def state() -> str:
    """A digest of the sizes and times of all code, data and templates, hexadecimal: another one
    whenever something of them may have changed."""
    digest = sha256()
    for file in _sources():
        if file.suffix in _COUNTED:
            found = file.stat()
            digest.update(f"{file.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@cache
def contents() -> str:
    """A digest of all code, data and templates, hexadecimal: the same on every machine."""
    digest = sha256()
    for file in _sources():
        if file.suffix in _COUNTED:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()
