"""This package as files: where its templates are, and which state of it this is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_COUNTED = (".py", ".toml", ".j2", ".cuh", ".h")
"""Suffixes of what the compiled result depends on: code, data, templates and their static parts."""


def template_folder() -> Path:
    """Return the folder of templates, in an installed wheel or next to the package in a
    checkout."""
    inside = _PACKAGE / "templates"
    return inside if inside.is_dir() else _PACKAGE.parent / "templates"


def pattern_folder() -> Path:
    """Return the folder of published patterns, in an installed wheel or next to the package."""
    inside = _PACKAGE / "patterns" / "published"
    return inside if inside.is_dir() else _PACKAGE.parent / "patterns"


def _digest(of: Callable[[Path], bytes]) -> str:
    """Return a digest over all files that determine what is compiled. Published patterns are input,
    not code."""
    files = {*_PACKAGE.rglob("*.*"), *template_folder().rglob("*.*")}
    inputs, digest = pattern_folder(), sha256()
    for file in sorted(files):
        if file.suffix in _COUNTED and inputs not in file.parents:
            digest.update(f"{file.name} {file.stat().st_size}".encode() + of(file))
    return digest.hexdigest()


@cache
def state() -> str:
    """Return a hexadecimal digest of the sizes and times of all code, data and templates. It
    changes whenever one of them may have changed."""
    return _digest(lambda file: f" {file.stat().st_mtime_ns}\n".encode())


@cache
def contents() -> str:
    """A digest of all code, data and templates, hexadecimal: the same on every machine."""
    return _digest(lambda file: b"\n" + file.read_bytes())
