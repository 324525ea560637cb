"""From a template to the text of a source.

Templates (`*.j2`) insert typed values and branch; they never compute. They write config headers:
the mask, named constants, and which policies a kernel follows. The kernels are static files
(`*.cuh`, `*.h`), which Jinja does not read; see core/library for how they join.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

import jinja2

from maskc.core.library import tidy
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


def render(template: str, spec: object) -> str:
    """The config header of one source."""
    return tidy(environment().get_template(template).render(spec=spec))
