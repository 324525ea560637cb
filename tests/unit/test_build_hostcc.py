"""Finding a C compiler by trying it, naming its flags, and building shared objects."""

from __future__ import annotations

import ctypes
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from maskc.build import build, hostcc
from maskc.core.bundle import SourceUnit
from maskc.core.errors import BuildFailed, NoCompiler
from maskc.core.problem import Direction, Feature, TileShape
from maskc.core.source import SourceLoc
from tests.support.thorough import more

ROOT = Path(__file__).parents[2]
SOURCE = """\
// a kernel of one line
#ifndef WITH_SOFTCAP
#define WITH_SOFTCAP 0
#endif
void attention_forward(int *p, int threads) { p[0] = WITH_SOFTCAP ? 2 : 1; p[1] = threads; }
"""


def unit(text: str = SOURCE, **more) -> SourceUnit:
    return SourceUnit("cpu", text, TileShape(64, 64), ranges=False, **more)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


pytestmark = pytest.mark.shipped_flags


def script(folder: Path, name: str, body: str) -> Path:
    """A stand-in for a compiler."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def real() -> str:
    return hostcc.host_compiler().command[0]


def test_what_this_machine_has():
    compiler = hostcc.host_compiler()
    assert compiler.version
    assert hostcc.host_compiler() is compiler
    flags = " ".join(compiler.flags)
    assert "native" not in flags
    assert "fast-math" not in flags
    assert {"-O3", "-std=gnu11", "-ffp-contract=fast", "-shared", "-fPIC"} <= set(compiler.flags)
    assert compiler.openmp == ("-fopenmp" in compiler.flags)


def test_every_candidate_is_named(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin", "gcc", "print('gcc: out of order'); sys.exit(3)")
    script(tmp_path / "bin", "clang", "sys.exit(1)")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(NoCompiler) as caught:
        hostcc.host_compiler()
    tried = "cc (not found), gcc (gcc: out of order), clang (exit status 1)"
    assert caught.value.finding == f"no working C compiler: tried {tried}"


def test_a_compiler_that_writes_nothing_useful(monkeypatch, tmp_path):
    """It succeeds and leaves a file that is no library."""
    body = "open('kernel.so', 'w').write('text') if 'kernel.c' in sys.argv else None"
    monkeypatch.setenv("CC", str(script(tmp_path, "fake", body)))
    with pytest.raises(NoCompiler, match=r"CC=.*fake \(.*kernel\.so"):
        hostcc.host_compiler()


WITHOUT = """
if any(word.startswith({refused!r}) for word in sys.argv):
    sys.exit('unrecognized option')
os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


def test_without_openmp_kernels_run_in_one_thread(monkeypatch, tmp_path):
    body = WITHOUT.format(refused="-fopenmp", real=real())
    monkeypatch.setenv("CC", str(script(tmp_path, "plain", body)))
    compiler = hostcc.host_compiler()
    assert not compiler.openmp
    assert "-fopenmp" not in compiler.flags
    assert call(build(unit()))[0] == 1


def test_without_named_processors_the_code_is_generic(monkeypatch, tmp_path):
    body = WITHOUT.format(refused="-march", real=real())
    monkeypatch.setenv("CC", str(script(tmp_path, "generic", body)))
    compiler = hostcc.host_compiler()
    assert compiler.machine == ()


def test_a_compiler_with_arguments(monkeypatch):
    monkeypatch.setenv("CC", f"{real()} -DEXTRA=1")
    assert hostcc.host_compiler().command[1:] == ("-DEXTRA=1",)


def test_a_trial_is_remembered_until_the_compiler_changes(monkeypatch, tmp_path):
    counter = tmp_path / "count"
    body = f"open({str(counter)!r}, 'a').write('x')\n" + WITHOUT.format(refused="--no", real=real())
    path = script(tmp_path, "counted", body)
    monkeypatch.setenv("CC", str(path))

    def runs() -> int:
        hostcc._find.cache_clear()  # as another process would start
        hostcc.host_compiler()
        return len(counter.read_text())

    first = runs()
    assert first >= 3
    assert runs() == first
    os.utime(path, ns=(1, 1))
    assert runs() > first


# ------------------------------------------------------------------ compilers that hang


HANGING = """
import subprocess, time
open({counter!r}, 'a').write('x')
if {when}:
    subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])  # holds the pipe open
os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


def hanging(folder: Path, name: str, when: str = "True") -> Path:
    body = HANGING.format(counter=str(folder / "count"), real=real(), when=when)
    return script(folder, name, body)


def calls_of(folder: Path) -> int:
    return len((folder / "count").read_text())


@pytest.mark.parametrize(
    "when",
    [more("True"), "'-###' in sys.argv", "'kernel.c' in sys.argv", more("'-fopenmp' in sys.argv")],
)
def test_a_compiler_that_hangs_costs_one_timeout(monkeypatch, tmp_path, when):
    monkeypatch.setenv("CC", str(hanging(tmp_path, "slow", when)))
    waited = silences(monkeypatch)
    for _ in range(3):
        with pytest.raises(NoCompiler, match=r"CC=.*slow \(no answer within 1 seconds\)"):
            hostcc.host_compiler()
    assert waited == [1]
    assert calls_of(tmp_path) <= 3


def silences(monkeypatch, seconds: float = 1) -> list[float]:
    """Return the seconds of each wait in vain."""
    waited: list[float] = []
    run = hostcc._run

    def noted(command, limit, folder=None):
        try:
            return run(command, seconds, folder)
        except hostcc._NoAnswer:
            waited.append(seconds)
            raise

    monkeypatch.setattr(hostcc, "_run", noted)
    return waited


def test_two_names_of_a_compiler_that_hangs_are_one(monkeypatch, tmp_path):
    path = hanging(tmp_path, "gcc")
    for name in ("cc", "clang"):
        (tmp_path / name).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    waited = silences(monkeypatch)
    with pytest.raises(NoCompiler, match=r"tried cc \(no answer .*gcc \(no .*clang \(no answer"):
        hostcc.host_compiler()
    assert waited == [1]


def test_another_compiler_is_tried_where_one_hangs(monkeypatch, tmp_path):
    right = real()
    hanging(tmp_path, "cc")
    (tmp_path / "gcc").symlink_to(right)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    waited = silences(monkeypatch)
    assert hostcc.host_compiler().command == (str(tmp_path / "gcc"),)
    assert waited == [1]


def test_a_source_that_is_never_finished_is_waited_for_once(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(hanging(tmp_path, "slow", "'-DWITH_SOFTCAP=1' in sys.argv")))
    assert call(build(unit())) == (1, 5)
    waited = silences(monkeypatch, 2)
    for text in (SOURCE, SOURCE.replace("? 2", "? 3")):
        with pytest.raises(NoCompiler, match=r"slow \(no answer within 2 seconds\)"):
            build(unit(text), frozenset({Feature.softcap}))
    assert waited == [2]


def test_what_a_compiler_started_ends_with_it(tmp_path):
    path = hanging(tmp_path, "slow")
    with pytest.raises(hostcc._NoAnswer):
        hostcc._run((str(path),), 0.5)


@pytest.mark.parametrize("text", ["gcc 'x", 'gcc "', "gcc \\"])
def test_a_quote_that_is_never_closed(monkeypatch, text):
    monkeypatch.setenv("CC", text)
    with pytest.raises(NoCompiler) as caught:
        hostcc.host_compiler()
    assert f"tried CC={text} (not a command line: No " in str(caught.value)


@pytest.mark.parametrize("text", ["''", "~/no-such", "/", "."])
def test_what_is_no_program(monkeypatch, text):
    monkeypatch.setenv("CC", text)
    with pytest.raises(NoCompiler, match=r"\(not found\)"):
        hostcc.host_compiler()


GCC = (
    '/usr/lib/gcc/cc1 -quiet "-march=znver3" -mavx512f -mno-xop --param "l1=48" "-mtune=znver3" x.c'
)
CLANG = (
    '"/usr/bin/clang" "-cc1" "-target-cpu" "x86-64" "-O3" "-target-cpu" "znver5" '
    '"-target-feature" "+avx512f" "-target-feature" "-xop" "-mrelocation-model" "pic"'
)


def test_native_is_named_the_way_each_compiler_names_it():
    gcc = hostcc._named_flags(shlex.split(GCC))
    assert gcc == ("-march=znver3", "-mavx512f", "-mno-xop", "-mtune=znver3")
    clang = hostcc._named_flags(shlex.split(CLANG))
    assert clang[0] == "-march=znver5"
    assert clang[1:5] == ("-Xclang", "-target-feature", "-Xclang", "+avx512f")
    assert "-mrelocation-model" not in clang
    assert hostcc._named_flags(["cc1", "-O3"]) == ()


# ------------------------------------------------------------------ building


def call(binary) -> tuple[int, int]:
    """Load the way the runtime does, and run."""
    from maskc.runtime.launch.cpu import load_library

    numbers = (ctypes.c_int * 2)()
    getattr(load_library(binary), binary.entries[0])(numbers, 5)
    return tuple(numbers)


def test_features_are_macros():
    plain, capped = build(unit()), build(unit(), frozenset({Feature.softcap}))
    assert (call(plain)[0], call(capped)[0]) == (1, 2)
    assert "-DWITH_SOFTCAP=1" in capped.report.flags
    assert plain.key != capped.key
    assert plain.entries == ("attention_forward",)
    both = (Direction.forward, Direction.backward)
    assert build(unit(), directions=both).entries == ("attention_forward", "attention_backward")


def test_nan_safe_is_no_other_binary_in_c():
    assert build(unit(), frozenset({Feature.nan_safe})).key == build(unit()).key


def test_comments_do_not_make_another_binary():
    renamed = SOURCE.replace("a kernel of one line", "the same kernel, of another mask")
    assert build(unit(renamed)).key == build(unit()).key
    assert build(unit(SOURCE.replace("? 2", "? 3"))).key != build(unit()).key


def test_a_second_build_comes_from_the_cache(monkeypatch):
    first = build(unit())
    monkeypatch.setattr(hostcc, "_compile", None)
    assert build(unit()).code == first.code


def test_a_damaged_binary_is_built_again(tmp_path):
    from maskc.build import CacheWarning

    first = build(unit())
    damaged = 0
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file() and first.code in path.read_bytes():
            path.write_bytes(path.read_bytes()[:-1])
            damaged += 1
    assert damaged == 1
    with pytest.warns(CacheWarning):
        again = build(unit())
    assert call(again) == (1, 5)
    assert build(unit()).code == again.code


def test_the_same_source_gives_the_same_bytes(monkeypatch, tmp_path):
    first = build(unit())
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert build(unit()).code == first.code


TWO = """
import hashlib, sys
from maskc.build import build
from tests.unit.test_build_hostcc import unit
print(hashlib.sha256(build(unit()).code).hexdigest())
"""


def test_two_processes_build_at_once():
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", TWO], stdout=subprocess.PIPE, cwd=ROOT
        )
        for _ in range(2)
    ]
    answers = {process.communicate(timeout=60)[0] for process in started}
    assert len(answers) == 1
    assert answers != {b""}


# ------------------------------------------------------------------ diagnostics


ORIGINS = (
    (2, SourceLoc("mask.py", 12, 5), "window(256, 0)"),
    (4, SourceLoc("mask.py", 14, 9), "sinks(4)"),
)


@pytest.mark.parametrize(
    ("text", "line", "place"),
    [
        ("int a;\nint b;\nint c = ;\nint d;\n", "line 3: ", "mask.py:12:5"),
        ("int a;\nint b;\nint c;\nint d = ;\n", "line 4: ", "mask.py:14:9"),
        ("int a = ;\nint b;\n", "line 1: ", "None"),
    ],
)
def test_an_error_is_placed_at_the_users_line(text, line, place):
    with pytest.raises(BuildFailed) as caught:
        build(unit(text, origins=ORIGINS))
    shown = str(caught.value)
    assert line in shown
    assert text.splitlines()[int(line[5]) - 1] in shown
    assert str(caught.value.at) == place


def test_at_most_three_errors_are_quoted():
    with pytest.raises(BuildFailed) as caught:
        build(unit("int a = ;\n" * 9))
    assert str(caught.value).count("line ") == 3


def test_a_failure_without_a_line():
    with pytest.raises(BuildFailed, match=r"#include|nothing\.h|No such file"):
        build(unit('#include "nothing.h"\n'))


def test_a_library_that_does_not_load():
    from maskc.runtime.launch.cpu import load_library

    broken = build(unit("void missing(void); void attention_forward(void) { missing(); }"))
    with pytest.raises(BuildFailed, match=r"the dynamic loader refused .*missing"):
        load_library(broken)
