"""Results of the compiler for kernels, remembered in tests/golden by their content.

To compile every source in every mode takes longer than all other tests together, and says the same
of the same text. So a test that asks for registers, spills and shared memory, or how many
instructions of a kind the machine code has, is answered from the ledger where this text was
compiled before. A new text is compiled, and so is an old one that a test asks something new about.
`make matrix` asks the compiler about everything again. `make ledger` adds what is missing, and
`pytest --update-golden` writes all anew.

g++ accepts sources that NVRTC refuses, such as a function that is declared, used and not defined.
So NVRTC's front end reads each source that the emulator builds, too, which takes 0.05 s, and the
ledger remembers which texts it accepts.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from dataclasses import astuple
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from maskc.build import build as compile_source
from maskc.build.binary import KernelUse
from maskc.build.nvrtc import FLAGS
from maskc.core.bundle import SourceUnit
from maskc.core.problem import Direction, Features
from maskc.testing.emulator.shared_object import code
from tests.support import sass

FILE = Path(__file__).parent.parent / "golden" / "compiled.txt"
"""A line for each: content, then what each entry point takes, then what ptxas warned of."""
MACHINE_CODE = FILE.with_name("machine_code.txt")
"""A line for each: content, then a JSON object of counts, by entry point and question."""
ACCEPTED = FILE.with_name("accepted.txt")
"""A line for each source that NVRTC's front end accepts; `make ledger` writes the file anew."""
ANEW = "MASKC_COMPILE_ANEW"
"""The environment variable with which nothing is answered from the ledger."""
WRITE = "MASKC_WRITE_LEDGER"
"""The one with which what was compiled is written there; `--update-golden` sets both."""
USED = "MASKC_LEDGER_USED"
"""The one that names a file to which tests add the contents they ask about. After a run of all
tests, `python -m tests.support.ledger FILE` drops every other line of the ledger."""


class Report:
    """The part of BuildReport that tests read."""

    def __init__(self, kernels: tuple[KernelUse, ...], warnings: str) -> None:
        self.kernels, self.log = kernels, warnings

    def spills(self) -> list[KernelUse]:
        """The kernels that have a stack, or spill registers."""
        return [use for use in self.kernels if use.stack or use.spill_stores or use.spill_loads]


class Binary:
    """Stands in for build.Binary; the machine code is made when somebody asks what the ledger does
    not say."""

    def __init__(self, asked: tuple[Any, ...], key: str, report: Report) -> None:
        self._asked, self._key, self.report = asked, key, report

    @cached_property
    def _functions(self) -> dict[str, str]:
        return sass.functions(sass.disassemble(compile_source(*self._asked).code))

    def count(self, opcode: str, entry: str = "", within: str = "") -> int:
        """Instructions whose opcode is `opcode`, a regular expression, with any suffixes.

        Args:
            opcode: see sass.count.
            entry: of this entry point alone; one that is missing has none.
            within: only in the parts of that name, see sass.PARTS.
        """
        return self._answer(opcode, entry, within)

    def parts(self, within: str, entry: str) -> int:
        """Count the parts of a name, see sass.PARTS."""
        return self._answer("", entry, within)

    def _answer(self, opcode: str, entry: str, within: str) -> int:
        question = f"{opcode} {within}".strip()
        known = counted()[self._key].setdefault(entry, {})
        if question not in known:
            texts = [self._functions.get(entry, "")] if entry else list(self._functions.values())
            parts = [part for text in texts for part in sass.PARTS[within](text)]
            known[question] = sum(sass.count(x, opcode) for x in parts) if opcode else len(parts)
            _append(MACHINE_CODE, self._key, json.dumps({entry: {question: known[question]}}))
        return known[question]


@cache
def counted() -> dict[str, dict[str, dict[str, int]]]:
    """Answers about machine code: content, entry point, question; this process adds to them."""
    return _counted() if MACHINE_CODE.exists() and ANEW not in os.environ else defaultdict(dict)


@cache
def known() -> dict[str, str]:
    """The ledger, by content."""
    return _entries() if FILE.exists() else {}


def build(
    unit: SourceUnit, features: Features = frozenset(),
    directions: tuple[Direction, ...] = (Direction.forward,), arch: str = "", mode: str = "default",
) -> Binary:  # fmt: skip
    """Build a CUDA source as maskc.build.build does. Without NVRTC a new text skips the test.

    Raises:
        BuildFailed: it does not compile.
    """
    asked = (unit, features, directions, arch, mode)
    names = sorted(feature.name for feature in features)
    passes = [direction.name for direction in directions]
    content = unit.in_mode(mode).digest, names, passes, arch, mode
    key = sha256(repr(content).encode()).hexdigest()[:16]
    _use(key)
    if key in known() and ANEW not in os.environ:
        return Binary(asked, key, _read(known()[key]))
    pytest.importorskip("cupy", reason="NVRTC comes with the cuda13 extra")
    found = compile_source(*asked).report
    warnings = "\n".join(line for line in found.log.splitlines() if "C75" in line)
    _append(FILE, key, _written(found.kernels, warnings))
    return Binary(asked, key, Report(found.kernels, warnings))


# ------------------------------------------------------------------ what NVRTC accepts


class Refused(Exception):
    """NVRTC's own words about a source that the emulator takes."""


@cache
def _front_end() -> tuple[ModuleType, tuple[str, ...]] | None:
    """(NVRTC, its arguments), None where it is not installed."""
    try:
        from cupy.cuda import nvrtc
    except ImportError:
        return None
    return nvrtc, (*FLAGS[:2], "--gpu-architecture=sm_90a", "--fdevice-syntax-only")


@cache
def _accepted() -> frozenset[str]:
    return frozenset(ACCEPTED.read_text().split() if ACCEPTED.exists() else ())


def accept(source: str, macros: tuple[str, ...]) -> None:
    """Have NVRTC read a source with some macros, unless the ledger says that it accepts it.

    Raises:
        Refused: it does not.
    """
    key = sha256("\0".join([code(source), *macros]).encode()).hexdigest()[:12]
    _use(key)
    if (key in _accepted() and ANEW not in os.environ) or (found := _front_end()) is None:
        return
    nvrtc, flags = found
    program = nvrtc.createProgram(source, "kernel.cu", [], [])
    try:
        nvrtc.compileProgram(program, (*flags, *(f"-D{name}=1" for name in macros)))
    except nvrtc.NVRTCError:
        raise Refused(nvrtc.getProgramLog(program)) from None
    finally:
        nvrtc.destroyProgram(program)
    _append(ACCEPTED, key)


def tidy() -> None:
    """Sort the ledger and drop what is there twice."""
    FILE.write_text("".join(f"{key} {text}\n" for key, text in sorted(_entries().items())))
    if MACHINE_CODE.exists():
        lines = sorted((key, json.dumps(each, sort_keys=True)) for key, each in _counted().items())
        MACHINE_CODE.write_text("".join(f"{key} {text}\n" for key, text in lines))
    if ACCEPTED.exists():
        keys = sorted(set(ACCEPTED.read_text().split()))
        ACCEPTED.write_text("".join(f"{key}\n" for key in keys))


def prune(used: Path) -> None:
    """Drop the lines of contents that no test asked about.

    Args:
        used: the file of USED.
    """
    keys = set(used.read_text().split())
    for file in (FILE, MACHINE_CODE, ACCEPTED):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if line.split(maxsplit=1)[0] in keys))


def _use(key: str) -> None:
    if path := os.environ.get(USED):
        with open(path, "a") as opened:
            opened.write(f"{key}\n")


def _append(file: Path, key: str, text: str = "") -> None:
    """One write of a short line, from any process, where the ledger is written."""
    if WRITE in os.environ:
        with file.open("a") as opened:
            opened.write(f"{key} {text}".strip() + "\n")


def _entries() -> dict[str, str]:
    parts = (line.partition(" ") for line in FILE.read_text().splitlines())
    return {key: text for key, _, text in parts}


def _counted() -> dict[str, dict[str, dict[str, int]]]:
    """Lines of one key add up; of two answers to one question the last one counts."""
    found: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for line in MACHINE_CODE.read_text().splitlines():
        key, _, text = line.partition(" ")
        for entry, answers in json.loads(text).items():
            found[key].setdefault(entry, {}).update(answers)
    return found


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


if __name__ == "__main__":
    prune(Path(sys.argv[1]))
    tidy()
