"""Small faults, and the tests that find them: tests/golden/mutants.txt.

    python -m tests.support.mutants --share 3/40  # the third of forty parts; resumes
    python -m tests.support.mutants --jobs 16 --minutes 9  # in 16 processes, for nine minutes
    python -m tests.support.mutants --list        # all candidates
    python -m tests.support.mutants --summary     # figures of the table

Rules make the candidates from the text of templates/ and maskc/; a digest of each chooses about
400, so that the choice is the same everywhere and an edit changes few. Each fault is planted in a
copy of the repository, and the tests that reach its line run until one fails, cheapest first. All
tests are collected once; a process is forked for each fault, and takes over the changed function.
The table has a line for each fault: where, what, and the test that found it, or `none` and the
reason why it is not a fault. Reasons are written by hand, and stay.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache, partial
from hashlib import sha256
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from tests.support import cover

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "golden" / "mutants.txt"
COUNT = {"templates": 200, "maskc": 200}
"""Faults that are planted, by folder."""
SECONDS = 90
"""CPU seconds for one test; a test that needs more hangs."""
WHOLE = 100
"""CPU seconds for all tests of a fault."""
OPTIONS = ("-q", "-s", "--continue-on-collection-errors", "-p", "no:cacheprovider",
           "-p", "no:xdist", "-p", "no:benchmark",
           "-W", "ignore::pytest.PytestAssertRewriteWarning",  # of patterns
           "-m", "not gpu and not matrix")  # fmt: skip
COPIED = ("maskc", "templates", "patterns", "generated", "tests", "docs", "benchmarks",
          "pyproject.toml", "README.md", "CONTRIBUTING.md")  # fmt: skip
NONE = "none"
OPEN = "not explained yet"
LATE = f"{NONE}: its tests were not finished"

Change = tuple[str, str]
RULES: dict[str, tuple[Change, ...]] = {
    "comparison": ((r"(?<=[\w)\]]) < (?=[\w(])", " <= "), (r"(?<=[\w)\]]) <= (?=[\w(])", " < "),
                   (r"(?<=[\w)\]]) > (?=[\w(])", " >= "), (r"(?<=[\w)\]]) >= (?=[\w(])", " > ")),
    "off by one": ((r" \+ 1\b(?!\.)", ""), (r" - 1\b(?!\.)", "")),
    "extreme": ((r"\bmax(?=[\w.]*\()", "min"), (r"\bmin(?=[\w.]*\()", "max")),
    "junction": ((r" && ", " || "), (r"(?<=\w) and (?=\w)", " or ")),
    "sign": ((r"(?<=[\w)\]]) - (?=[\w(])", " + "),),
    "barrier": ((r"\b(?:__syncthreads|__syncwarp|publish_writes|copies_commit)\(\);", ";"),
                (r"\bwait\([^;]*\);", ";"), (r"\bproducts_(?:begin|commit)\(\);", ";")),
    "scale": ((r"(?<=[\w)\]]) \* (?:LOG2E|LN2|scale|unit)\b", ""),),
    "stride": ((r"\bTILE_Q\b", "TILE_K"), (r"\bn_q\b", "n_kv"), (r"\bHEAD_DIM_V\b", "HEAD_DIM")),
    "residue": ((r" % (?=[\w(])", " / "),),
    "tile": ((r"\brange\((?=\w+\))", "range(1, "), (r"\b(int|i32) i = 0; i <", r"\1 i = 1; i <")),
}  # fmt: skip

TESTS: tuple[tuple[str, str], ...] = (
    ("templates/cpu/*", "unit/test_cpu_template property/test_cpu_kernels unit/test_entmax"),
    ("templates/simt/*", "unit/test_simt_emulated"),
    ("templates/sm80/*gather*", "unit/test_gather_emulated"),
    ("templates/sm80/*", "unit/test_sm80_backward unit/test_scores_emulated "
                         "unit/test_entmax_emulated"),
    ("templates/sm90a/*mma16*", "unit/test_tiny_emulated"),
    ("templates/sm90a/*gather*", "unit/test_gather_emulated"),
    ("templates/sm90a/lib/mask_*", "unit/test_sm90a_bits "
                                   "unit/test_sm90a_boxes"),
    ("templates/sm90a/lib/merge*", "unit/test_sm90a_merge unit/test_hopper_emulated"),
    ("templates/sm90a/*", "unit/test_hopper_emulated unit/test_scores_emulated "
                          "unit/test_entmax_emulated unit/test_fp8_emulated"),
    ("templates/common/gen/*", "unit/test_thresholds unit/test_cpu_template unit/test_sm90a_bits"),
    ("templates/common/lib/score_far*", "unit/test_far_scores"),
    ("templates/common/*list*", "unit/test_emulated_data_lists unit/test_emulated_documents"),
    ("templates/common/*", "unit/test_cpu_template unit/test_sm90a_bits unit/test_simt_emulated "
                           "unit/test_hopper_emulated"),
)  # fmt: skip
"""Tests of templates, cheapest first."""
ROOMS: tuple[tuple[str, str], ...] = (
    ("maskc/dsl/*", "unit/test_matrices unit/test_spellings unit/test_scores"),
    ("maskc/scores.py", "unit/test_score_library unit/test_scores"),
    ("maskc/reference/*", "unit/test_matrices unit/test_reference unit/test_patterns"),
    ("maskc/emit/*", "unit/test_generated unit/test_simt_template"),
    ("maskc/analysis/*", "unit/test_kv_cache unit/test_plan_explain unit/test_questions"),
    ("maskc/plan/*", "unit/test_sm90a_bits unit/test_decisions"),
    ("maskc/ir/*", "unit/test_spellings unit/test_diff unit/test_questions unit/test_patterns"),
    ("maskc/questions/*", "unit/test_questions unit/test_kv_cache unit/test_diff"),
    ("maskc/runtime/device_lists/*", "unit/test_emulated_data_lists unit/test_selecting_device "
                                     "unit/test_gather unit/test_gather_emulated"),
)  # fmt: skip
"""Tests of Python files, next to those that import a file or are named after its folders."""
MEASURED = ROOT / "build" / "cover.pickle"
"""The lines that each test reaches, as `make cover` writes them."""
TARGETS = {
    "common": ("sm_90a", "sm_80", "simt", "lists"),
    "sm90a": ("sm_90a", "lists"),
    "sm80": ("sm_80",),
    "simt": ("simt",),
}
"""Names in it for what emulated kernels run, by the folder of templates that these kernels read."""


class Fault(NamedTuple):
    """One small change of one line."""

    file: str
    rule: str
    line: int
    old: str
    new: str

    @property
    def key(self) -> str:
        """Name of the fault in the table; without a line number, because other edits move lines."""
        return f"{self.file}: {self.rule}: {self.old.strip()}  ->  {self.new.strip()}"


# ------------------------------------------------------------------ candidates


def candidates(file: str, text: str) -> Iterator[Fault]:
    """All faults of a file: what a rule changes at the first place of a line where it holds."""
    quoted = False
    for number, line in enumerate(text.splitlines()):
        bare = line.strip()
        quoted ^= bare.count('"""') % 2 == 1
        if quoted or bare.startswith(("#", "//", '"', "'", "from ", "import ", "@", "{#", "def ")):
            continue
        code = re.split(r"\s(?://|#) ", line)[0]
        if '"' in code or "template <" in code or code.lstrip().startswith(("asm", "case ")):
            continue
        for rule, changes in RULES.items():
            for old, new in changes:
                changed = re.sub(old, new, code, count=1)
                if changed != code:
                    yield Fault(file, rule, number, line, changed + line[len(code) :])


def sources(folder: str) -> list[Path]:
    suffixes = (".py",) if folder == "maskc" else (".cuh", ".h", ".j2")
    return [
        path for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes and not {"emulator", "lab", "viz", "errors"} & {*path.parts}
    ]  # fmt: skip


@cache
def planted() -> tuple[Fault, ...]:
    """The faults that are planted, in the order in which they are."""
    chosen = []
    for folder, count in COUNT.items():
        every = {
            fault.key: fault
            for path in sources(folder)
            for fault in candidates(str(path.relative_to(ROOT)), path.read_text())
        }
        order = sorted(every, key=lambda key: sha256(key.encode()).hexdigest())
        chosen += [every[key] for key in order[:count]]
    return tuple(sorted(chosen, key=lambda fault: sha256(fault.key.encode()).hexdigest()))


@cache
def _texts() -> dict[str, str]:
    files = [*(ROOT / "tests/unit").glob("test_*.py"), *(ROOT / "tests/property").glob("test_*.py")]
    return {str(file.relative_to(ROOT)): file.read_text() for file in sorted(files)}


@cache
def _measured() -> dict[str, cover.Measured]:
    return pickle.loads(MEASURED.read_bytes()) if MEASURED.exists() else {}


@cache
def _measured_files() -> frozenset[str]:
    return frozenset(name.partition("::")[0] for name in _measured())


@cache
def _reaching() -> dict[tuple[str, str | int], list[str]]:
    """The cases that reach each line near a fault, by file and number or by target and text:
    cheapest first, and of each function one case before the next."""
    wanted = {place for fault in planted() for line in _near(fault) for place in line}
    tests, reaching = _measured(), defaultdict[tuple[str, str | int], list[str]](list)
    for name in sorted(tests, key=lambda name: tests[name].seconds):
        for place in wanted & tests[name].reaches:
            reaching[place].append(name)
    return {
        place: sorted(names, key=partial(_cost_by_rank, tests, Counter()))
        for place, names in reaching.items()
    }


def _cost_by_rank(tests: dict[str, cover.Measured], ranks: Counter[str], name: str) -> float:
    function = name.partition("[")[0]
    ranks[function] += 1
    return ranks[function] * (tests[name].seconds + 0.02)


@cache
def _lines(file: str) -> list[str]:
    return (ROOT / file).read_text().splitlines()


def _near(fault: Fault) -> Iterator[list[tuple[str, str | int]]]:
    """Places of the line of a fault, then of the lines before it, in case only the beginning of its
    statement was noted."""
    for line in range(fault.line, max(-1, fault.line - 6), -1):
        if fault.file.endswith(".py"):
            yield [(fault.file, line + 1)]
        else:
            text = re.sub(r"\d+", "0", _lines(fault.file)[line].partition("//")[0].strip())
            targets = TARGETS.get(Path(fault.file).parts[1], ())
            yield [(target, text) for target in targets if len(text) > 8]


def tests_of(fault: Fault) -> list[str]:
    """The tests of a fault, those that are likeliest to fail first, or that cost least.

    They are the cases that reach its line, where `make cover` has measured that since the file was
    edited, and otherwise whole files.
    """
    place = ROOT / fault.file
    if MEASURED.exists() and place.stat().st_mtime < MEASURED.stat().st_mtime:
        for places in _near(fault):
            if names := [name for place in places for name in _reaching().get(place, ())]:
                return names + [x for x in files_of(fault.file) if x not in _measured_files()]
    return files_of(fault.file)


@cache
def files_of(file: str) -> list[str]:
    """The test files of a file of the repository, by their names and imports."""
    for pattern, names in TESTS:
        if fnmatch(file, pattern):
            return [f"tests/{name}.py" for name in names.split()]
    module = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b")
    costly = Counter(name.partition("::")[0] for name in cover.listed())
    order = sorted(_texts(), key=lambda test: (costly[test], len(_texts()[test])))
    rooms = [names.split() for pattern, names in ROOMS if fnmatch(file, pattern)]
    begins = tuple(f"tests/unit/test_{folder}_" for folder in Path(file).parts[1:-1])
    return list(dict.fromkeys([
        *(test for test in order if name in _texts()[test] and imports.search(_texts()[test])),
        *(f"tests/{name}.py" for names in rooms for name in names),
        *(test for test in order if name in test or test.startswith(begins)),
    ]))  # fmt: skip


# ------------------------------------------------------------------ the table


def read_table() -> dict[str, str]:
    """The table: key of a fault, then the test that found it, or `none` with a reason."""
    if not TABLE.exists():
        return {}
    lines = (line.rpartition("  |  ") for line in TABLE.read_text().splitlines())
    return {key: found for key, _, found in lines}


def write_table(table: dict[str, str]) -> None:
    known = {fault.key for fault in planted()}
    lines = [f"{key}  |  {found}" for key, found in sorted(table.items()) if key in known]
    with tempfile.NamedTemporaryFile("w", dir=TABLE.parent, delete=False) as whole:
        whole.write("".join(f"{line}\n" for line in lines))
    Path(whole.name).chmod(0o644)
    Path(whole.name).replace(TABLE)  # whoever reads it meanwhile sees all lines


# ------------------------------------------------------------------ one fault


class Reporter:
    """Notes which test runs, and the first that fails."""

    failed = ""

    def __init__(self, running: Path) -> None:
        self._running = running

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.write_text(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


_running: set[int] = set()
"""The processes that run tests of this one."""


def first_failure(
    room: Path, run: Callable[[Reporter], object], seconds: float = SECONDS, whole: float = WHOLE
) -> str:
    """Run tests in a copy of the repository, in a process of their own, until one fails.

    Args:
        room: the copy.
        run: runs the tests, and reports them.
        seconds: CPU seconds of one test.
        whole: CPU seconds of all.

    Returns:
        Its name; for a test that hangs or crashes its name and that; LATE where all tests together
        take too long, and nothing where all pass.
    """
    answer, running = room / "answer", room / "running"
    answer.unlink(missing_ok=True)
    running.write_text("")
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _child(room, run, answer, Reporter(running))
    with suppress(OSError):
        os.setpgid(child, child)  # the child does so, too; whoever comes first
    end = time.monotonic() + 20 * whole  # of a machine that does other things, too
    _running.add(child)
    test, began, ended = "", 0.0, ""
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        used = _cpu(child)
        if (now := running.read_text()) != test:
            test, began = now, used
        if used - began > seconds or used > whole or time.monotonic() > end:
            ended = f"{test} hangs" if used - began > seconds else LATE
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.05)
    _running.discard(child)
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)  # processes that tests have started
    return ended or (answer.read_text() if answer.exists() else f"{running.read_text()} crashes")


def _child(room: Path, run: Callable[[Reporter], object], answer: Path, reporter: Reporter) -> None:
    os.setpgid(0, 0)
    log = os.open(room / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1), os.dup2(log, 2)
    try:
        os.chdir(room)
        os.environ |= {"PYTHONPATH": str(room), "PYTEST_DEBUG_TEMPROOT": str(room)}
        run(reporter)
        answer.write_text(reporter.failed)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)


def _cpu(process: int) -> float:
    """CPU seconds of a process and of those that it has waited for."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def copied(room: Path) -> None:
    """Copy what tests need of the repository."""
    leave = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, room / name, ignore=leave)
        else:
            shutil.copy(source, room / name)


def imported_anew(room: Path, tests: list[str], plugin: Reporter | Suite) -> None:
    """Run tests with the package and the tests of a copy, whatever was imported before."""
    sys.path.insert(0, str(room))
    for name in [name for name in sys.modules if name.split(".")[0] in ("maskc", "tests")]:
        del sys.modules[name]
    first = ["-x"] if isinstance(plugin, Reporter) else []
    code = pytest.main([*OPTIONS, *first, f"--rootdir={room}", *tests], plugins=[plugin])
    if code not in (0, 1, 5) and isinstance(plugin, Reporter):
        plugin.failed = plugin.failed or "it does not start"


# ------------------------------------------------------------------ all tests, collected once


def changed_functions(old: CodeType, new: CodeType) -> dict[CodeType, CodeType] | None:
    """Return the outermost functions that differ between two versions of a file, None where what
    runs at its import differs, too."""
    if _own(old) == _own(new):
        inner = [[part for part in code.co_consts if isinstance(part, CodeType)]
                 for code in (old, new)]  # fmt: skip
        pairs = [changed_functions(*pair) for pair in zip(*inner, strict=True)]
        known = [pair for pair in pairs if pair is not None]
        together = {code: changed for pair in known for code, changed in pair.items()}
        if len(known) == len(pairs) and not (together and old.co_flags & CO_OPTIMIZED):
            return together
    return {old: new} if old.co_flags & CO_OPTIMIZED else None


def _own(code: CodeType) -> tuple[object, ...]:
    """Return what a code object does, without the functions in it."""
    constants = [repr(part) for part in code.co_consts if not isinstance(part, CodeType)]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, constants, names, code.co_argcount, code.co_exceptiontable


class Suite:
    """All tests as pytest has collected them, and the package as it was then.

    Args:
        work: plants the faults. Called with this suite, once all tests are collected.
    """

    def __init__(self, work: Callable[[Suite], None]) -> None:
        self._work = work

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        objects = gc.get_objects()
        self._functions = defaultdict[tuple[str, str, int], list[FunctionType]](list)
        for one in objects:
            if type(one) is FunctionType:  # isinstance asks objects for their class
                self._functions[_place(one.__code__)].append(one)
        self._caches = [one for one in objects if type(one) is type(_texts)
                        and one.__module__.startswith(("maskc", "tests"))]  # fmt: skip
        gc.collect()
        gc.freeze()  # a collection in a child would copy all pages
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of each fork of a process with threads
            self._work(self)
        return True

    def named(self, tests: list[str]) -> list[str]:
        """Names of cases; of whole files those that CI runs first, one of each function."""
        later, ranks = cover.listed(), Counter[str]()
        order: list[tuple[float, str]] = []
        for place, test in enumerate(tests):
            for name in [test] if test in self.items else self._of(test):
                function = name.partition("[")[0]
                ranks[function] += 1
                late = test != name and cover.is_later(name, later)
                order.append((late * 1e4 + place + 10 * ranks[function] * (test != name), name))
        return list(dict.fromkeys(name for _, name in sorted(order)))

    def _of(self, test: str) -> list[str]:
        return [name for name in self.items if name.startswith((f"{test}::", f"{test}["))]

    def run(self, names: list[str], reporter: Reporter) -> None:
        """Run tests until one fails."""
        from maskc.build import toolchain
        from tests.support import ledger

        # neither CUDA's driver nor NVRTC survives that a process forks
        toolchain._cuda = Mock(side_effect=toolchain._Missing("forked"))
        ledger._front_end = lambda: None
        items = [self.items[name] for name in names if name in self.items]
        if items:
            items[0].config.pluginmanager.register(reporter)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if reporter.failed:
                return

    def planted(self, fault: Fault, room: Path, old: str, new: str) -> bool:
        """Plant a fault in this process: its functions are replaced, and nothing is remembered.

        Returns:
            Whether that is possible; otherwise everything has to be imported anew.
        """
        import maskc.core.package as package

        base = package._PACKAGE.parent
        package._PACKAGE = room / "maskc"
        for one in self._caches:
            one.cache_clear()
        if not fault.file.endswith(".py"):
            return True
        file = str(base / fault.file)
        codes = [compile(text, file, "exec", dont_inherit=True) for text in (old, new)]
        changed = changed_functions(*codes)
        if not changed or not all(self._functions[_place(code)] for code in changed):
            return changed == {}
        for code, replaced in changed.items():
            for function in self._functions[_place(code)]:
                function.__code__ = replaced
        return True


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def finder(suite: Suite, room: Path, fault: Fault) -> str:
    """Return what finds a fault. A test that fails without it, too, does not count."""
    place = room / fault.file
    old = place.read_text()
    lines = old.splitlines(keepends=True)
    lines[fault.line] = fault.new + "\n"
    new = "".join(lines)
    tests = suite.named(tests_of(fault))

    def run(reporter: Reporter) -> None:
        if suite.planted(fault, room, old, new):
            suite.run(tests, reporter)
        else:
            imported_anew(room, tests, reporter)

    try:
        if not tests:
            return LATE
        if fault.file.endswith(".py"):
            compile(new, fault.file, "exec")
        while True:
            _replace(place, new)
            found = first_failure(room, run)
            _replace(place, old)
            name = found.removesuffix(" hangs").removesuffix(" crashes")
            passes = room.parent / sha256(name.encode()).hexdigest()  # known to all rooms
            if (
                "::" not in name
                or passes.exists()
                or not first_failure(room, partial(suite.run, [name]))
            ):
                passes.touch()
                return found or f"{NONE}: {OPEN}"
            tests = [test for test in tests if test != name]
    except SyntaxError:
        return tests_of(fault)[0].partition("::")[0]
    finally:
        _replace(place, old)


def _replace(place: Path, text: str) -> None:
    place.unlink()  # it is the file of other rooms, too
    place.write_text(text)


def tried(faults: list[Fault], jobs: int, seconds: float, say: Callable[[str], None]) -> None:
    """Plant faults, and add each to the table at once.

    Args:
        faults: which.
        jobs: processes side by side.
        seconds: after these, faults that have no answer are left for the next time.
        say: what prints each answer.
    """
    end = time.monotonic() + seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    say(f"{len(faults)} faults")
    files = {test.partition("::")[0] for fault in faults for test in tests_of(fault)}
    with tempfile.TemporaryDirectory(prefix="maskc-mutants-", ignore_cleanup_errors=True) as folder:
        rooms = [Path(folder) / str(number) for number in range(jobs + 1)]
        copied(rooms[0])
        for room in rooms[1:]:
            shutil.copytree(rooms[0], room, copy_function=os.link)
        builds = Path(tempfile.gettempdir()) / f"maskc-emulator-{os.geteuid()}"
        with suppress(OSError):  # none, or one that another process removes meanwhile
            shutil.copytree(builds, rooms[0] / builds.name, copy_function=os.link)
        os.environ |= {"MASKC_EMULATOR_DIR": str(rooms[0]), "MASKC_CACHE_DIR": str(rooms[0] / "c")}
        os.environ["OMP_NUM_THREADS"] = "1"  # torch's pool: a forked process would wait for it
        os.chdir(rooms[0])
        imported = partial(_in_turn, faults, rooms[1:], end, say)
        imported_anew(rooms[0], sorted(files), Suite(imported))


def _in_turn(
    faults: list[Fault], rooms: list[Path], end: float, say: Callable[[str], None], suite: Suite
) -> None:
    """Start a process for each fault, as many at a time as there are rooms."""
    say(f"{len(suite.items)} tests are collected, {end - time.monotonic():.0f} s are left")
    todo, busy = list(reversed(faults)), dict[int, tuple[Fault, Path]]()
    try:
        while (todo or busy) and time.monotonic() < end:
            while todo and len(busy) < len(rooms):
                free = next(room for room in rooms if room not in [at for _, at in busy.values()])
                fault = todo.pop()
                busy[_started(suite, free, fault)] = fault, free
            child, _, usage = os.wait4(-1, os.WNOHANG)
            if child not in busy:
                time.sleep(0.05)
                continue
            fault, room = busy.pop(child)
            table = read_table()
            table[fault.key] = (room / "finder").read_text()
            write_table(table)
            say(f"{usage.ru_utime + usage.ru_stime:.1f} s  {table[fault.key]}  <-  {fault.key}")
    finally:
        for child in busy:
            os.kill(child, signal.SIGTERM)
        say(f"{len(todo) + len(busy)} faults have no answer.")


def _started(suite: Suite, room: Path, fault: Fault) -> int:
    """Start a process that writes what finds a fault to a file of its room."""
    (room / "finder").write_text(LATE)
    if child := os.fork():
        return child
    signal.signal(signal.SIGTERM, _leave)
    try:
        (room / "finder").write_text(finder(suite, room, fault))
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)


def _leave(*_: object) -> None:
    """End this process and the tests that it runs, because time is up."""
    for child in _running:
        os.killpg(child, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", default="1/1", help="which part of the faults: 3/40")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=1e4, help="stop after these")
    parser.add_argument("--only", default="*", help="faults of files of this name, with * and ?")
    parser.add_argument("--again", action="store_true", help="those that are in the table, too")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    part, parts = map(int, options.share.split("/"))
    table = read_table()
    faults = [fault for fault in planted()[part - 1 :: parts] if fnmatch(fault.file, options.only)]
    if options.summary:
        open_ones = [key for key, found in table.items() if found == f"{NONE}: {OPEN}"]
        kinds = Counter(found.split(":")[0] if found.startswith(NONE) else "found"
                        for found in table.values())  # fmt: skip
        print(f"{len(planted())} faults, tried {dict(kinds)}, not explained {len(open_ones)}")
    elif options.list:
        print("\n".join(fault.key for fault in faults))
    else:
        unanswered = {LATE, f"{NONE}: {OPEN}"}
        known = {} if options.again else {key for key in table if table[key] not in unanswered}
        todo = [fault for fault in faults if fault.key not in known]
        todo.sort(key=lambda fault: "::" not in tests_of(fault)[0])  # whole files take longest
        tried(todo, options.jobs, 60 * options.minutes, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
