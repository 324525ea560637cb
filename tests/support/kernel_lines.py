"""Which lines of emulated kernels a test runs, for tests/support/cover.py.

g++ calls `__sanitizer_cov_trace_pc` in each basic block. A small library notes the addresses, and
addr2line turns them into lines of the translated source. Numbers in a line do not count, as tiles
and head dimensions change them everywhere.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from maskc.testing.emulator import machine, shared_object

FLAGS = ("-g1", "-fsanitize-coverage=trace-pc")
_TRACE = """
#define SLOTS (1 << 18)
static unsigned long seen[SLOTS], order[SLOTS];
static int count;
void __sanitizer_cov_trace_pc(void) {
    unsigned long pc = (unsigned long)__builtin_return_address(0);
    unsigned slot = (unsigned)(pc * 0x9E3779B97F4A7C15ul >> 46);
    while (seen[slot] && seen[slot] != pc) slot = (slot + 1) % SLOTS;
    if (!seen[slot] && count < SLOTS / 2) seen[slot] = order[count++] = pc;
}
int take(unsigned long *to) {
    int taken = count;
    for (int i = 0; i < SLOTS; i++) seen[i] = 0;
    for (int i = 0; i < count; i++) to[i] = order[i];
    count = 0;
    return taken;
}
"""
_TARGET = re.compile(r"sm_\w+|simt")


class KernelLines:
    """Lines of kernels that ran since they were last taken."""

    def __init__(self) -> None:
        trace = shared_object.built(
            _TRACE, ".so", ["gcc", "-O2", "-shared", "-fPIC"], lambda: _TRACE
        )
        self._trace = ctypes.CDLL(str(trace), mode=ctypes.RTLD_GLOBAL)
        self._places = (ctypes.c_ulong * (1 << 18))()
        self._targets: dict[str, str] = {}
        """The target of each library."""
        self._lines: dict[str, dict[int, str]] = defaultdict(dict)
        """The line at each offset of a library, once somebody asked."""
        machine.OF_KERNELS = (*machine.OF_KERNELS, *FLAGS)
        self._load, self._build = machine.loaded, machine.built
        machine.loaded, machine.built = self._loaded, self._built

    def _loaded(self, source: str, macros: tuple[str, ...], only: tuple[str, ...] = ()) -> Any:
        library = self._load(source, macros, only)
        named = _TARGET.search(source.partition("\n")[0])
        self._targets[library._name] = named[0] if named else "lists"
        return library

    def _built(self, key: str, suffix: str, command: list[str], source: Any = None) -> Path:
        texts: list[str] = []

        def text() -> str:
            texts.append(source())
            return texts[0]

        made = self._build(key, suffix, command, source and text)
        if texts:
            made.with_suffix(".text").write_text(texts[0])
        return made

    def taken(self) -> set[tuple[str, str]]:
        """(target, line) of all that ran since the last time."""
        count = self._trace.take(self._places)
        offsets = defaultdict[str, list[int]](list)
        spans = list(self._spans()) if count else []
        for place in self._places[:count]:
            for first, end, file in spans:
                if first <= place < end:
                    offsets[file].append(place - first - 1)
        for file, places in offsets.items():
            self._look_up(file, [place for place in places if place not in self._lines[file]])
        return {
            (self._targets.get(file, ""), self._lines[file][place])
            for file, places in offsets.items()
            for place in places
        }

    def _spans(self) -> Any:
        """(first address, end, file) of each library of a kernel."""
        ends: dict[str, tuple[int, int]] = {}
        for line in Path("/proc/self/maps").read_text().splitlines():
            file = line.split(maxsplit=5)[-1]
            if file in self._targets:
                low, high = (int(x, 16) for x in line.split()[0].split("-"))
                first, end = ends.get(file, (low, high))
                ends[file] = min(first, low), max(end, high)
        return ((first, end, file) for file, (first, end) in ends.items())

    def _look_up(self, file: str, places: list[int]) -> None:
        if not places:
            return
        text_file = Path(file).with_suffix(".text")
        text = text_file.read_text().splitlines() if text_file.exists() else []
        asked = "\n".join(map(hex, places))
        answer = subprocess.run(["addr2line", "-e", file], input=asked, text=True,
                                capture_output=True, check=True).stdout  # fmt: skip
        for place, line in zip(places, answer.splitlines(), strict=True):
            name, _, number = line.split(" ")[0].rpartition(":")
            inside = name.endswith("kernel.c") and number.isdigit() and int(number) <= len(text)
            line = text[int(number) - 1].strip() if inside else ""  # else of device.h
            self._lines[file][place] = re.sub(r"\d+", "0", line)
