"""What the compiler said of kernels, remembered in tests/golden/compiled.txt by their content.

To compile every source in every mode takes longer than all other tests together, and says the same
of the same text. So a test that asks for registers, spills and shared memory is answered from the
ledger where this text was compiled before; a new text is compiled. `make matrix` asks the compiler
about everything again, and `pytest --update-golden` writes what it says.
"""

from __future__ import annotations

import os
from dataclasses import astuple
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from maskc.build import build as compile_source
from maskc.build.binary import KernelUse
from maskc.core.bundle import SourceUnit
from maskc.core.problem import Direction, Features

FILE = Path(__file__).parent.parent / "golden" / "compiled.txt"
"""A line for each: content, then what each entry point takes, then what ptxas warned of."""
ANEW = "MASKC_COMPILE_ANEW"
"""The environment variable with which nothing is answered from the ledger."""
WRITE = "MASKC_WRITE_LEDGER"
"""The one with which what was compiled is written there; `--update-golden` sets both."""


class Report:
    """As BuildReport, of what tests ask for."""

    def __init__(self, kernels: tuple[KernelUse, ...], warnings: str) -> None:
        self.kernels, self.log = kernels, warnings


class Binary:
    """As build.Binary; the machine code is made when somebody asks for it."""

    def __init__(self, asked: tuple[Any, ...], report: Report) -> None:
        self._asked, self.report = asked, report

    @property
    def code(self) -> bytes:
        """The cubin."""
        return compile_source(*self._asked).code


@cache
def known() -> dict[str, str]:
    """The ledger, by content."""
    return _entries() if FILE.exists() else {}


def build(
    unit: SourceUnit, features: Features = frozenset(),
    directions: tuple[Direction, ...] = (Direction.forward,), arch: str = "", mode: str = "usual",
) -> Binary:  # fmt: skip
    """As maskc.build.build of a CUDA source.

    Raises:
        BuildFailed: it does not compile.
    """
    asked = (unit, features, directions, arch, mode)
    names = sorted(feature.name for feature in features)
    passes = [direction.name for direction in directions]
    key = sha256(repr((unit.digest, names, passes, arch, mode)).encode()).hexdigest()[:16]
    if key in known() and ANEW not in os.environ:
        return Binary(asked, _read(known()[key]))
    found = compile_source(*asked).report
    warnings = "\n".join(line for line in found.log.splitlines() if "C75" in line)
    if WRITE in os.environ:
        with FILE.open("a") as file:  # one write of a short line, from any process
            file.write(f"{key} {_written(found.kernels, warnings)}\n")
    return Binary(asked, Report(found.kernels, warnings))


def tidy() -> None:
    """Sort the ledger and drop what is there twice."""
    FILE.write_text("".join(f"{key} {text}\n" for key, text in sorted(_entries().items())))


def _entries() -> dict[str, str]:
    parts = (line.partition(" ") for line in FILE.read_text().splitlines())
    return {key: text for key, _, text in parts}


def _written(kernels: tuple[KernelUse, ...], warnings: str) -> str:
    uses = "; ".join(" ".join(map(str, astuple(kernel))) for kernel in kernels)
    return f"{uses} | {warnings!r}" if warnings else uses


def _read(text: str) -> Report:
    uses, _, warnings = text.partition(" | ")
    kernels = []
    for use in uses.split("; ") if uses else ():
        name, *numbers = use.split(" ")
        kernels.append(KernelUse(name, *map(int, numbers)))
    return Report(tuple(kernels), warnings)
