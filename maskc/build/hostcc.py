"""Compile C sources to shared objects with the machine's compiler.

Builds never use `-march=native`: the compiler is queried once for the flags that it means, and
these are in the flags and the cache key. Features of a compiler are tested, and the results are
cached until the compiler or the processor changes.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from maskc.build.binary import Binary, BuildReport
from maskc.build.cache import Cache, content_key, open_cache
from maskc.build.diagnostics import build_failed
from maskc.core.bundle import SourceUnit
from maskc.core.errors import NoCompiler
from maskc.core.problem import Feature, Features

FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
"""No -ffast-math: loading such a library flushes denormals in the whole process."""
LINK = ("-shared", "-fPIC")
_OPENMP = "-fopenmp"
_CANDIDATES = ("cc", "gcc", "clang")
_SECONDS = 300
"""The time that a source may take to compile."""
_TRIAL_SECONDS = 60
"""The time that a compiler may take to say what it is, or to build a library of one function."""
_PROBE = """\
#ifdef _OPENMP
#include <omp.h>
int answer(void) { return omp_get_max_threads() > 0 ? 42 : 0; }
#else
int answer(void) { return 42; }
#endif
"""
_SCHEMA = 1
"""Part of every key: raised when what is stored changes."""


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A compiler that was seen to make a shared object this process can load."""

    command: tuple[str, ...]
    """Program and leading arguments."""
    version: str
    """First line of its --version."""
    machine: tuple[str, ...]
    """Named flags that -march=native stands for on this machine; empty if unsupported."""
    openmp: bool
    """Whether it links OpenMP; without, kernels run in one thread."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Everything that decides the machine code, for the command line and the cache key."""
        return FLAGS + self.machine + ((_OPENMP,) if self.openmp else ()) + LINK


def host_compiler() -> HostCompiler:
    """The compiler of this process: `CC` if set, else the first of cc, gcc, clang that works.

    Raises:
        NoCompiler: none works; the message names each one tried and why it failed.
    """
    chosen = os.environ.get("CC", "").strip()
    compiler = _find(chosen, os.environ.get("PATH", ""), open_cache())
    if isinstance(compiler, str):
        raise NoCompiler(compiler)
    if compiler.command in _silent:
        raise NoCompiler(_silent[compiler.command])
    return compiler


_silent: dict[tuple[str, ...], str] = {}
"""Compilers that did not finish a trial, with the reason: they are not tried again."""


class _NoAnswer(Exception):
    """A compiler did not finish in time."""


@lru_cache(maxsize=8)
def _find(chosen: str, path: str, cache: Cache) -> HostCompiler | str:
    """The compiler, or what was tried; `path` is here because the answer depends on it.

    A compiler that does not finish is skipped under all of its names.
    """
    try:
        commands = [shlex.split(chosen)] if chosen else [[name] for name in _CANDIDATES]
    except ValueError as error:
        return f"CC={chosen} (not a command line: {error})"
    tried: list[str] = []
    hung: dict[Path, str] = {}
    for command in commands:
        shown = f"CC={chosen}" if chosen else command[0]
        program = shutil.which(command[0], path=path)
        if program is None:
            tried.append(f"{shown} (not found)")
            continue
        real = Path(program).resolve()
        answer: HostCompiler | str
        try:
            answer = hung.get(real) or _remembered((program, *command[1:]), cache)
        except _NoAnswer as silence:
            answer = hung[real] = str(silence)
        except OSError as error:
            answer = _first_line(str(error))
        if isinstance(answer, HostCompiler):
            return answer
        tried.append(f"{shown} ({answer})")
    return ", ".join(tried)


def _remembered(command: tuple[str, ...], cache: Cache) -> HostCompiler | str:
    """Try a compiler, or recall the trial: the same file on the same kind of processor."""
    real = Path(command[0]).resolve()
    stat = real.stat()
    key = content_key(
        "compiler", _SCHEMA, command, str(real), stat.st_size, stat.st_mtime_ns, _processor()
    )
    stored = cache.get(key)
    if stored is not None:
        version, machine, openmp = json.loads(stored)
        return HostCompiler(command, version, tuple(machine), openmp)
    answer = _try(command)
    if isinstance(answer, HostCompiler):
        facts = (answer.version, answer.machine, answer.openmp)
        cache.put(key, json.dumps(facts).encode())
    return answer


def _try(command: tuple[str, ...]) -> HostCompiler | str:
    """Compile, link, load and call a small library, with the most that works.

    Raises:
        _NoAnswer: it does not come back.
    """
    version = _version(command)
    native = _native(command)
    reason = ""
    for machine in dict.fromkeys((native, native[:1], ())):
        for openmp in (True, False):
            compiler = HostCompiler(command, version, machine, openmp)
            reason = _trial(compiler)
            if not reason:
                return compiler
    return reason


def _trial(compiler: HostCompiler) -> str:
    """'' when its library loads and answers, else why not."""
    try:
        with tempfile.TemporaryDirectory(prefix="maskc-") as folder:
            done = _compile(compiler, _PROBE, (), Path(folder), _TRIAL_SECONDS)
            if done.returncode:
                return _first_line(done.stdout) or f"exit status {done.returncode}"
            library = ctypes.CDLL(str(Path(folder) / "kernel.so"))
            return "" if library.answer() == 42 else "its library gives a wrong answer"
    except (OSError, AttributeError) as error:
        return _first_line(str(error)) or type(error).__name__


def _compile(
    compiler: HostCompiler, text: str, macros: tuple[str, ...], folder: Path, seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run the compiler on `text` inside `folder`, by relative names: no path enters the output."""
    (folder / "kernel.c").write_text(text, encoding="utf-8")
    files = ("-o", "kernel.so", "kernel.c", "-lm")
    return _run((*compiler.command, *compiler.flags, *macros, *files), seconds, folder)


def _run(
    command: tuple[str, ...], seconds: float, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Output and errors as one text, in English whatever the locale.

    The compiler runs in its own process group, so that its child processes end with it. If only the
    driver were killed, its child would keep the pipe open.

    Raises:
        _NoAnswer: it takes longer than that.
    """
    running = subprocess.Popen(
        command, cwd=folder, text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"LC_ALL": "C"},
        start_new_session=True,
    )  # fmt: skip
    with running:
        try:
            output, _ = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _kill(running)
            raise _NoAnswer(f"no answer within {seconds:g} seconds") from None
        except BaseException:
            _kill(running)
            raise
    return subprocess.CompletedProcess(command, running.returncode, output)


def _kill(running: subprocess.Popen[str]) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL)
    running.kill()


def _version(command: tuple[str, ...]) -> str:
    try:
        return _first_line(_run((*command, "--version"), _TRIAL_SECONDS).stdout)
    except OSError:
        return ""


def _native(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags that -march=native stands for: one processor name, then features."""
    probe = ("-march=native", "-###", "-O3", "-x", "c", "-c", os.devnull, "-o", os.devnull)
    try:
        log = _run((*command, *probe), _TRIAL_SECONDS).stdout
    except OSError:
        return ()
    for line in log.splitlines():
        if "cc1" in line and "native" not in line:
            with suppress(ValueError):  # a quote in a path that this compiler does not escape
                return _named_flags(shlex.split(line))
    return ()


def _named_flags(words: list[str]) -> tuple[str, ...]:
    """gcc passes -march=znver3 -mavx512f ...; clang -target-cpu znver3 -target-feature +avx512f."""
    following = list(pairwise(words))
    cpu = [value for word, value in following if word == "-target-cpu"]
    if cpu:
        features = [value for word, value in following if word == "-target-feature"]
        pairs = [("-Xclang", "-target-feature", "-Xclang", feature) for feature in features]
        return (f"-march={cpu[-1]}", *(word for pair in pairs for word in pair))
    architecture = [word for word in words if word.startswith("-march=")]
    rest = [word for word in words if re.match(r"-m(?!arch=)[a-z0-9]", word)]
    return (*architecture, *rest) if architecture else ()


@cache
def _processor() -> str:
    """A digest of what this processor can do; caches are shared between machines."""
    text = platform.machine() + platform.processor()
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        first = ""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU")
    text += "\n".join(line for line in first.splitlines() if line.startswith(wanted))
    return sha256(text.encode()).hexdigest()


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else ""


def build_c(unit: SourceUnit, features: Features, entries: tuple[str, ...]) -> Binary:
    """A shared object from the cache, or compiled now.

    Raises:
        NoCompiler: see host_compiler; or the compiler does not finish.
        BuildFailed: the compiler refuses the source.
    """
    macros = tuple(f"-D{feature.macro}=1" for feature in Feature if feature in features)
    return _built(unit, macros, (), entries)


def build_with_headers(unit: SourceUnit, headers: Path, entries: tuple[str, ...]) -> Binary:
    """A shared object that includes headers of another library, from the cache, or compiled now.

    Args:
        unit: the source.
        headers: the folder that its includes start from; the text of all headers is in the key.

    Raises:
        As `build_c`.
    """
    text = sha256()
    for path in sorted(headers.rglob("*.h")):
        text.update(str(path.relative_to(headers)).encode() + path.read_bytes())
    return _built(unit, (f"-I{headers}",), (text.hexdigest(),), entries)


def _built(
    unit: SourceUnit, macros: tuple[str, ...], keyed: tuple[str, ...], entries: tuple[str, ...]
) -> Binary:
    """Build a shared object; `keyed` replaces arguments with a path in the key."""
    compiler = host_compiler()
    flags = compiler.flags + (keyed or macros)
    key = content_key("c", _SCHEMA, unit.digest, flags, compiler.version)
    cache = open_cache()
    stored = cache.get(key)
    if stored is not None:
        return Binary(unit.target, stored, entries, key, BuildReport(compiler.version, flags, ""))
    with tempfile.TemporaryDirectory(prefix="maskc-") as name:
        try:
            done = _compile(compiler, unit.source, macros, Path(name), _SECONDS)
        except _NoAnswer as silence:
            _silent[compiler.command] = f"{' '.join(compiler.command)} ({silence})"
            raise NoCompiler(_silent[compiler.command]) from None
        if done.returncode:
            raise build_failed(compiler.version, unit, done.stdout)
        code = (Path(name) / "kernel.so").read_bytes()
    cache.put(key, code)
    return Binary(
        unit.target, code, entries, key, BuildReport(compiler.version, flags, done.stdout)
    )
