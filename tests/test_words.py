"""The words of docstrings, comments and local names: fewer exceptions from the rules, never more.

`python -m tests.support.words` prints what the tests count, and `--lower` lowers the ceilings.
"""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support import words
from tests.support.words import Finding


def above(every: list[Finding]) -> list[str]:
    """Return the findings of every rule and folder with more of them than its ceiling."""
    ceilings = words.ceilings()
    now = words.counts(every)
    return [
        f"{finding} (in {finding.folder}: {now[key]}, at most {ceilings.get(key, 0)})"
        for finding in every
        if now[key := (finding.rule, finding.folder)] > ceilings.get(key, 0)
    ]


@cache
def in_the_repository() -> list[Finding]:
    return list(words.findings(words.files()))


@pytest.mark.parametrize("folder", words.SOURCES)
def test_words(folder: str):
    every = [x for x in in_the_repository() if x.folder.split("/")[0] == folder]
    assert not above(every), "\n".join(above(every))


def test_format_is_skipped_where_it_saves_lines():
    folder = Path(sys.executable).parent
    if not (shutil.which("ruff") or shutil.which("ruff", path=str(folder))):
        pytest.skip("needs ruff, of the dev extra")
    every = list(words.needless_skips(words.files()))
    assert not above(every), "\n".join(above(every))


PLAIN = '''
"""Functions of one file."""

RATE = 3
"""Requests per second. A comment may say what a test is for."""


def rows(tiles):
    """Return the rows of some tiles.

    Args:
        tiles: a list of tiles, each with the number of its row, the number of its column, and the
            range of keys that it covers in the layout of a forward pass.

    Returns:
        Row numbers, ascending.
    """
    return sorted(tile.row for tile in tiles)  # the layout lists columns first
'''
BROKEN = {
    "first word": '"""What a row holds."""',
    "first word in a method": 'class A:\n    def f(self):\n        """Of two rows the first."""',
    "first word of an attribute": 'X = 1\n"""Those that stay."""',
    "indented paragraph": '"""Rows of tiles.\n\nEach has keys,\n    which come in order."""',
    "phrase 'but for'": "x = 1  # all rows, but for the last",
    "phrase 'is to be'": '"""The row is to be\n    written."""',
    "phrase 'that is to say'": "# twice, that is to say\n# for both sides",
    "phrase 'of which'": '"""Rows, of which some are empty."""',
    "phrase 'beside'": '"""Time beside that of softmax."""',
    "phrase 'what is'": "# the sum of what is left",
    "phrase 'asks for'": "# a kernel asks for registers",
    "phrase 'so-manieth'": "# every so-manieth row",
    "phrase 'whose ... whose'": '"""Rows whose keys, and whose values, are equal."""',
    "long sentence": f'"""Return {"one more word and " * 9}the end."""',
    "vague name": "def f(found):\n    return [each for each in found]",
}


def findings_in(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    file = tmp_path / "maskc" / "ir" / "some.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return list(words.findings([file]))


def test_plain_text_breaks_no_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert findings_in(PLAIN, tmp_path, monkeypatch) == []


@pytest.mark.parametrize("name", BROKEN)
def test_rules(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rules = {finding.rule for finding in findings_in(BROKEN[name], tmp_path, monkeypatch)}
    assert rules == {name.split(" in ")[0].split(" of an ")[0]}


def test_places_of_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = findings_in(BROKEN["vague name"], tmp_path, monkeypatch)
    assert (first.folder, first.line, second.line) == ("maskc/ir", 1, 2)
    assert str(first) == "maskc/ir/some.py:1: vague name: found"


def test_comments_of_templates(tmp_path: Path):
    file = tmp_path / "kernel.cu.j2"
    file.write_text("{#- a template\n    of two lines -#}\nint x;  // a number\n// two\n// lines\n")
    assert dict(words.comments(file)) == {1: "a template of two lines a number two lines"}


def test_ceilings_only_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(words, "CEILINGS", tmp_path / "words.txt")
    words.lower(words.Counter({("first word", "maskc"): 3, ("vague name", "tests/unit"): 2}))
    words.lower(words.Counter({("first word", "maskc"): 1, ("vague name", "tests/unit"): 5}))
    assert words.ceilings() == {("first word", "maskc"): 1, ("vague name", "tests/unit"): 2}
    words.lower(words.Counter())
    assert words.ceilings() == {}


def test_needless_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if shutil.which("ruff") is None and not (Path(sys.executable).parent / "ruff").exists():
        pytest.skip("needs ruff, of the dev extra")
    file = tmp_path / "some.py"
    pairs = ", ".join(f"({i}, 'number {i}')" for i in range(6))
    file.write_text(f"x = f(1,\n      2)  # fmt: skip\nTABLE = [\n    {pairs},\n]  # fmt: skip\n")
    assert [finding.line for finding in words.needless_skips([file])] == [2]
