"""From a template to the text of a source.

Templates (`*.j2`) insert typed values and branch; they never compute. They write config headers:
the mask, named constants, and which policies a kernel follows. The kernels are static files
(`*.cuh`, `*.h`), which Jinja does not read; see core/library for how they join.
"""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from enum import Enum
from functools import cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

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


class _Bytecode(jinja2.BytecodeCache):
    """Templates as Jinja compiles them, where Python keeps compiled modules: `__pycache__`.

    To compile them takes half of the time of a mask's first compilation.
    """

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return the file of a template's bytecode."""
        return cache_from_source(filename) if filename else ""

    def get_source_checksum(self, source: str) -> str:
        """Return a digest of the template, the version of Jinja, and the settings in this file."""
        settings = f"{jinja2.__version__} {os.stat(__file__).st_mtime_ns}\n"
        return sha256((settings + source).encode()).hexdigest()

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read it if it is there and fits."""
        with suppress(OSError, pickle.UnpicklingError), open(bucket.key, "rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write it for other processes, unless Python is told to write none."""
        if sys.dont_write_bytecode or not bucket.key:
            return
        place = Path(bucket.key)
        part = place.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a folder that nobody may write to
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_bytes(bucket.bytecode_to_string())
                part.replace(place)
            finally:
                part.unlink(missing_ok=True)


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
        bytecode_cache=_Bytecode(),
    )


def render(template: str, spec: object) -> str:
    """The config header of one source."""
    return tidy(environment().get_template(template).render(spec=spec))
