"""Pattern files in unusual places, under unusual names, and with side effects."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import maskc as mc
from maskc.core.errors import (
    BadPatternName,
    FileMissing,
    FileUnreadable,
    MaskcError,
    NegativeWidth,
    NoPattern,
    PatternFailed,
    PatternTwice,
    SeveralErrors,
)
from tests.support.cli import maskc, maskc_json

HEAD = "import maskc as mc\n"
CPU = ("--target", "cpu", "--head-dim", "16", "--dtype", "float32")


def write(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(HEAD + body)
    return path


# ------------------------------------------------------------------ side effects


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("place", ["/", "..", "sub"])
def test_a_file_may_change_the_working_directory(here: Path, place: str):
    (here / "sub").mkdir()
    write(here, "moves.py", f"import os\nos.chdir({place!r})\nmask = mc.window(3)\n")
    before = list(sys.path), list(sys.meta_path)
    assert mc.load("moves.py") == {"mask": mc.window(3)}
    assert Path.cwd() == here
    assert (sys.path, sys.meta_path) == before


def test_a_pattern_may_change_the_working_directory(here: Path, tmp_path: Path):
    body = "import os\n@mc.pattern\ndef near():\n    os.chdir('/')\n    return mc.window(3)\n"
    write(here, "moves.py", body)
    written = maskc_json("compile", "moves.py", "-o", "out", *CPU)["written"]
    assert "out/near.py" in written
    assert (here / "out" / "near.py").is_file()
    assert not Path("/out").exists()
    assert Path.cwd() == here


@pytest.mark.parametrize("place", ["/", "..", "sub"])
def test_places_are_those_from_where_the_command_was_given(here: Path, place: str):
    (here / "sub").mkdir()
    lines = f"import os\nos.chdir({place!r})\nmask = mc.window(-3)\nwrong = {{}}['x']\n"
    write(here, "moves.py", lines)
    with pytest.raises(SeveralErrors) as caught:
        mc.load("moves.py")
    assert [str(error.at) for error in caught.value.errors] == ["moves.py:4:8", "moves.py:5:9"]
    assert str(caught.value).count("\n    hint") == str(caught.value).count("^\n") == 2


def test_a_file_may_remove_its_working_directory(here: Path):
    gone = here / "gone"
    write(gone, "moves.py", "import os, shutil\nshutil.rmtree(os.getcwd())\nmask = mc.window(3)\n")
    os.chdir(gone)
    try:
        assert mc.load(gone / "moves.py") == {"mask": mc.window(3)}
        file = write(here, "other.py", "mask = mc.window(-3)\n")
        with pytest.raises(NegativeWidth, match=r"other\.py:2:8"):
            mc.load(file)
        with pytest.raises(FileMissing):
            mc.load("other.py")
    finally:
        os.chdir(here)


def test_a_file_may_clear_the_places_of_imports(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    body = "import sys\nsys.path.clear()\nsys.meta_path.pop(0)\nmask = mc.window(3)\n"
    assert mc.load(write(here, "clears.py", body)) == {"mask": mc.window(3)}


def test_what_a_file_prints_is_no_result(here: Path):
    body = (
        "print('loading')\n@mc.pattern\ndef near(*, width: int = 3):\n"
        "    print('called')\n    return mc.window(width)\n"
    )
    write(here, "prints.py", body)
    answer = maskc_json("compile", "prints.py", "--emit", "mask", "--set", "width=4")
    assert answer == {"mask": {"near": "window(4)\n"}}
    done = maskc("compile", "prints.py", "--emit", "mask")
    assert done.stdout == "window(3)\n"
    assert done.stderr.split() == ["loading", "called", "called"]


def test_dataclasses_and_annotations_work(here: Path):
    body = (
        "mask = mc.window(3)\n"
        "from dataclasses import dataclass\n@dataclass\nclass Size:\n    w: 'int' = 3\n"
    )
    assert list(mc.load(write(here, "typed.py", body))) == ["mask"]
    assert "maskc_pattern_file" not in sys.modules


# ------------------------------------------------------------------ what a file raises


@pytest.mark.parametrize("raised", [
    "SystemExit(0)", "SystemExit('text')", "GeneratorExit()", "BaseException('odd')",
    "RecursionError()", "MemoryError()", "StopIteration()", "ValueError('{0} {x}')",
])  # fmt: skip
@pytest.mark.parametrize("inside", [False, True])
def test_whatever_is_raised_is_a_mistake_with_its_line(here: Path, raised: str, inside: bool):
    body = f"raise {raised}\n"
    if inside:
        body = f"@mc.pattern\ndef near():\n    raise {raised}\n"
    write(here, "raises.py", body)
    with pytest.raises(PatternFailed) as caught:
        mc.load("raises.py")
    assert (caught.value.at.file, caught.value.at.line) == ("raises.py", 4 if inside else 2)
    assert raised.partition("(")[0] in str(caught.value)


def test_an_error_without_a_text(here: Path):
    body = "class Odd(Exception):\n    def __str__(self):\n        return {}[self]\nraise Odd\n"
    with pytest.raises(PatternFailed, match=r"Odd: .its text raised KeyError"):
        mc.load(write(here, "raises.py", body))


def test_an_interrupt_is_the_users(here: Path):
    write(here, "raises.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        mc.load("raises.py")
    assert Path.cwd() == here
    assert maskc("compile", "raises.py", code=1).stdout == ""


def test_only_with_a_setting_a_pattern_exits(here: Path):
    body = (
        "import sys\n@mc.pattern\ndef near(*, width: int = 3):\n"
        "    sys.exit(0) if width > 3 else None\n    return mc.window(width)\n"
    )
    write(here, "exits.py", body)
    done = maskc("compile", "exits.py", "--set", "width=4", code=1)
    assert "MC201 exits.py:5:5  the pattern file raised SystemExit: 0" in done.stderr


@pytest.mark.parametrize("body", ["def f():\n    return f()\nf()\n", "x = " + "(" * 5000 + "\n"])
def test_endless_recursion(here: Path, body: str):
    with pytest.raises(PatternFailed, match=r"RecursionError|SyntaxError|MemoryError"):
        mc.load(write(here, "deep.py", body))


def test_mistakes_of_a_file_that_a_file_loads_come_apart(here: Path):
    write(here, "inner.py", "a = mc.window(-1)\nb = mc.window(-2)\n")
    write(here, "outer.py", "mc.load('inner.py')\n")
    with pytest.raises(SeveralErrors) as caught:
        mc.load("outer.py")
    assert [error.code for error in caught.value.errors] == ["MC101", "MC101"]


# ------------------------------------------------------------------ places


def test_a_link_is_the_file_it_names(here: Path, tmp_path: Path):
    """Messages give the link's name, neighbours are those of the file itself."""
    real = tmp_path / "real"
    write(real, "beside_the_link.py", "WIDTH = 7\n")
    body = (
        "from beside_the_link import WIDTH\n@mc.pattern\ndef near():\n    return mc.window(WIDTH)\n"
    )
    target = write(real, "target.py", body)
    (here / "link.py").symlink_to(target)
    loaded = mc.load("link.py")
    assert list(loaded) == ["near"]
    assert loaded["near"]() == mc.window(7)
    assert loaded["near"].loc.file == "link.py"
    target.write_text(target.read_text() + "wrong = mc.window(-1)\n")
    with pytest.raises(NegativeWidth, match=r"MC101 link\.py:6:9"):
        mc.load("link.py")


def test_a_folder_behind_a_link(here: Path, tmp_path: Path):
    write(tmp_path / "real", "one.py", "@mc.pattern\ndef one():\n    return mc.causal()\n")
    (here / "masks").symlink_to(tmp_path / "real")
    assert maskc_json("compile", "masks", "--emit", "mask")["mask"] == {"one": "causal()\n"}


def test_files_of_one_name_are_told_apart(here: Path, tmp_path: Path):
    """A pattern imported from another folder's file of the same name is not this file's."""
    pack = tmp_path / "elsewhere" / "package_of_test"
    write(pack, "__init__.py", "")
    write(pack, "near.py", "@mc.pattern\ndef theirs():\n    return mc.causal()\n")
    body = (
        f"import sys\nsys.path.insert(0, {str(pack.parent)!r})\n"
        "from package_of_test.near import theirs\nsys.path.pop(0)\n"
        "@mc.pattern\ndef ours():\n    return theirs()\n"
    )
    assert list(mc.load(write(here, "near.py", body))) == ["ours"]


def test_helpers_of_one_name_are_told_apart(tmp_path: Path):
    for folder, width in (("a", 3), ("b", 4)):
        write(tmp_path / folder, "helper_of_test.py", f"WIDTH = {width}\n")
        write(tmp_path / folder, "p.py", "import helper_of_test as h\nm = mc.window(h.WIDTH)\n")
    masks = [mc.load(tmp_path / folder / "p.py")["m"] for folder in "aba"]
    assert masks == [mc.window(3), mc.window(4), mc.window(3)]


HOSTILE = "raise ImportError('this is not the module that was meant')\n"


@pytest.mark.parametrize("name", ["numpy", "maskc", "islpy", "sympy", "random", "types", "torch"])
def test_a_file_with_the_name_of_a_module(tmp_path: Path, name: str):
    """Neither what maskc imports meanwhile nor what a neighbour imports is taken from it."""
    write(tmp_path, f"{name}.py", "mask = mc.where(lambda q, k: (q // 3 == k // 3) & (k > 2))\n")
    assert list(mc.load(tmp_path / f"{name}.py")) == ["mask"]
    (tmp_path / f"{name}.py").write_text(HOSTILE)
    body = f"import random, numpy, {'types' if name == 'torch' else name}\nmask = mc.causal()\n"
    assert mc.load(write(tmp_path, "other.py", body)) == {"mask": mc.causal()}


def test_another_process_does_not_import_it_either(tmp_path: Path):
    """There, nothing was imported before."""
    import subprocess

    for name in ("islpy", "sympy", "jinja2", "random", "json", "inspect", "select", "ml_dtypes"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    write(tmp_path, "numpy.py", "mask = mc.where(lambda q, k: (q + k) % 3 < 2)\n")
    program = (
        f"from maskc.cli import main\nmain(['explain', {str(tmp_path / 'numpy.py')!r}, "
        "'--target', 'cpu', '--n', '64'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ paths


@pytest.mark.parametrize("path", ["a\0b.py", "no/such.py", "", "x" * 300 + ".py", "file/x.py"])
def test_paths_of_nothing(here: Path, path: str):
    (here / "file").write_text("")
    with pytest.raises((FileMissing, FileUnreadable)) as caught:
        mc.load(path)
    assert caught.value.exit_code == 2
    assert maskc("compile", path, code=2).stdout == ""


def test_links_in_a_circle(here: Path):
    (here / "a.py").symlink_to("b.py")
    (here / "b.py").symlink_to("a.py")
    with pytest.raises(FileUnreadable, match="Too many levels of symbolic links"):
        mc.load("a.py")


def test_nobody_waits_for_a_pipe(here: Path):
    os.mkfifo(here / "pipe.py")
    with pytest.raises(FileUnreadable, match=r"cannot read pipe\.py: it is not a regular file"):
        mc.load("pipe.py")


def test_a_file_that_may_not_be_read(here: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(here, "secret.py", "mask = mc.causal()\n")

    def refused(_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(FileUnreadable, match=r"MC208  cannot read .*secret\.py: Permission denied"):
        mc.load(file)


def test_a_folder_with_the_name_of_a_file(here: Path):
    (here / "x.py").mkdir()
    write(here, "y.py", "mask = mc.causal()\n")
    assert maskc_json("compile", ".", "--emit", "mask")["mask"] == {"mask": "causal()\n"}
    with pytest.raises(FileMissing):
        mc.load("x.py")
    assert "MC202 x.py" in maskc("compile", "x.py", code=1).stderr


@pytest.mark.parametrize(("content", "error"), [
    (b"", NoPattern), (b"x = 3\n", NoPattern), (b"\xef\xbb\xbf", NoPattern), (b"\0", PatternFailed),
    ("import maskc as mc\n".encode("utf-16"), PatternFailed), (b"x = '\xff'\n", PatternFailed),
    (b"# -*- coding: no-such -*-\n", PatternFailed), (b"#\0\n", PatternFailed),
])  # fmt: skip
def test_contents_of_every_kind(here: Path, content: bytes, error: type[MaskcError]):
    (here / "odd.py").write_bytes(content)
    with pytest.raises(error) as caught:
        mc.load("odd.py")
    assert "odd.py" in str(caught.value.at)


@pytest.mark.parametrize(("encoding", "head"), [
    ("utf-8-sig", ""), ("latin-1", "# -*- coding: latin-1 -*-\n"), ("utf-8", ""),
])  # fmt: skip
def test_encodings_that_python_reads(here: Path, encoding: str, head: str):
    text = head + HEAD + "ß = 'ü'; mask = mc.window(-1)\n"
    (here / "coded.py").write_bytes(text.encode(encoding))
    with pytest.raises(NegativeWidth) as caught:
        mc.load("coded.py")
    assert "    ß = 'ü'; mask = mc.window(-1)\n                    ^^^" in str(caught.value)


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    "name", ["../escape", "/escape", "a b", "class", "1x", "", "a\0b", "ﬁrst", "x" * 41, "a.b"]
)
def test_no_name_leaves_the_folder(here: Path, name: str):
    for value in ("mc.full()", "mc.pattern(lambda_)"):
        body = f"def lambda_():\n    return mc.full()\nglobals()[{name!r}] = {value}\n"
        write(here, "named.py", body)
        with pytest.raises(BadPatternName):
            mc.load("named.py")
        before = sorted(here.parent.rglob("*"))
        maskc("compile", "named.py", "-o", "out", *CPU, code=1)
        assert sorted(here.parent.rglob("*")) == before


def test_a_name_that_is_no_text(here: Path):
    with pytest.raises(BadPatternName, match="found 3"):
        mc.load(write(here, "named.py", "globals()[3] = mc.full()\n"))


@pytest.mark.parametrize("name", ["numpy", "maskc", "random", "types"])
def test_a_module_that_hides_what_it_imports_is_not_written(here: Path, name: str):
    write(
        here, "hides.py", f"@mc.pattern\ndef {name}_():\n    return mc.full()\n{name} = {name}_\n"
    )
    assert name in mc.load("hides.py")
    done = maskc("compile", "hides.py", "--pattern", name, "-o", "out", *CPU, code=2)
    assert f"the pattern '{name}' would be written as {name}.py" in done.stderr
    assert f"rename the pattern, for example to {name}_mask" in done.stderr
    assert not (here / "out").exists()
    assert maskc("explain", "hides.py", "--pattern", name, *CPU).stdout


def test_a_pattern_that_would_be_lost(here: Path):
    twice = "@mc.pattern\ndef near():\n    return mc.window({})\n"
    write(here, "twice.py", twice.format(3) + twice.format(4))
    with pytest.raises(PatternTwice, match=r"near is defined twice: .* in line 2 would be lost"):
        mc.load("twice.py")
    write(here, "kept.py", twice.format(3) + "first = near\n" + twice.format(4))
    assert list(mc.load("kept.py")) == ["near", "first"]


@pytest.mark.parametrize("place", ["a\0b", "out\0"])
def test_a_null_character_in_the_place_to_write(here: Path, place: str):
    done = maskc("compile", "--expr", "full()", "-o", place, *CPU, code=2)
    assert "cannot write" in done.stderr
    done = maskc("visualize", "--expr", "full()", "--n", "8", "-o", f"{place}.svg", code=2)
    assert "cannot write" in done.stderr
    assert json.loads(
        maskc("compile", "--expr", "full()", "-o", place, *CPU, "--json", code=2).stderr
    )["errors"][0]["code"] == "MC603"  # fmt: skip
