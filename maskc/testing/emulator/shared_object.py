"""Libraries compiled from text and cached by content, so that tests, processes and runs share
them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from maskc.build.cache import CacheWarning, private_folder


class Refused(Exception):
    """The compiler's own words, and where the text lies."""


@cache
def _folder() -> Path:
    """Return the folder of builds. CI starts with an empty one, a developer with the last run's.

    Code is loaded from here. So the rules of the binary cache apply: a folder that others can write
    to is replaced by a temporary one.
    """
    folder = os.environ.get("MASKC_EMULATOR_DIR")
    place = (
        Path(folder) / "maskc-emulator"
        if folder
        else Path(tempfile.gettempdir()) / f"maskc-emulator-{os.geteuid()}"
    )
    try:
        return private_folder(place)
    except OSError as error:
        made = Path(tempfile.mkdtemp(prefix="maskc-emulator-"))
        warnings.warn(
            f"the folder {place} is unusable ({error.strerror or error}): what the emulator builds "
            f"is kept in {made}; set MASKC_EMULATOR_DIR to a directory of your own",
            CacheWarning,
            stacklevel=2,
        )
        return made


@cache
def _compiler(name: str) -> str:
    """The compiler's version, and what it takes this processor for: machines may share the
    folder."""
    command = [name, "-march=native", "-Q", "--help=target", "--version"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def built(
    key: str, suffix: str, command: list[str], source: Callable[[], str] | None = None
) -> Path:
    """Return a file named after its inputs; several processes may build it at once.

    Args:
        key: all inputs of the result, except the compiler and its arguments.
        suffix: the rest of the file's name; a `/` begins a name in a folder of its own.
        command: compiler and arguments; `-o` is added, and the source's file before it.
        source: returns the text of the source; C where `command` names no other language.

    Raises:
        Refused: it does not compile.
    """
    name = sha256("\0".join([_compiler(command[0]), key, *command]).encode()).hexdigest()[:32]
    made = _folder() / f"{name}{suffix}"
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_folder()) as room:
            given, text = [], source() if source else ""
            if source:
                given = [f"{room}/kernel.c"]
                Path(given[0]).write_text(text)
            result = subprocess.run(
                [*command, *given, "-o", f"{room}/made"], capture_output=True, text=True
            )
            if result.returncode:
                kept = _folder() / f"{name}.c"
                kept.write_text(text)
                raise Refused(f"{kept}:\n{result.stderr[:4000]}")
            os.replace(f"{room}/made", made)
    return made


def code(source: str) -> str:
    """A text without its lines of comments, which decide nothing."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("//"))


def library(command: list[str], source: str) -> ctypes.CDLL:
    """A shared object; those who ask for the same text share its data too."""
    return ctypes.CDLL(
        str(built(code(source), ".so", [*command, "-shared", "-fPIC"], lambda: source))
    )
