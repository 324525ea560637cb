"""Write docs/patterns.md, and a page with a picture for every published mask.

python docs/pattern_index.py              # writes docs/patterns.md and docs/patterns/
python docs/pattern_index.py --check      # status 1 where a page is not what it would write
python docs/pattern_index.py --check --thorough  # with the rows of the longest sequences, too
"""

from __future__ import annotations

import ast
import runpy
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from click.testing import CliRunner

from maskc import driver, patterns
from maskc.cli import main as command_line
from maskc.core.errors import MaskcError
from maskc.core.svg import panel
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.dsl.pattern import kind_name
from maskc.ir.heads import written_heads
from maskc.plan.cost import USUAL_HEADS
from maskc.plan.dense_comparison import kept_at_most
from maskc.plan.explain import predicted
from maskc.plan.types import KernelPlan
from maskc.verify.samples import sample_data
from maskc.viz import words
from maskc.viz.picture import PairCells, picture
from maskc.viz.view import ViewSpan, views

PAGE = Path(__file__).with_name("patterns.md")
FOLDER = Path(__file__).with_name("patterns")
LENGTH = 4096
"""Sequence length of the price in the index."""
LENGTHS = (4096, 16384)
"""Sequence lengths of the price on a pattern's page."""
TARGET = "sm_90a"
COLUMNS = 4
"""Pictures in a row of the index."""
CELLS = 128
"""Width of a picture in cells."""
WIDTH = 96
"""Characters of a line in a block of text."""

HEAD = """\
# Patterns

Use a published mask by name. Each is one short file with its paper and definition.
`mc.patterns.longformer(window=128)` creates the mask in Python, `maskc visualize longformer` draws
it, and `maskc explain longformer` predicts its cost. To write your own pattern, start with
`maskc init`.

Each name links to a page with a picture, the formula, the paper, the price and how a call runs. The
last column shows the sparsity: the mean number of keys per query at 4,096 tokens, with default
parameters. It is an exact count. "By the data" means that the data of a call determine it.

| pattern | what it is | paper | keys a query |
|---|---|---|---:|
"""

PICTURES = """
## Pictures

Rows are queries, columns are keys: mostly 256 of each. Parameters are smaller than in the papers,
and run-time selections choose by synthetic scores. Pairs in grey are masked. A cell stands for
2 x 2 pairs; it is amber if the mask keeps some of them, and blue if it keeps all.

| | | | |
|---|---|---|---|
"""


# ------------------------------------------------------------------ the index


def price(mask: Mask) -> str:
    """Return the mean number of keys per query."""
    heads = written_heads(mask)
    try:
        pairs = mask.count(LENGTH, n_heads=heads)
    except MaskcError:
        return "by the data"
    return f"{pairs / LENGTH / (heads or 1):,.0f}"


def row(name: str) -> str:
    """Return a line of the table."""
    about = patterns.about(name)
    link = f"[`{name}`](patterns/{name}.md)"
    paper = f"[{about.paper}]({about.link})"
    return f"| {link} | {about.title} | {paper} | {price(getattr(patterns, name)())} |\n"


def index() -> str:
    """Return the text of docs/patterns.md."""
    cells = [
        f"[![{name}](patterns/{name}.svg)](patterns/{name}.md)<br>{name}"
        for name in patterns.names()
    ]
    rows = [
        f"| {' | '.join(cells[start : start + COLUMNS])} |\n"
        for start in range(0, len(cells), COLUMNS)
    ]
    return HEAD + "".join(map(row, patterns.names())) + PICTURES + "".join(rows)


# ------------------------------------------------------------------ pictures


class Shown(NamedTuple):
    """The picture that a pattern's file draws."""

    mask: Mask
    n_q: int
    n_kv: int
    n_heads: int | None
    data: dict[str, object]


@cache
def shown(name: str) -> Shown:
    """Run a pattern's file and return what its main() draws."""
    drawn: list[Shown] = []

    def show(
        mask: Mask, n: int, n_kv: int | None = None, *, n_heads: int | None = None, **data: object
    ) -> None:
        drawn.append(Shown(mask, n, n_kv or n, n_heads or written_heads(mask), data))

    file = patterns.about(name).file
    with patch.object(sys, "path", [str(file.parent), *sys.path]), patch.object(Mask, "show", show):
        runpy.run_path(str(file), run_name="__main__")
    return drawn[0]


def shown_call(name: str) -> str:
    """Return the call in main() that makes the mask of the picture, as text."""
    tree = ast.parse(patterns.about(name).file.read_text())
    calls = (
        node
        for part in tree.body
        if isinstance(part, ast.FunctionDef) and part.name == "main"
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    )
    return ast.unparse(next(calls))


@cache
def drawn_cells(name: str) -> PairCells:
    """Return the cells of a pattern's picture; where heads differ, of the first ones."""
    mask, n_q, n_kv, heads, data = shown(name)
    view = picture(mask, n_q, n_kv, n_heads=heads, data=data)
    return view.panels[0].raster.fit(CELLS, CELLS)


def drawing(name: str) -> str:
    """Return the picture of a pattern as an SVG file."""
    made, cells = shown(name), drawn_cells(name)
    ratio = min(max(made.n_q / made.n_kv, 2 / 3), 3 / 2)
    return panel(cells.classes, cells.share, ratio) + "\n"


# ------------------------------------------------------------------ a pattern's page


def page(name: str, lengths: tuple[int, ...] = LENGTHS) -> str:
    """Return the text of a pattern's page, with a row of prices for each length."""
    mask = getattr(patterns, name)()
    plan = planned(mask, written_heads(mask))
    parts = (
        head(name), formula(name, mask), paper(name), prices(name, mask, plan, lengths), runs(name),
    )  # fmt: skip
    return "\n".join(line for part in parts for line in part)


@cache
def planned(mask: Mask, n_heads: int | None) -> KernelPlan:
    """Return the plan of a mask as `maskc explain NAME --target sm_90a` makes it."""
    problem = driver.problem(128, None, n_heads, "bfloat16", None, None, None)
    target = Target.named(TARGET).serving(problem, driver.selects(mask))
    return driver.plan_kernel(mask, problem, target)


def head(name: str) -> Iterator[str]:
    """Yield the title, the picture and its caption."""
    about = patterns.about(name)
    made = shown(name)
    yield f"# {name}\n"
    yield f"{about.title}.\n"
    yield f"![The mask {name}]({name}.svg)\n"
    yield f"`{shown_call(name)}`: {made.n_q} queries go down, {made.n_kv} keys to the right."
    if made.n_heads:
        yield f"Heads differ; this is head 0 of {made.n_heads}."
    if driver.selects(made.mask):
        yield "Synthetic scores decide what it selects."
    down, right = drawn_cells(name).covers
    if (down, right) != (1, 1):
        yield (
            f"A cell stands for {down} x {right} pairs: blue if the mask keeps all of them, "
            "amber if some."
        )
    yield "The file draws it in a terminal:\n"
    yield f"```sh\npython patterns/{name}.py\n```\n"


def formula(name: str, mask: Mask) -> Iterator[str]:
    """Yield the definition, the mask as an expression, and the parameters."""
    pattern = getattr(patterns, name)
    yield "## Formula\n"
    yield "Query q has position p = q + n_kv - n_q among the keys k.\n"
    yield from _block("\n\n".join(_paragraphs(name)[2:]))
    yield "As an expression, with default parameters:\n"
    yield from _block(_wrapped(str(mask)))
    yield f"The file is [`patterns/{name}.py`](../../patterns/{name}.py)."
    if not pattern.parameters:
        yield f"In Python: `mc.patterns.{name}()`.\n"
        return
    first, _, default = pattern.parameters[0]
    yield f"In Python: `mc.patterns.{name}({first}={default!r})`.\n"
    yield "| parameter | type | default |\n|---|---|---|"
    for label, kind, default in pattern.parameters:
        yield f"| `{label}` | {kind_name(kind).replace(' | ', ' or ')} | `{default!r}` |"
    yield ""


def paper(name: str) -> Iterator[str]:
    """Yield the paragraph on the paper, with its address as a link."""
    about = patterns.about(name)
    text = " ".join(_paragraphs(name)[1].split()).replace(f" {about.link}", "")
    yield "## Paper\n"
    yield f"{text} [{about.link.removeprefix('https://')}]({about.link})\n"


def prices(
    name: str, mask: Mask, plan: KernelPlan, lengths: tuple[int, ...] = LENGTHS
) -> Iterator[str]:
    """Yield live pairs and predicted times at two lengths, and the command for each."""
    causal = all(facts.causal.holds for facts in plan.facts)
    dense = "causal" if causal else "full"
    heads = written_heads(mask)
    dense_plan = planned(getattr(patterns, dense)(), heads)
    as_many = f" --heads {heads}" if heads else ""
    yield "## Price\n"
    reckoned = plan.problem.n_heads or USUAL_HEADS
    yield (
        f"For one head with default parameters. Times are predicted by the cost model for an "
        f"NVIDIA H200, {reckoned} heads, bfloat16, head dimension 128; the "
        f"speedup is over dense {dense.replace('full', 'unmasked')} attention by the same model.\n"
    )
    data = sample_data(mask, 1)
    if data:
        yield f"This mask reads data: {', '.join(data)}. The numbers are for synthetic data.\n"
    yield (
        "| tokens | live pairs | live share | keys a query | forward, predicted | "
        "backward, predicted | speedup, forward |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for n in lengths:
        yield _price_row(mask, plan, dense_plan, n)
    if not predicted(plan, LENGTH, LENGTH):
        yield "\nThe cost model predicts no time where data or a selection decide which tiles run."
    yield "\nThe commands that repeat the rows, and the dense times:\n"
    yield "```sh"
    for n in LENGTHS:
        yield f"maskc explain {name} --target {TARGET} --n {n}"
        if name != dense:
            yield f"maskc explain {dense} --target {TARGET} --n {n}{as_many}"
    yield "```\n"
    if not data and not driver.selects(mask):
        number, whose = (f", n_heads={heads}", " of all heads") if heads else ("", "")
        yield (
            f"`mc.patterns.{name}().count({LENGTH}{number})` counts the live pairs{whose} in "
            "Python.\n"
        )


def _price_row(mask: Mask, plan: KernelPlan, dense: KernelPlan, n: int) -> str:
    """Return a row of the table of prices, a mean over heads where these differ."""
    live, bound = _live_pairs(mask, plan, n)
    most = "at most " if bound else ""
    times, dense_times = predicted(plan, n, n), predicted(dense, n, n)
    forward, backward = (
        f"{times[which]:.3g} ms" if which in times else "not predicted"
        for which in ("forward", "backward")
    )
    speedup = f"{dense_times['forward'] / times['forward']:.3g}x" if times else ""
    return (
        f"| {n:,} | {most}{live:,.0f} | {most}{words.percent(live / n**2)} | {live / n:,.0f} "
        f"| {forward} | {backward} | {speedup} |"
    )


def _live_pairs(mask: Mask, plan: KernelPlan, n: int) -> tuple[float, bool]:
    """Return the live pairs of a head, and whether they are a bound as a selection decides.

    Tiles are not on the page, so none are listed, which takes longer than to count pairs.
    """
    heads, data = driver.analyse_heads(mask, plan.problem.n_heads), sample_data(mask, n)
    if "scores" not in data and any(ir.selections for ir in heads.masks):
        bounds = [kept_at_most(ir, n, n) for ir in heads.masks]
        if None not in bounds:
            of_head = heads.of_head or (0,)
            return sum(bounds[which] for which in of_head) / len(of_head), True
    whole = ViewSpan(0, n, 0, n)
    pictures = views(mask, n, n, whole, n_heads=plan.problem.n_heads, data=data)
    weighted = [(len(alike) or 1, view.count()) for alike, view in pictures.by_heads.items()]
    return sum(w * live for w, live in weighted) / sum(w for w, _ in weighted), False


def runs(name: str) -> Iterator[str]:
    """Yield what `maskc explain` says on how a call runs."""
    command = ["explain", name, "--target", TARGET, "--n", str(LENGTH)]
    yield "## How a call runs\n"
    yield f"A part of what `maskc {' '.join(command)}` prints:\n"
    yield from _block("\n".join(running_lines(explained(command))))
    yield (
        "A *piece* is a part of the mask with one shape, *plan* says which kernels are built, and "
        "*choice* which of them a call takes. [The kernels](../kernels.md) explains the words."
    )
    yield ""


def explained(command: list[str]) -> str:
    """Return what a command prints, without costs, which take long and are not on the page."""
    with patch("maskc.cli.costs.costs", lambda *_: []):
        return CliRunner().invoke(command_line, command).stdout


_LABELS = ("piece", "chosen", "plan", "part", "parts", "keeps", "choice", "wins", "time")


_MAX_PIECES = 8
"""Pieces that a page shows; a line counts the others."""


def running_lines(report: str) -> Iterator[str]:
    """Yield the entries of a report that say how a call runs, each once."""
    entries: list[str] = []
    for line in report.splitlines():
        if line[:9].strip():
            entries.append(line)
        elif line:
            entries[-1] += f"\n{line}"
    entries = [entry for entry in dict.fromkeys(entries) if entry[:9].strip() in _LABELS]
    pieces = [entry for entry in entries if entry.startswith("piece ")]
    yield from pieces[:_MAX_PIECES]
    if len(pieces) > _MAX_PIECES:
        yield f"...      {len(pieces) - _MAX_PIECES} more pieces"
    yield from entries[len(pieces) :]


def _paragraphs(name: str) -> list[str]:
    """Return the paragraphs of a pattern file's docstring: title, paper, definition and more."""
    text = ast.get_docstring(ast.parse(patterns.about(name).file.read_bytes())) or ""
    return text.split("\n\n")


def _block(text: str) -> Iterator[str]:
    yield f"```text\n{text}\n```\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


# ------------------------------------------------------------------ files


def texts(
    names: tuple[str, ...] | None = None, lengths: tuple[int, ...] = LENGTHS
) -> Iterator[tuple[Path, str]]:
    """Yield every file with its text; of all patterns, unless names say which.

    Args:
        names: the patterns.
        lengths: sequence lengths whose rows a page has.
    """
    yield PAGE, index()
    for name in names or patterns.names():
        yield FOLDER / f"{name}.md", page(name, lengths)
        yield FOLDER / f"{name}.svg", drawing(name)


def _with_rows(text: str, lengths: tuple[int, ...]) -> str:
    """Return a page without the rows of other lengths."""
    others = tuple(f"| {n:,} |" for n in LENGTHS if n not in lengths)
    return "".join(line for line in text.splitlines(True) if not line.startswith(others))


def main() -> int:
    """Write the files, or compare them."""
    check = "--check" in sys.argv[1:]
    lengths = LENGTHS[:1] if check and "--thorough" not in sys.argv[1:] else LENGTHS
    FOLDER.mkdir(exist_ok=True)
    stale = 0
    for path, text in texts(lengths=lengths):
        if path.exists() and _with_rows(path.read_text(), lengths) == text:
            continue
        stale += 1
        print(f"{path.name} is not up to date: run `python docs/pattern_index.py`" if check
              else f"wrote {path.name}")  # fmt: skip
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
