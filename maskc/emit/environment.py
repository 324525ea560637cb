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


class _Bytecode(jinja2.FileSystemBytecodeCache):
    """Templates as Jinja compiles them, where Python keeps compiled modules: `__pycache__`.

    To compile them takes half of the time of a mask's first compilation.
    """

    def __init__(self) -> None:
        any_template = str(template_folder() / "template")
        super().__init__(str(Path(cache_from_source(any_template)).parent))

    def get_source_checksum(self, source: str) -> str:
        """Return a digest of the template, the version of Jinja, and the settings in this file."""
        settings = f"{jinja2.__version__} {os.stat(__file__).st_mtime_ns}\n"
        return sha256((settings + source).encode()).hexdigest()

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read it if it is there and fits."""
        with suppress(pickle.UnpicklingError, EOFError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write it for other processes, unless Python is told to write none."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):  # a folder that nobody may write to
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                super().dump_bytecode(bucket)


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
