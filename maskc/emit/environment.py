"""From a template to the text of a source.

Templates (`*.j2`) insert typed values and branch; they never compute. Most of a kernel lies in
static files (`lib/*.cuh`, `lib/*.h`), which Jinja does not read: a line
`#include "sm90a/lib/x.cuh"` becomes that file's text, so that a source stands alone.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

import jinja2

from maskc.core.library import SHAPING, standing_alone
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
    """The text of one source."""
    defined = [
        name for name, part in SHAPING.items() if getattr(spec, part, None) not in (None, False)
    ]
    return standing_alone(environment().get_template(template).render(spec=spec), defined)
