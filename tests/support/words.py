"""Rules for the words of docstrings, comments and local names, and the number of exceptions left.

    python -m tests.support.words                  # every finding: place, rule, text
    python -m tests.support.words maskc/viz        # findings below a folder
    python -m tests.support.words --lower          # lower the ceilings to today's counts

tests/golden/words.txt has a ceiling for each rule and folder. A ceiling may only fall: new text
follows the rules, and old text is counted until somebody rewrites it.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).parents[2]
CEILINGS = ROOT / "tests" / "golden" / "words.txt"
"""One line for each rule and folder with exceptions: the rule, the folder, their number."""
SOURCES = ("maskc", "templates", "tests")

FIRST_WORDS = re.compile(r"(?:What|Of|The same|Those|Its|But|How|As)\b")
"""A docstring must not start with these: they leave out what the function does or returns."""
PHRASES = {
    "but for": re.compile(r"\bbut for\b", re.IGNORECASE),
    "is to be": re.compile(r"\b(?:is|are) to be\b", re.IGNORECASE),
    "that is to say": re.compile(r"\bthat is to say\b", re.IGNORECASE),
    "of which": re.compile(r"\bof which\b", re.IGNORECASE),
    "whose ... whose": re.compile(r"\bwhose\b[^.]*\bwhose\b", re.IGNORECASE),
    "what is": re.compile(r"\b(?:of|by|in|for|to|with) what (?:is|are|was|were|it|they)\b"),
    "beside": re.compile(r"\bbeside\b", re.IGNORECASE),
    "asks for": re.compile(r"\basks for\b", re.IGNORECASE),
    "so-manieth": re.compile(r"\bso-manieth\b", re.IGNORECASE),
}
"""Patterns that no docstring or comment should have. Write: except; must; two sentences; two
sentences; two sentences; a noun; next to, alongside or compared with; needs; every s-th."""
MAX_WORDS = 35
"""Words that a sentence of a docstring may have."""
VAGUE = frozenset(("found", "each", "own", "anew", "beside"))
"""Names that do not say what a variable holds."""
_VAGUE = re.compile(rf"\b(?:{'|'.join(sorted(VAGUE))})\b")

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'`(\[]?[A-Z0-9`])")
_ITEM = re.compile(r"\s*[*\w][\w*.,` ]{0,40}: ")
"""The start of an item of Args, Returns or Raises."""


@dataclass(frozen=True)
class Finding:
    """A text that breaks a rule."""

    rule: str
    file: Path
    line: int
    text: str

    @property
    def folder(self) -> str:
        """The room of the package, or the kind of tests; templates count as one."""
        parts = self.file.relative_to(ROOT).parts
        deep = 1 if parts[0] == "templates" or len(parts) == 2 else 2
        return "/".join(parts[:deep])

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.rule}: {self.text[:100]}"


# ------------------------------------------------------------------ what is read


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text("utf-8"))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring, those of attributes included."""
    blocks: list[ast.AST] = [tree]
    while blocks:
        block = blocks.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in getattr(block, field, ()):
                if not isinstance(child, ast.Expr):
                    blocks.append(child)
                elif isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
                    yield child.lineno, child.value.value


def comments(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the joined text of every run of comment lines."""
    lines = dict(_comment_lines(file))
    start, texts = 0, []
    for line in sorted(lines):
        if texts and line == start + len(texts):
            texts.append(lines[line])
            continue
        if texts:
            yield start, " ".join(texts)
        start, texts = line, [lines[line]]
    if texts:
        yield start, " ".join(texts)


def _comment_lines(file: Path) -> Iterator[tuple[int, str]]:
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        for number, line in enumerate(text.splitlines(), start=1):
            if "#" in line and (comment := re.search(r"(?:^\s*|\s\s)# (.*)", line)):
                yield number, comment[1]
        return
    for block in re.finditer(r"\{#-?(.*?)-?#\}|/\*(.*?)\*/", text, re.DOTALL):
        first = text.count("\n", 0, block.start()) + 1
        body = block[1] if block[1] is not None else block[2]
        yield from enumerate((line.strip() for line in body.splitlines()), start=first)
    for number, line in enumerate(text.splitlines(), start=1):
        if comment := re.search(r"(?:^|\s)//\s?(.*)", line):
            yield number, comment[1]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring, without code, tables and the names of arguments."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        margin = min((len(x) - len(x.lstrip()) for x in lines[1:] if x.strip()), default=0)
        pieces: list[str] = []
        for line in lines:
            bare = line.strip()
            starts = bare.startswith(("|", ">>>", "..", "- ", "* ")) or _ITEM.match(line)
            is_deeper = len(line) - len(line.lstrip()) > margin + 2
            if not pieces or starts or (is_deeper and not _ITEM.match(pieces[-1])):
                pieces.append(bare)
            else:
                pieces[-1] += f" {bare}"
        for piece in pieces:
            yield from _SENTENCE_END.split(piece)


def words(sentence: str) -> int:
    """Return the number of words with letters in a sentence; code in backticks is one word."""
    return sum(bool(re.search("[A-Za-z]", x)) for x in re.sub("`[^`]*`", "code", sentence).split())


# ------------------------------------------------------------------ rules

SECTION = re.compile(r"^(?:Args|Returns|Raises|Warns|Yields|Attributes):", re.MULTILINE)
INDENTED = re.compile(r"^(?!- |\d+\. )\S.*[^:\s]\n {4}\S.*", re.MULTILINE)
"""A line of a paragraph, and one behind it that is indented as if it belonged to a list."""


def findings(files: Iterable[Path]) -> Iterator[Finding]:
    """Yield everything in some files that breaks a rule about words."""
    for file in files:
        texts = [(line, text, False) for line, text in comments(file)]
        if file.suffix == ".py":
            texts += [(line, text, True) for line, text in docstrings(parsed(file))]
            yield from vague_names(file)
        for line, text, is_docstring in texts:
            flat = " ".join(text.split())
            for name, pattern in PHRASES.items():
                if hit := pattern.search(flat):
                    yield Finding(f"phrase {name!r}", file, line, flat[max(0, hit.start() - 40) :])
            if not is_docstring:
                continue
            if FIRST_WORDS.match(text.strip()):
                yield Finding("first word", file, line, flat)
            if hit := INDENTED.search(SECTION.split(cleandoc(text))[0]):
                yield Finding("indented paragraph", file, line, hit[0].strip())
            for sentence in sentences(text):
                if words(sentence) > MAX_WORDS:
                    yield Finding("long sentence", file, line, sentence)


def vague_names(file: Path) -> Iterator[Finding]:
    """Yield the places that bind a name of VAGUE."""
    if not _VAGUE.search(file.read_text("utf-8")):
        return
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            yield Finding("vague name", file, node.lineno, node.id)
        elif isinstance(node, ast.arg) and node.arg in VAGUE:
            yield Finding("vague name", file, node.lineno, node.arg)


# ------------------------------------------------------------------ fmt: skip

_SKIP = re.compile(r"(?<=  )# fmt: skip$", re.MULTILINE)
_MARK = "# noqa: E501 kept"
"""A pragma: ruff does not count its width."""
_MARKED = re.compile(rf"(?<=  ){_MARK}$")


def needless_skips(files: Iterable[Path]) -> Iterator[Finding]:
    """Yield every `# fmt: skip` without which ruff needs no more lines.

    Raises:
        FileNotFoundError: ruff is not installed.
    """
    ruff = shutil.which("ruff") or shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        raise FileNotFoundError("ruff is not installed: pip install -e '.[dev]'")
    skipping = [file for file in files if file.suffix == ".py" and _SKIP.search(file.read_text())]
    with tempfile.TemporaryDirectory() as name:
        copies = {file: Path(name) / f"{i}.py" for i, file in enumerate(skipping)}
        for file, copy in copies.items():
            copy.write_text(_SKIP.sub(_MARK, file.read_text()))
        command = [ruff, "format", "--quiet", "--config", str(ROOT / "pyproject.toml")]
        subprocess.run([*command, *map(str, copies.values())], check=True)
        for file, copy in copies.items():
            before = list(_skipped(file.read_text(), _SKIP))
            after = list(_skipped(copy.read_text(), _MARKED))
            for (line, kept), (_, formatted) in zip(before, after, strict=True):
                if formatted <= kept:
                    yield Finding("fmt: skip", file, line, file.read_text().splitlines()[line - 1])


def _skipped(text: str, mark: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the line of every mark, and the number of lines of its statement or header."""
    starts = sorted(node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt))
    for line, comment in enumerate(text.splitlines(), start=1):
        if mark.search(comment):
            yield line, line - starts[bisect_right(starts, line) - 1] + 1


# ------------------------------------------------------------------ ceilings


def files(*below: str) -> list[Path]:
    """Return the files that the rules are about, optionally of some folders only."""
    suffixes = (".py", ".cuh", ".h", ".j2")
    folders = [ROOT / folder for folder in below or SOURCES]
    paths = {path for folder in folders for path in (folder, *folder.rglob("*"))}
    return sorted(path for path in paths if path.is_file() and path.suffix in suffixes)


def counts(found: Iterable[Finding]) -> Counter[tuple[str, str]]:
    """Return the number of findings by rule and folder."""
    return Counter((finding.rule, finding.folder) for finding in found)


def ceilings() -> dict[tuple[str, str], int]:
    """Return the ceilings by rule and folder; a pair that is not there has none left."""
    rows = (line.rsplit(maxsplit=2) for line in CEILINGS.read_text().splitlines())
    return {(rule, folder): int(most) for rule, folder, most in rows}


def lower(now: Counter[tuple[str, str]]) -> None:
    """Write the ceilings that fell; none rises."""
    before = ceilings() if CEILINGS.exists() else dict(now)
    rows = {key: min(most, now[key]) for key, most in before.items()}
    lines = (
        f"{rule:22} {folder:22} {most}\n" for (rule, folder), most in sorted(rows.items()) if most
    )
    CEILINGS.write_text("".join(lines))


def main(arguments: list[str]) -> None:
    """Print what breaks a rule, or lower the ceilings."""
    below = [argument for argument in arguments if not argument.startswith("-")]
    every = [*findings(files(*below)), *needless_skips(files(*below))]
    if "--lower" in arguments:
        lower(counts(every))
        return
    for finding in every:
        print(finding)


if __name__ == "__main__":
    main(sys.argv[1:])
