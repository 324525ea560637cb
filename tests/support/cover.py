"""Which tests `make test` and CI run: a greedy cover of what all of them reach, by cost.

    pytest -p tests.support.cover --cover-to FILE ...   # measures, in one process
    python -m tests.support.cover FILE ...              # chooses, and writes the two lists

What a test reaches: lines of the package, lines of emulated kernels by target, and each pair of a
target and a feature that it builds a kernel of. Tests that cost little always run.

tests/golden/nightly.txt names the cases that `make matrix` runs and CI does not: other cases reach
all that they reach. Lines of the package that know a target count once for each. CI runs one case
at least of each function whose cases cost little; functions of a file that only call its `check`
count as one. It runs all that find planted faults, see tests/golden/mutants.txt.

tests/golden/later.txt names what `make test` leaves to CI. For `make test` a test also reaches its
own function and each value of its parameters. Those run that reach most for their cost, up to a
budget.
"""

from __future__ import annotations

import argparse
import ast
import heapq
import os
import pickle
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "golden" / "mutants.txt"
LIST = ROOT / "tests" / "golden" / "later.txt"
"""Tests that `make test` leaves out, by file; a name without brackets stands for all its cases."""
NIGHTLY = LIST.with_name("nightly.txt")
"""Cases that CI leaves to `make matrix`, likewise."""
UNTRACED = ("tests/unit/test_cpu_template.py", "tests/property/test_cpu_kernels.py",
            "tests/unit/test_entmax.py", "tests/test_", "tests/messages/")  # fmt: skip
"""Files, and beginnings of their names, whose cases all run: nothing traces lines of C kernels, nor
the files of the repository that tests read."""
CHEAP = 0.1
"""CPU seconds up to which a test always runs."""
DEAR = 1.0
"""CPU seconds from which CI needs no case of a function, unless it is about random masks."""
BUDGET = 110.0
"""CPU seconds for all others; the costs of collection and of cheap tests come on top."""

KNOW_TARGETS = tuple(
    f"maskc/{place}"
    for place in ("plan/", "emit/", "dispatch/", "build/", "runtime/", "driver.py",
                  "core/bundle.py", "core/library.py", "core/target.py")
)  # fmt: skip
"""Places of the package whose lines may be right for one target and wrong for another."""
_PART = re.compile(r"\w*|\(.*\)")
"""A feature, a switch or a mode of a build. Other texts that follow a target are kernel lines."""
_IDLE = re.compile(
    r"\bm\.[ac]0|^__device__|^\(void\)|^(\[\[.*\]\] )?constexpr|^template <|^\w+ \*?\w+;$|"
    r"^const struct Attention &p, |^if \(0 && "
)
"""Lines of kernels that do not count. One reads a constant or an array of a mask: the printer wrote
it, and its own lines count. Others declare something, begin a function that was not inlined, or ask
a condition that never holds."""
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
        self._current, self._unfinished = "", set[str]()

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
            self._unfinished.add(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._lines.stop()
        for name in self._unfinished:
            self._tests.pop(name, None)
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


def by_target(reaches: set[Any]) -> set[Any]:
    """Return what a test reaches, lines that know targets once for each that it builds for.

    A line of a kernel counts once: kernels of different targets share it, or have other lines.
    """
    lines = {place for place in reaches if str(place[0]).startswith("maskc/")}
    parts = {place for place in reaches - lines if _PART.fullmatch(str(place[1]))}
    kernels = {str(place[1]) for place in reaches - lines - parts}
    targets = {str(place[0]) for place in parts} or {""}
    know = {line for line in lines if line[0].startswith(KNOW_TARGETS)}
    return (
        parts | (lines - know)
        | {line for line in kernels if not _IDLE.search(line)}
        | {(target, *line) for target in targets for line in know}
    )  # fmt: skip


@cache
def _checked(file: str) -> frozenset[str]:
    """Return the test functions of a file that assert nothing but what `check` does."""
    path = ROOT / file
    functions = [
        node for node in (ast.parse(path.read_text()).body if path.exists() else ())
        if isinstance(node, ast.FunctionDef)
    ]  # fmt: skip
    names = set()
    for function in functions:
        nodes = list(ast.walk(function))
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        called = {getattr(call, "id", getattr(call, "attr", "")) for call in calls}
        asserts = any(isinstance(node, ast.Assert) for node in nodes)
        if "check" in called and not asserts and not called & {"raises", "warns"}:
            names.add(function.name)
    return frozenset(names)


def property_of(name: str) -> str:
    """Return the property that a test checks: its function, or what `check` in its file checks."""
    function = name.partition("[")[0]
    file, _, inside = function.partition("::")
    return f"{file}::check" if inside in _checked(file) else function


def implied(tests: dict[str, Measured], kept: frozenset[str] = frozenset()) -> set[str]:
    """Return the cases that other cases cover, costly ones first.

    Args:
        tests: what all tests reach and cost.
        kept: cases, functions or files that stay, as they find planted faults.
    """
    reaches = {name: by_target(test.reaches - named_by(name)) for name, test in tests.items()}
    times = Counter(place for places in reaches.values() for place in places)
    cases = Counter(map(property_of, tests))
    covered: set[str] = set()
    for name in sorted(tests, key=lambda name: (-tests[name].seconds, name)):
        checks, file, function = property_of(name), name.partition("::")[0], name.partition("[")[0]
        finds = not kept.isdisjoint({name, function, file})
        stays = tests[name].seconds <= CHEAP or finds or name.startswith(UNTRACED)
        dear = tests[name].seconds >= DEAR and not name.startswith("tests/property/")
        others = cases[checks] > 1 or dear
        if not stays and others and all(times[place] > 1 for place in reaches[name]):
            covered.add(name)
            cases[checks] -= 1
            times.subtract(reaches[name])
    return covered


def finders(table: str) -> frozenset[str]:
    """Return the tests that a table of faults names, those that crash or hang by one, too."""
    names = (line.rpartition("  |  ")[2] for line in table.splitlines())
    return frozenset(name.removesuffix(" crashes").removesuffix(" hangs") for name in names)


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


def listed(path: Path = LIST) -> frozenset[str]:
    """The names in a list: a line with a file, then those in it, indented."""
    names, file = [], ""
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            names.append(f"{file}::{line.strip()}")
        file = file if line.startswith(" ") else line
    return frozenset(names)


def write_list(names: list[str], path: Path = LIST) -> None:
    """Write names, in their order, as `listed` reads them."""
    lines: list[str] = []
    for file, group in groupby(names, lambda name: name.partition("::")[0]):
        lines += [file, *(f" {name.partition('::')[2]}" for name in group)]
    path.write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="what --cover-to has written")
    tests: dict[str, Measured] = {}
    for file in parser.parse_args().files:
        tests |= pickle.loads(file.read_bytes())
    nightly = implied(tests, finders(TABLE.read_text()))
    in_ci = {name: test for name, test in tests.items() if name not in nightly}
    now = chosen(in_ci)
    later = in_ci.keys() - now
    write_list(named(nightly, list(tests)), NIGHTLY)
    write_list(named(set(later), list(in_ci)))
    for what, names in (("now", now), ("later", later), ("nightly", nightly)):
        seconds = sum(tests[name].seconds for name in names)
        print(f"{what}: {len(names)} tests, {seconds:.0f} CPU seconds")
    whole = set().union(*(test.reaches for test in in_ci.values()))
    reached = set().union(*(tests[name].reaches for name in now))
    print(f"reached: {len(reached)} of {len(whole)}")


if __name__ == "__main__":
    main()
