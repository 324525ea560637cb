"""The one Jinja environment. Templates insert typed values and branch; they never compute."""

from __future__ import annotations

from enum import Enum
from functools import cache
from pathlib import Path

import jinja2

import maskc
from maskc.emit.spec import KernelSpec, ListsSpec


def template_folder() -> Path:
    """templates/ inside an installed wheel, or beside the package in a checkout."""
    package = Path(maskc.__file__).resolve().parent
    inside = package / "templates"
    return inside if inside.is_dir() else package.parent / "templates"


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


def render(template: str, spec: KernelSpec | ListsSpec) -> str:
    """The text of one source."""
    text = environment().get_template(template).render(spec=spec)
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).strip("\n") + "\n"
