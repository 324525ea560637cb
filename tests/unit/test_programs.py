"""The programs in docs/programs run, print what docs/programs.md says, and are what it shows."""

from __future__ import annotations

import ast
import io
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.unit.test_docs import blocks

FOLDER = Path(__file__).parents[2] / "docs" / "programs"
SHOWN = {
    block.title: block
    for block in blocks(FOLDER.with_suffix(".md"))
    if block.language == "python"
}  # fmt: skip
LINES = 55
"""Lines of a screen."""


def test_the_page_shows_every_program() -> None:
    assert sorted(SHOWN) == sorted(path.name for path in FOLDER.glob("*.py"))
    for name, block in SHOWN.items():
        assert block.text == (FOLDER / name).read_text(), f"copy {name} into docs/programs.md"
        assert block.text.count("\n") <= LINES, name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_program(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for node in ast.parse(SHOWN[name].text).body:
        names = [x.name for x in node.names] if isinstance(node, ast.Import) else []
        for module in [*names, *([node.module] if isinstance(node, ast.ImportFrom) else [])]:
            pytest.importorskip(module.partition(".")[0])
    out = io.StringIO()
    with redirect_stdout(out):
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    if SHOWN[name].printed is None:  # numbers that differ from machine to machine
        assert out.getvalue()
    else:
        assert out.getvalue() == SHOWN[name].printed
