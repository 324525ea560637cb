"""Static files of kernels join a config header."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest

from maskc.core import abi, library
from maskc.core.library import SWITCHES, library_of, standing_alone
from maskc.core.package import template_folder
from maskc.core.problem import Feature

FILES = {
    "a/kernel.cuh": """#pragma once
// A kernel.
#include "a/part.cuh"
#include "a/part.cuh"
#if FAST && !WIDE
fast();
#elif LEVEL > 2
high();
#else
slow();
#endif
#if WITH_ENTMAX
#if FAST
entmax_fast();
#else
#include "a/one.cuh"
#endif
#else
softmax();
#endif
#if FAST && WITH_ENTMAX
both();
#endif
#include POLICY
""",
    "a/part.cuh": """#pragma once
part();
""",
    "a/one.cuh": "one();\n",
    "a/two.cuh": "two();\n",
}


@pytest.fixture(autouse=True)
def files(monkeypatch):
    read = library.static
    monkeypatch.setattr(library, "static", lambda name: FILES[name])
    library._whole.cache_clear()
    yield read
    library._whole.cache_clear()


def made(*lines: str) -> list[str]:
    text = "\n".join((*lines, '#include "a/kernel.cuh"'))
    lines = standing_alone(text).splitlines()
    return [line for line in lines if line and not line.startswith("// ====")]


def test_marks_say_from_which_file_lines_are():
    text = standing_alone('#define FAST 1\n#define LEVEL 0\n#include "a/kernel.cuh"\nend();\n')
    lines = [line for line in text.splitlines() if line]
    assert lines[2:5] == ["// ======== a/kernel.cuh", "// A kernel.", "// ======== a/part.cuh"]
    assert lines[6:8] == ["// ======== a/kernel.cuh", "fast();"]
    assert lines[-2:] == ["// ======== the config header", "end();"]


def test_what_a_header_defines_decides_branches_and_policies():
    fast = made("#define FAST 1", "#define LEVEL 3", '#define POLICY "a/two.cuh"')
    assert fast[3:] == [
        "// A kernel.", "part();", "fast();", "#if WITH_ENTMAX", "entmax_fast();", "#else",
        "softmax();", "#endif", "#if WITH_ENTMAX", "both();", "#endif", "two();",
    ]  # fmt: skip
    wide = made("#define FAST 1", "#define WIDE 1", "#define LEVEL 3", '#define POLICY "a/one.cuh"')
    assert wide[4:7] == ["// A kernel.", "part();", "high();"]
    assert wide[-1] == "one();"


@pytest.mark.parametrize("fast", [0, 1])
@pytest.mark.parametrize("wide", [0, 1])
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("entmax", [0, 1])
def test_the_preprocessor_agrees(fast, wide, level, entmax, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    header = (
        f"#define FAST {fast}\n#define WIDE {wide}\n#define LEVEL {level}\n"
        '#define POLICY "a/two.cuh"\n#include "a/kernel.cuh"\n'
    )
    command = ["cpp", "-P", f"-I{tmp_path}", f"-DWITH_ENTMAX={entmax}"]
    texts = [
        subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        for text in (header, standing_alone(header))
    ]
    assert texts[0].split() == texts[1].split()


def test_branches_of_both_kinds_in_one_chain_are_refused():
    text = '#define A 0\n#if A\n#elif WITH_ENTMAX\n#include "a/one.cuh"\n#endif\n'
    with pytest.raises(ValueError, match="elif WITH_ENTMAX"):
        standing_alone(text)


def test_macros_of_the_compiler_are_left_alone():
    text = "#ifndef PERSISTENT\n#define PERSISTENT 0\n#endif\n#if PERSISTENT\nx();\n#endif\n"
    assert standing_alone(text) == text
    assert library_of(text) == ""
    marked = f"{text}\n// ======== a/one.cuh\n\none();\n"
    assert standing_alone(f'{text}#include "a/one.cuh"\n') == marked


def test_the_digest_is_of_files_without_comments(monkeypatch):
    text = '#include "a/one.cuh"\n'
    before = library_of(text)
    for more, same in (("// a remark\n", True), ("more();\n", False)):
        monkeypatch.setattr(library, "static", lambda name, more=more: FILES[name] + more)
        library._whole.cache_clear()
        assert (library_of(text) == before) is same


ATTENTION = {
    "": abi.FIELDS, "WITH_SCORE": abi.SCORE_FIELDS, "WITH_DROPOUT": abi.DROPOUT_FIELDS,
    "WITH_FP8": abi.FP8_FIELDS, "WITH_PAGES": abi.PAGE_FIELDS,
    "E4M3_POOLS": abi.POOL_FIELDS,
}  # fmt: skip
"""The fields of `struct Attention` by the switch that adds them."""


@pytest.mark.parametrize(
    ("file", "struct", "blocks"),
    [
        ("arguments.h", "Attention", ATTENTION),
        ("lists_arguments.h", "Lists", {"": abi.LISTS_FIELDS}),
        ("selected_arguments.h", "Selected", {"": abi.SELECTED_FIELDS}),
        ("gathered_arguments.h", "Gathered", {"": abi.GATHERED_FIELDS}),
        ("moved_arguments.h", "Moved", {"": abi.MOVED_FIELDS}),
        ("page_arguments.h", "PageStep", {"": abi.STEP_FIELDS}),
        ("page_arguments.h", "PagedRows", {"": abi.PAGED_ROWS_FIELDS}),
        ("page_arguments.h", "BlockRows", {"": abi.BLOCK_ROWS_FIELDS}),
    ],
)
def test_argument_blocks_are_those_of_the_package(files, file, struct, blocks):
    text = files(f"common/lib/{file}")
    start = text.index(f"struct {struct} {{")
    body = text[start : text.index("};", start)].splitlines()[1:]
    declared: dict[str, list[tuple[str, str, int, str]]] = {name: [] for name in blocks}
    at = ""
    for line in body:
        if line.startswith("#"):
            at = line.removeprefix("#if ") if line.startswith("#if") else ""
            continue
        match = re.fullmatch(r"    (.*?\W)(\w+)(?:\[(\d+)\])?;  // (.*)", line)
        kind, name, count, note = match.groups()
        declared[at].append((kind.strip(), name, int(count or 1), note))
    for name, fields in blocks.items():
        expected = [(field.ctype, field.name, field.count, field.note) for field in fields]
        assert [row[:3] for row in declared[name]] == [row[:3] for row in expected], name
        if struct != "Attention":  # whose notes name files
            assert declared[name] == expected, name


def test_every_feature_has_a_default(files):
    text = files("common/lib/features.h")
    for feature in Feature:
        assert f"#ifndef {feature.macro}\n#define {feature.macro} 0\n#endif\n" in text


def test_static_files_have_no_jinja_and_ask_for_every_switch():
    folder = template_folder()
    texts = [
        file.read_text("utf-8") for kind in ("cuh", "h") for file in folder.glob(f"**/*.{kind}")
    ]
    assert len(texts) > 100
    assert not any(re.search(r"{%|%}|{#-|{{ spec", text) for text in texts)
    for switch in SWITCHES:
        assert any(re.search(rf"#\w*if.*\b{switch}\b", text) for text in texts), switch


def test_templates_include_files_that_exist():
    folder = template_folder()
    for file in (each for each in folder.rglob("*.*") if each.suffix in (".h", ".cuh", ".j2")):
        text = file.read_text("utf-8")
        for name in re.findall(r'(?:include|from) "([\w/]+\.(?:h|cuh)(?:\.j2)?)"', text):
            assert (folder / name).is_file(), f"{file.name} includes {name}"


@pytest.mark.parametrize("switch", [switch for switch in ATTENTION if "SCORE" not in switch][1:])
def test_blocks_are_packed_as_they_are_declared(switch):
    """The end included: another block may follow."""
    fields = ATTENTION[switch]
    packing, declared = abi.packer(fields), abi.structure(fields)
    values = range(1, 1 + sum(field.count for field in fields))
    block = declared.from_buffer_copy(packing.pack(*values))
    members = [getattr(block, field.name) for field in fields]
    assert [x for y in members for x in (y if hasattr(y, "__len__") else [y])] == [*values]
    assert packing.size == ctypes.sizeof(declared)
