"""Small faults, and the tests that find them: tests/golden/mutants.txt.

    python -m tests.support.mutants --share 3/40  # the third of forty parts; resumes
    python -m tests.support.mutants --jobs 16 --minutes 9  # in 16 processes, for nine minutes
    python -m tests.support.mutants --list        # all candidates
    python -m tests.support.mutants --summary     # figures of the table

Rules make the candidates from the text of templates/ and maskc/; a digest of each chooses about
400, so that the choice is the same everywhere and an edit changes few. Each fault is planted in a
copy of the repository, and the tests of its file run until one fails. The table has a line for each
fault: where, what, and the test that found it, or `none` and the reason why it is not a fault.
Reasons are written by hand, and stay.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache
from hashlib import sha256
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import cover

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "golden" / "mutants.txt"
COUNT = {"templates": 200, "maskc": 200}
"""Faults that are planted, by folder."""
SECONDS = 90
"""CPU seconds for one test; a test that needs more hangs."""
WHOLE = 900
"""CPU seconds for all tests of a fault."""
COPIED = ("maskc", "templates", "patterns", "generated", "tests", "docs", "benchmarks",
          "pyproject.toml", "README.md", "CONTRIBUTING.md")  # fmt: skip
HEAVY = ("numpy", "sympy", "islpy", "jinja2", "torch")
"""Imported once, before a process for each fault is forked."""
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


def tests_of(fault: Fault) -> list[str]:
    """The tests of a fault, those that are likeliest to fail first, or that cost least.

    They are the functions that reach its line, where `make cover` has measured that since the file
    was edited, and otherwise whole files.
    """
    place = ROOT / fault.file
    if MEASURED.exists() and place.stat().st_mtime < MEASURED.stat().st_mtime:
        line, seconds = (fault.file, fault.line + 1), Counter[str]()
        for name, test in _measured().items():
            if line in test.reaches:
                seconds[name.partition("[")[0]] += test.seconds
        known = [name for name in seconds if _is_there(name)]
        if known:
            return sorted(known, key=lambda name: seconds[name])
    return files_of(fault.file)


def _is_there(name: str) -> bool:
    file, _, function = name.partition("::")
    return f"def {function}(" in _texts().get(file, "")


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
    TABLE.write_text("".join(f"{line}\n" for line in lines))


# ------------------------------------------------------------------ one fault


_running: set[int] = set()
"""The processes that run tests of this one."""


class Reporter:
    """Runs the tests of `make test` first. Notes which test runs, and the first that fails."""

    failed = ""

    def __init__(self, running: Path) -> None:
        self._running = running

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        later = cover.listed()
        items.sort(key=lambda item: cover.is_later(item.nodeid, later))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.write_text(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def first_failure(
    room: Path, tests: list[str], seconds: float = SECONDS, whole: float = WHOLE
) -> str:
    """Run tests in a copy of the repository, in a process of their own, until one fails.

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
        _child(room, tests, answer, running)
    with suppress(OSError):
        os.setpgid(child, child)  # the child does so, too; whoever comes first
    end = time.monotonic() + 20 * whole  # of a machine that does other things, too
    _running.add(child)
    test, began = "", 0.0
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        used = _cpu(child)
        if (now := running.read_text()) != test:
            test, began = now, used
        hangs = used - began > seconds
        if hangs or used > whole or time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            _running.discard(child)
            return f"{test} hangs" if hangs else LATE
        time.sleep(0.1)
    _running.discard(child)
    return answer.read_text() if answer.exists() else f"{running.read_text()} crashes"


def _child(room: Path, tests: list[str], answer: Path, running: Path) -> None:
    os.setpgid(0, 0)
    log = os.open(room / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1), os.dup2(log, 2)
    try:
        os.chdir(room)
        os.environ |= {"PYTHONPATH": str(room), "MASKC_EMULATOR_DIR": str(room / "emulator"),
                       "PYTEST_DEBUG_TEMPROOT": str(room)}  # fmt: skip
        sys.path.insert(0, str(room))
        for name in [name for name in sys.modules if name.split(".")[0] in ("maskc", "tests")]:
            del sys.modules[name]
        reporter = Reporter(running)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark",
                   "-m", "not gpu and not matrix"]  # fmt: skip
        code = pytest.main([*options, *tests], plugins=[reporter])
        answer.write_text(reporter.failed or ("" if code in (0, 5) else "it does not start"))
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
    leave = shutil.ignore_patterns("__pycache__", "results")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, room / name, ignore=leave)
        else:
            shutil.copy(source, room / name)


class Room:
    """A copy of the repository, in which one process plants faults one after another."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="maskc-mutants-", ignore_cleanup_errors=True
        )
        self._path, self._broken = Path(self._folder.name), set[str]()
        copied(self._path)

    def close(self) -> None:
        """Delete the copy."""
        self._folder.cleanup()

    def finder(self, fault: Fault) -> str:
        """Return what finds a fault. A test that fails without it, too, is left out after that."""
        while True:
            skipped = (f"--deselect={name}" for name in sorted(self._broken))
            found = planted_in(self._path, fault, [*tests_of(fault), *skipped])
            name = found.removesuffix(" hangs").removesuffix(" crashes")
            if "::" not in name or not first_failure(self._path, [name]):
                return found or f"{NONE}: {OPEN}"
            self._broken.add(name)


_rooms: list[Room] = []
"""The room of this process, made when its first fault comes."""


def _finder(fault: Fault) -> str:
    if not _rooms:
        _rooms.append(Room())
    return _rooms[0].finder(fault)


def _leave(*_: object) -> None:
    """End this process and the tests that it runs, because time is up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for child in _running:
        os.killpg(child, signal.SIGKILL)
    for room in _rooms:
        room.close()
    os._exit(1)


def tried(faults: list[Fault], jobs: int, seconds: float, say: Callable[[str], None]) -> None:
    """Plant faults, and add each to the table at once.

    Args:
        faults: which.
        jobs: processes side by side.
        seconds: after these, faults that have no answer are left for the next time.
        say: what prints each answer.
    """
    for name in HEAVY:
        with suppress(ImportError):
            import_module(name)
    pool = ProcessPoolExecutor(jobs, get_context("fork"), signal.signal, (signal.SIGTERM, _leave))
    answers = {pool.submit(_finder, fault): fault for fault in faults}
    try:
        for answer in as_completed(answers, timeout=seconds):
            table, key = read_table(), answers[answer].key
            table[key] = answer.result()
            write_table(table)
            say(f"{table[key]}  <-  {key}")
    except TimeoutError:
        say(f"Time is up: {sum(not answer.done() for answer in answers)} faults have no answer.")
        for process in list((pool._processes or {}).values()):
            process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)


def planted_in(room: Path, fault: Fault, tests: list[str]) -> str:
    """Return the first failure with a fault in the copy; the copy is as before afterwards."""
    place = room / fault.file
    text = place.read_text()
    lines = text.splitlines(keepends=True)
    lines[fault.line] = fault.new + "\n"
    place.write_text("".join(lines))
    try:
        return first_failure(room, tests)
    finally:
        place.write_text(text)


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
        known = {} if options.again else {key for key in table if table[key] != LATE}
        todo = [fault for fault in faults if fault.key not in known]
        tried(todo, options.jobs, 60 * options.minutes, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
