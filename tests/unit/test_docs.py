"""The README and docs/: every block of Python runs, and prints what the page says."""

from __future__ import annotations

import ast
import io
import re
import runpy
import shlex
from contextlib import redirect_stdout
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import maskc
from maskc.cli import main
from maskc.core.errors import MaskcError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)


SLOW = ("bench", "evaluate", "explore", "report")
"""Commands that pages show and this test leaves out: they time things, load models, or serve."""


class Block(NamedTuple):
    """A fenced block, and the text that it must print if another block shows it right behind."""

    line: int
    language: str
    title: str
    text: str
    printed: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    parts, fences = [], list(FENCE.finditer(text))
    for fence, then in zip_longest(fences, fences[1:]):
        shown = (
            then is not None and then[1] == "text" and not text[fence.end() : then.start()].strip()
        )
        title = re.search(r'title="([^"]*)"', fence[2])
        parts.append(Block(
            1 + text.count("\n", 0, fence.start()), fence[1], title[1] if title else "", fence[3],
            then[3] if shown else None,
        ))  # fmt: skip
    return parts


def run_page(page: Path, scope: dict[str, object]) -> None:
    """Run the blocks in order, in one namespace. A titled block is a file, or another project's: it
    runs if the title is an installed module."""
    for block in blocks(page):
        if block.language == "sh" and block.text.startswith("maskc "):
            for line in block.text.splitlines():
                words = shlex.split(line, comments=True)[1:]
                if words[0] in SLOW:
                    continue
                if words[0] == "verify" and "--n" not in words:  # its own lengths take long by -O0
                    words += ["--n", "200"]
                result = CliRunner().invoke(main, words)
                assert result.exit_code == 0, f"{page.name}:{block.line}: {line}\n{result.output}"
        if block.language != "python":
            continue
        if block.title.endswith(".py"):
            Path(block.title).write_text(block.text)
        if block.title and find_spec(block.title.partition(".")[0]) is None:
            continue
        for module in ("torch", "transformers", "jax"):
            used = f"import {module}" in block.text or f"from {module} import" in block.text
            if used and find_spec(module) is None:
                pytest.skip(f"{page.name} needs {module} from line {block.line} on")
        out = io.StringIO()
        with redirect_stdout(out):
            code = compile("\n" * block.line + block.text, str(page), "exec")
            exec(code, scope)
        if block.printed is not None:
            assert out.getvalue() == block.printed, f"{page.name}:{block.line}"


PASTED = (
    "tutorial.md", "howto.md", "language.md", "conversions.md", "decoding.md", "selection.md",
    "score-formulas.md", "calls.md", "porting.md", "jax.md", "huggingface.md",
    "command-line.md", "serving.md", "scale-out.md", "simt.md",
)  # fmt: skip
FIRST = ("README.md", "docs/index.md")
ELSEWHERE = {
    "architecture.md": "compared with what the stages print, below",
    "programs.md": "runs whole files, below",
    "quality.md": "loads a language model for minutes",
    "explorer.md": "serves a page until it is stopped",
}
"""Pages whose blocks another test runs, or none."""


def test_every_page_with_code_is_pasted() -> None:
    with_code = set()
    for page in PAGES:
        for block in blocks(page):
            is_command = block.language == "sh" and block.text.startswith("maskc ")
            if is_command or block.language == "python":
                with_code.add(page.name)
    assert with_code == {*PASTED, *(Path(name).name for name in FIRST), *ELSEWHERE}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")
@pytest.mark.parametrize("name", PASTED)
def test_the_blocks_of_a_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / name, {})


@pytest.mark.parametrize("name", FIRST)
def test_the_first_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snippets run unchanged; the first one needs nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("patterns").symlink_to(ROOT / "patterns")
    run_page(ROOT / name, {})


def test_every_command_and_option_is_on_the_page_of_the_command_line() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    for name, command in main.commands.items():
        assert f"`maskc {name}" in page, name
        for parameter in command.params:
            for option in (o for o in parameter.opts if o.startswith("--")):
                assert re.search(rf"`{option}\b", page), f"{name} {option}"


def test_every_name_that_another_target_serves_is_on_that_page() -> None:
    from maskc.core.target import SERVED_BY

    page = (ROOT / "docs" / "command-line.md").read_text()
    for name, serving in SERVED_BY.items():
        row = next(line for line in page.splitlines() if f"`{name.rstrip('af')}`" in line)
        assert row.endswith(f"| `{serving}` |"), name


# ---------------------------------------------------------------- error codes


def index() -> dict[str, object]:
    return runpy.run_path(str(ROOT / "docs" / "error_index.py"))


def test_the_index_of_codes_is_what_the_classes_say() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    assert page == index()["page"](), "run `python docs/error_index.py`"


def test_every_code_is_in_the_index_and_has_a_test_of_its_text() -> None:
    written = "\n".join(path.read_text() for path in (ROOT / "maskc").rglob("*.py"))
    codes = set(re.findall(r'^    code = "(MC\d{3})"$', written, re.M)) - {MaskcError.code}
    assert {kind.code for kind in index()["classes"]()} == codes
    texts = "\n".join(path.read_text() for path in (ROOT / "tests" / "messages").iterdir()
                      if path.suffix in (".py", ".txt"))  # fmt: skip
    assert {code for code in codes if code not in texts} == set()


GONE = {"MC128"}
"""Codes of earlier releases, which the changelog may name."""


def test_every_code_of_a_page_exists() -> None:
    known = {kind.code for kind in index()["classes"]()}
    assert not known & GONE
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        named = set(re.findall(r"\bMC\d{3}\b", page.read_text()))
        assert named <= (known | GONE if page.stem == "CHANGELOG" else known), page.name


# ---------------------------------------------------------------- patterns


@pytest.fixture(scope="module")
def pattern_pages() -> dict[str, object]:
    return runpy.run_path(str(ROOT / "docs" / "pattern_index.py"))


STALE = "run `python docs/pattern_index.py`"


def test_the_index_lists_every_pattern_with_its_paper_and_price(pattern_pages) -> None:
    from maskc import patterns

    page = (ROOT / "docs" / "patterns.md").read_text()
    table, pictures, _ = page.partition(pattern_pages["PICTURES"])
    assert pictures, STALE
    assert page.startswith(pattern_pages["HEAD"]), STALE
    rows = table.removeprefix(pattern_pages["HEAD"]).splitlines(keepends=True)
    about = [patterns.about(name) for name in patterns.names()]
    assert len(rows) == len(about)
    for line, pattern in zip(rows, about, strict=True):
        link = f"[`{pattern.name}`](patterns/{pattern.name}.md)"
        paper = f"[{pattern.paper}]({pattern.link})"
        assert line.startswith(f"| {link} | {pattern.title} | {paper} | "), pattern.name
        assert f"(patterns/{pattern.name}.svg)" in page, pattern.name
    for name in ("causal", "documents", "longformer", "swin", "topk_attention"):
        assert pattern_pages["row"](name) in rows, name


def test_every_pattern_has_a_page_with_its_formula_and_paper(pattern_pages) -> None:
    """`make check` compares the pages whole."""
    from maskc import patterns

    folder = ROOT / "docs" / "patterns"
    assert {path.stem for path in folder.iterdir()} == {*patterns.names()}, STALE
    for name in patterns.names():
        page = (folder / f"{name}.md").read_text()
        mask = getattr(patterns, name)()
        for part in (
            pattern_pages["formula"](name, mask), pattern_pages["paper"](name),
        ):  # fmt: skip
            assert "\n".join(part) in page, (name, STALE)
        assert f"python patterns/{name}.py" in page


@pytest.mark.parametrize("name", ["causal", "streaming", "vertical_slash"])
def test_the_page_of_a_pattern_is_up_to_date(pattern_pages, name: str) -> None:
    folder = ROOT / "docs" / "patterns"
    assert (folder / f"{name}.md").read_text() == pattern_pages["page"](name), STALE
    assert (folder / f"{name}.svg").read_text() == pattern_pages["drawing"](name), STALE


def test_the_commands_of_a_page_print_its_numbers() -> None:
    page = (ROOT / "docs" / "patterns" / "streaming.md").read_text()
    commands = re.findall(r"^maskc (explain streaming .*)$", page, re.M)
    rows = re.findall(r"^\| [0-9,]+ \|.*$", page, re.M)
    assert len(commands) == len(rows) == 2
    for command, row in zip(commands, rows, strict=True):
        printed = CliRunner().invoke(main, shlex.split(command)).stdout
        _, pairs, share, _, forward, backward, _ = (
            cell.strip() for cell in row.strip("|").split("|")
        )
        assert f"{share} at" in printed
        assert f"{pairs} of" in printed
        assert f"{forward} forward, {backward} backward" in printed
    keys = sum(min(1024, q + 1) + max(0, min(4, q - 1023)) for q in range(4096))
    assert f"| 4,096 | {keys:,} | {100 * keys / 4096**2:.1f} % | {keys / 4096:,.0f} |" in page


# ---------------------------------------------------------------- links


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not re.match(r"\w+:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_public_name_has_a_place_in_the_reference() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text() for page in pages).replace(
        "dsl.combinators._Window", "window"
    )
    for name in maskc.__all__:
        assert re.search(rf"\bmaskc\.(\w+\.)*{name}\b|`mc\.{name}`", text), name


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {
        str(page.relative_to(ROOT / "docs"))
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name != "patterns"  # patterns.md links to them
    }
    pages |= {f"notebooks/{path.stem}.md" for path in (ROOT / "docs/notebooks").glob("*.ipynb")}
    pages |= {"contributing.md", "changelog.md", "security.md"}  # see docs/site_hooks.py
    assert listed == pages


# ---------------------------------------------------------------- one mask, followed through


def test_the_example_of_the_architecture_is_what_the_stages_print() -> None:
    page = ROOT / "docs" / "architecture.md"
    printed = ""
    for stage in ("mask", "ir", "facts", "plan", "source"):
        command = ["compile", "--expr", "causal() & (sinks(4) | window(255))", "--emit", stage]
        result = CliRunner().invoke(main, [*command, "--target", "sm_90a"])
        assert result.exit_code == 0, result.output
        printed += " ".join(result.output.split()) + " "
    command = ["explain", "--expr", "causal() & (sinks(4) | window(255))", "--n", "4096"]
    result = CliRunner().invoke(main, [*command, "--target", "sm_90a"])
    assert result.exit_code == 0, result.output
    printed += " ".join(result.output.split())
    quoted = re.findall(r"^(?: {4}.*\n)+", FENCE.sub("", page.read_text()), re.M)
    quoted += [block.text for block in blocks(page) if block.language == "c"]
    assert len(quoted) == 7
    for block in quoted:  # "..." stands for what the page leaves out; lines may leave out others
        for part in re.split(
            r"\.\.\.|\n(?=    [a-z]+ )(?=    plan|    piece|    no|    cont)", block
        ):
            assert " ".join(part.split()) in printed


# ---------------------------------------------------------------- the kernels


def test_names_on_the_page_of_the_kernels_exist() -> None:
    """Files, macros and functions: what the page quotes is somewhere in the sources."""
    folders = ("maskc", "templates", "tests/support", "tests/gpu", "generated", "benchmarks")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    sources = [path for path in paths if path.suffix in (".py", ".cu", ".cuh", ".h", ".j2")]
    code = "\n".join(f"{path.relative_to(ROOT)}\n{path.read_text()}" for path in sources)
    page = FENCE.sub("", (ROOT / "docs" / "kernels.md").read_text())
    for quoted in re.findall(r"`([^`\n]+)`", page):
        assert all(name in code for name in re.findall(r"[A-Za-z][\w/]+", quoted)), quoted


# ---------------------------------------------------------------- the README


def test_a_cell_of_the_readme_holds_at_most_ten_words() -> None:
    for line in (ROOT / "README.md").read_text().splitlines():
        if line.startswith("|"):
            assert all(len(cell.split()) <= 10 for cell in line.strip("|").split("|")), line


# ------------------------------------------------------------------ docs/programs


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
