"""Which tests `make test` runs: a greedy cover of what all of them reach, by cost.

    pytest -p tests.support.cover --cover-to FILE ...   # measures, in one process
    python -m tests.support.cover FILE ...              # chooses, and writes tests/golden/later.txt

What a test reaches: its own function, each value of its parameters, lines of the package, and each
pair of a target and a feature that it builds a kernel of. Tests that cost little always run. Of the
others those run that reach most for their cost, up to a budget. The list names the rest: `make
test` leaves it out, `make test-all` and CI run it.
"""

from __future__ import annotations

import argparse
import heapq
import os
import pickle
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "golden" / "later.txt"
"""Tests that can wait, by file; a name without brackets stands for all of its cases."""
CHEAP = 0.1
"""CPU seconds up to which a test always runs."""
BUDGET = 110.0
"""CPU seconds for all others; the costs of collection and of what is cheap come on top."""

_SWITCH = re.compile(r"^#define ([A-Z]\w+) 1\b", re.MULTILINE)


@dataclass
class Measured:
    """Cost of one test, and the lines, targets and features that it reaches."""

    seconds: float = 0.0
    """CPU seconds, those of child processes included."""
    reaches: set[Any] = field(default_factory=set)


# ------------------------------------------------------------------ measuring


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cover-to", help="write what each test costs and reaches to this file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cover-to"):
        config.pluginmanager.register(Recorder(config.getoption("--cover-to")))


class Recorder:
    """The measurement of one run."""

    def __init__(self, file: str) -> None:
        import coverage

        self._file, self._tests = Path(file), defaultdict[str, Measured](Measured)
        self._lines = coverage.Coverage(data_file=None, source_pkgs=["maskc"], config_file=False)
        self._current = ""

    def pytest_sessionstart(self) -> None:
        from maskc.build import hostcc, nvrtc
        from maskc.testing.emulator import machine
        from tests.support.kernel_lines import KernelLines

        self._kernels = KernelLines()

        for module, name in ((hostcc, "build_c"), (nvrtc, "build_cuda"), (machine, "build")):
            self._watch(module, name)
        self._lines.start()

    def _watch(self, module: Any, name: str) -> None:
        """Note targets and features of what a function builds; it has one name in each module."""
        build = getattr(module, name)

        def watched(unit: Any, features: Any = frozenset(), *rest: Any) -> Any:
            parts = {feature.name for feature in features} | set(_SWITCH.findall(unit.text))
            parts.add(str(rest[2:]))  # a mode, or its macro
            self._tests[self._current].reaches.update((unit.target, part) for part in parts)
            return build(unit, features, *rest)

        for loaded in list(sys.modules.values()):
            if vars(loaded).get(name) is build and loaded.__name__.startswith("maskc"):
                setattr(loaded, name, watched)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._current = item.nodeid
        self._lines.switch_context(item.nodeid)
        before = sum(os.times()[:4])
        yield
        self._tests[item.nodeid].seconds += sum(os.times()[:4]) - before
        self._tests[item.nodeid].reaches |= named_by(item.nodeid) | self._kernels.taken()
        self._lines.switch_context("")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """A test that skips itself reaches nothing, and must not stand for others."""
        if call.excinfo is not None:
            self._tests.pop(item.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        self._lines.stop()
        data = self._lines.get_data()
        for file in data.measured_files():
            name = str(Path(file).relative_to(ROOT))
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    if test in self._tests:
                        self._tests[test].reaches.add((name, line))
        self._file.write_bytes(pickle.dumps(dict(self._tests)))


def named_by(nodeid: str) -> set[Any]:
    """Return the function and the parameter values in the name of a test."""
    function, _, values = nodeid.removesuffix("]").partition("[")
    return {function, *((function, *value) for value in enumerate(values.split("-")))}


# ------------------------------------------------------------------ choosing


def chosen(tests: dict[str, Measured], budget: float = BUDGET) -> set[str]:
    """Return the tests that run: all cheap ones, then those that add most for their cost."""
    now = {name for name, test in tests.items() if test.seconds <= CHEAP}
    reached = set().union(*(tests[name].reaches for name in now)) if now else set()

    def worth(name: str) -> float:
        return -len(tests[name].reaches - reached) / tests[name].seconds

    heap = [(worth(name), name) for name in sorted(tests.keys() - now)]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        value = worth(name)
        if heap and value > heap[0][0]:
            heapq.heappush(heap, (value, name))  # others have reached some of it meanwhile
        elif value == 0:
            break
        elif tests[name].seconds <= budget:
            budget -= tests[name].seconds
            now.add(name)
            reached |= tests[name].reaches
    return now


def named(later: set[str], every: Sequence[str]) -> list[str]:
    """Return the lines of the list: cases, or a function where all of its cases wait."""
    cases = defaultdict[str, set[str]](set)
    for name in every:
        cases[name.partition("[")[0]].add(name)
    whole = {function for function, names in cases.items() if names <= later}
    return sorted(whole | {name for name in later if name.partition("[")[0] not in whole})


def is_later(nodeid: str, names: frozenset[str]) -> bool:
    """Return whether the list names a test."""
    return nodeid in names or nodeid.partition("[")[0] in names


def listed() -> frozenset[str]:
    """The names in the list: a line with a file, then those in it, indented."""
    names, file = [], ""
    for line in LIST.read_text().splitlines():
        if line.startswith(" "):
            names.append(f"{file}::{line.strip()}")
        file = file if line.startswith(" ") else line
    return frozenset(names)


def write_list(names: list[str]) -> None:
    """Write names, in their order, as `listed` reads them."""
    lines: list[str] = []
    for file, group in groupby(names, lambda name: name.partition("::")[0]):
        lines += [file, *(f" {name.partition('::')[2]}" for name in group)]
    LIST.write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="what --cover-to has written")
    tests: dict[str, Measured] = {}
    for file in parser.parse_args().files:
        tests |= pickle.loads(file.read_bytes())
    now = chosen(tests)
    later = tests.keys() - now
    write_list(named(set(later), list(tests)))
    whole = set().union(*(test.reaches for test in tests.values()))
    reached = set().union(*(tests[name].reaches for name in now))
    for what, names in (("now", now), ("later", later)):
        print(f"{what}: {len(names)} tests, {sum(tests[n].seconds for n in names):.0f} CPU seconds")
    print(f"reached: {len(reached)} of {len(whole)}")


if __name__ == "__main__":
    main()
