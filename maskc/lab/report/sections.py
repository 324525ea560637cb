"""Sections of a report about a mask. A section without content says why."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from maskc import driver
from maskc.core.coefficients import card_of
from maskc.core.dtypes import DType
from maskc.core.errors import MaskcError
from maskc.core.expr_text import to_people
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.ir.decompose import pieces_of
from maskc.lab.explorer.sources import pattern_text
from maskc.lab.report.document import (
    Block,
    Code,
    Command,
    Document,
    Figure,
    ReportTable,
    Section,
    Words,
)
from maskc.lab.report.drawings import growth_chart, map_of
from maskc.lab.report.evidence import (
    ablation_blocks,
    dense_words,
    quality_blocks,
    significance_blocks,
)
from maskc.verify.samples import sample_data
from maskc.viz import words
from maskc.viz.picture import KernelTiles, numbers_of, picture
from maskc.viz.shown_lengths import showing
from maskc.viz.terminal import render
from maskc.viz.weight_drawings import svg, text
from maskc.viz.weights import tensor_lengths, weight_lengths, weights

if TYPE_CHECKING:
    from maskc.lab.evaluate import Evaluated, Evaluation
    from maskc.lab.sweep import Measurement
    from maskc.layout.tiles.numbers import Numbers
    from maskc.plan.types import KernelPlan

Row = dict[str, Any]

_LONGEST_FILE = 20_000
"""Characters of a pattern's file; of a longer one only the docstring is shown."""
_LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 17)
"""The lengths for pair counts, in addition to the timed ones."""
_TILED = 1 << 14
"""Up to this length tiles are counted as well."""
_WIDTH = 56
"""Characters across a drawing as text."""


@dataclass(frozen=True)
class Subject:
    """The mask that a report is about."""

    name: str
    mask: Mask
    title: str
    words: str
    """The mask as a command line names it, with its settings."""
    command: str
    """The command that reproduces the report."""
    problem: Problem
    target: Target
    data_at: Callable[[int], Mapping[str, object]]
    """The arrays that it reads at a length."""
    parameters: Sequence[tuple[str, str, str]] = ()
    """(name, type, value) of each parameter of its pattern."""
    measurement: Measurement | None = None
    why_not_measured: str = ""
    evaluation: Evaluation | None = None
    evaluated: Evaluated | None = None
    """The row of the evaluation that is about this mask; None without an evaluation."""
    made_up: Sequence[str] = ()
    """Names of the arrays that were made up."""
    motivation: Sequence[str] = ()
    """Paragraphs that a person wrote on why the mask is of interest."""
    discussion: Sequence[str] = ()
    """Paragraphs that a person wrote on what the results mean."""
    tensors: Mapping[str, object] = field(default_factory=dict)
    """`q` and `k` of the heatmap of weights; synthetic ones where they are missing."""
    _counted: dict[int, Mapping[tuple[int, ...], Numbers]] = field(default_factory=dict, repr=False)

    @cached_property
    def plan(self) -> KernelPlan:
        """Return the compiler's plan for the mask.

        Raises:
            MaskcError: the target has no such kernel.
        """
        return driver.plan_kernel(self.mask, self.problem, self.target)

    def numbers(self, n: int) -> Mapping[tuple[int, ...], Numbers]:
        """Pairs, tiles and costs at a length, of each distinct set of heads.

        Raises:
            MaskcError: as `plan`, and as `Mask.layout`.
        """
        if n not in self._counted:
            self._counted[n] = numbers_of(
                self.mask, n, n, tile=(self.plan.tile.q, self.plan.tile.k),
                n_heads=self.problem.n_heads, problem=self.problem, data=self.data_at(n),
            )  # fmt: skip
        return self._counted[n]


def document(subject: Subject, progress: Callable[[str], object] = lambda text: None) -> Document:
    """Return the report of a mask. If a section is not possible for the mask or target, it says so.

    Args:
        progress: is told which section comes next.
    """
    sections = []
    for key, title, blocks in _SECTIONS:
        if key in _NOTES and not getattr(subject, key):
            continue
        progress(f"{subject.name}: {title.lower()}")
        try:
            contents = list(blocks(subject))
        except MaskcError as refusal:
            contents = [Words(f"Not available for this mask: {refusal.finding} ({refusal.code}).")]
        sections.append(Section(key, title, contents))
    title = subject.title if subject.title != subject.name else ""
    return Document(subject.name, title, str(subject.mask), sections)


# ------------------------------------------------------------------ what it is


def _summary(subject: Subject) -> Iterator[Block]:
    rows = list(_summary_rows(subject))
    yield ReportTable(("question", "answer"), rows)
    if subject.made_up:
        yield Words(f"Data were made up with a fixed seed: {', '.join(subject.made_up)}.")


def _summary_rows(subject: Subject) -> Iterator[tuple[str, str]]:
    order = driver.order(subject.mask, subject.problem.n_heads)
    selects = bool(driver.selects(subject.mask))
    if order is not None:
        most = "at most " if selects else ""
        yield "Pairs of a head for long sequences", f"{most}{order[0]}; all pairs: O(N**2)"
    else:
        yield "Pairs of a head for long sequences", "no closed form: data decide"
    try:
        for heads, numbers in subject.numbers(_at(subject)).items():
            who = f" ({words.heads(heads)})" if heads else ""
            may = ", all that may be chosen" if selects else ""
            yield (
                f"Live pairs at N = {_at(subject):,}{who}",
                f"{words.percent(numbers.live_share)} of all{may}; tiles run {numbers.waste:.2f} x",
            )
    except MaskcError as refusal:
        yield f"Live pairs at N = {_at(subject):,}", f"unknown: {refusal.finding}"
    yield "Keys that decoding must keep", _cache(subject)
    if subject.measurement is not None:
        for growth in subject.measurement.growths:
            crossed = [
                str(crossover) for crossover in growth.crossovers if crossover.rival == "dense"
            ]
            if crossed:
                yield f"Measured here, {growth.direction}", crossed[0]
    evaluation, evaluated = subject.evaluation, subject.evaluated
    if evaluation is not None and evaluated is not None:
        at = f"at N = {evaluation.n:,}"
        if evaluated.is_dense:
            yield "Quality", dense_words([evaluated], evaluation)
        if evaluated.information is not None:
            yield (
                f"Attention retained {at}",
                f"{evaluated.information.retained} of dense probability",
            )
        if evaluated.perplexity is not None:
            lost = evaluated.perplexity
            yield (
                f"Perplexity without training {at}",
                f"{lost.perplexity:.4g}, dense {lost.dense:.4g}",
            )


def _definition(subject: Subject) -> Iterator[Block]:
    text = pattern_text(subject.mask, str(subject.mask))
    doc = _docstring(text)
    if doc:
        yield Code(doc, "What its file says")
    if subject.parameters:
        yield ReportTable(("parameter", "type", "value"), subject.parameters)
    yield Code(str(subject.mask), "The mask as an expression")
    yield Code("\n".join(_formulas(subject)), "As conditions on q, k and the lengths n_q and n_kv")
    if text is not None and text != str(subject.mask) and len(text) <= _LONGEST_FILE:
        yield Code(_without_docstring(text), "The file")
    yield Command(f"maskc compile {subject.words} --emit ir")


def _docstring(text: str | None) -> str:
    try:
        return ast.get_docstring(ast.parse(text or "")) or ""
    except (SyntaxError, ValueError, RecursionError):
        return ""


def _without_docstring(text: str) -> str:
    """The lines below the docstring of the file."""
    try:
        first = ast.parse(text).body[:1]
    except (SyntaxError, ValueError, RecursionError):
        return text
    if first and isinstance(first[0], ast.Expr) and isinstance(first[0].value, ast.Constant):
        return "\n".join(text.splitlines()[first[0].end_lineno :]).strip("\n")
    return text


def _formulas(subject: Subject) -> Iterator[str]:
    known = driver.analyse_heads(subject.mask, subject.problem.n_heads)
    for index, ir in enumerate(known.masks):
        if known.of_head:
            yield _heads_of(known.of_head, index)
        yield to_people(ir.keep)


def _heads_of(of_head: Sequence[int], index: int) -> str:
    heads = tuple(h for h, which in enumerate(of_head) if which == index)
    return f"{words.heads(heads)}:"


def _proofs(subject: Subject) -> Iterator[Block]:
    known = driver.analyse_heads(subject.mask, subject.problem.n_heads)
    rows, pieces = [], []
    for index, (ir, facts) in enumerate(zip(known.masks, known.facts, strict=True)):
        who = _heads_of(known.of_head, index).rstrip(":") if known.of_head else "all heads"
        for fact in facts:
            verdict = {True: "yes", False: "no", None: "unknown"}[fact.holds]
            rows.append((who, fact.name, verdict, fact.where, fact.proof))
        pieces += [(who, str(piece.kind), to_people(piece.keep)) for piece in pieces_of(ir)]
    yield Words(
        "Each answer was decided on integer sets for all lengths that it names, not on samples."
    )
    yield ReportTable(("heads", "fact", "holds", "where", "what was decided"), rows)
    yield Words("The mask is the disjoint union of these pieces:")
    yield ReportTable(("heads", "piece", "condition"), pieces)
    yield Command(f"maskc explain {subject.words}")


def _picture(subject: Subject) -> Iterator[Block]:
    n = min(showing(subject.mask, subject.problem.n_heads)[0], 4096)
    try:
        kernel = KernelTiles(subject.target.name, subject.plan.tile)
    except MaskcError:
        kernel = None
    shown = picture(
        subject.mask, n, n, name=subject.name, kernel=kernel, n_heads=subject.problem.n_heads,
        head_dim=subject.problem.head_dim, dtype=subject.problem.dtype.value,
        data={k: v for k, v in subject.data_at(n).items() if k not in _RANKED},
    )  # fmt: skip
    twin = render(shown, _WIDTH)
    for panel in shown.panels:
        numbers = panel.numbers
        who = f", {words.heads(panel.heads)}" if panel.heads else ""
        unit = (
            "pairs" if panel.raster.elements else f"tiles of {numbers.tile[0]} x {numbers.tile[1]}"
        )
        caption = (
            f"N = {n:,}{who}: {unit}; queries go down, keys to the right. "
            f"{words.percent(numbers.live_share)} of all pairs are live. Blue is seen as a whole, "
            "amber in part (the paler, the less)."
        )
        yield Figure(map_of(shown, panel, f"The mask at {n} tokens"), caption, twin)
    if shown.formula != str(subject.mask):
        yield Words(f"Drawn: {shown.formula}")
    yield Command(f"maskc visualize {subject.words} --n {n}")


_RANKED = ("scores", "index_q", "index_k", "index_w")
"""Inputs of selections; pictures make up scores instead."""


def _weights(subject: Subject) -> Iterator[Block]:
    heads = subject.problem.n_heads
    q, k = (subject.tensors.get(name) for name in ("q", "k"))
    n, n_kv = tensor_lengths(q, k) or weight_lengths(subject.mask, heads)
    shown = weights(
        subject.mask, n, n_kv, q=q, k=k, name=subject.name, n_heads=heads,
        data={k: v for k, v in subject.data_at(n).items() if k not in _RANKED},
    )  # fmt: skip
    drawing = svg(shown, f"Attention weights at {n} tokens")
    caption = (
        f"Heatmap of softmax(q k^T) in float64, {shown.caption}. Queries go down, keys to the "
        "right. A cell shows the mean weight of its kept pairs; the scale is logarithmic. Masked "
        "pairs are grey."
    )
    yield Figure(drawing, caption, text(shown, _WIDTH))
    given = "" if q is None else " --data q=q.npy --data k=k.npy"
    yield Command(f"maskc visualize {subject.words} --weights --n {n}{given}")


def _motivation(subject: Subject) -> Iterator[Block]:
    yield from map(Words, subject.motivation)


def _discussion(subject: Subject) -> Iterator[Block]:
    yield from map(Words, subject.discussion)


def _loops(subject: Subject) -> Iterator[Block]:
    from maskc.plan.loops import loop_nest

    n = _at(subject)
    yield Words(f"The loops that a call runs at N = {n:,} on {subject.target.name}, as planned.")
    yield Code(loop_nest(subject.plan, n, n))
    yield Command(f"maskc compile {subject.words} --emit loops --n {n} {_options(subject)}")


# ------------------------------------------------------------------ what it costs


def _complexity(subject: Subject) -> Iterator[Block]:
    yield Words(
        "Of one head, with as many keys as queries. FLOPs count the two products of the forward "
        "pass; the backward pass has 2.5 times as many."
    )
    lines = [*driver.compared_with_dense(subject.mask, subject.plan), *_wins_elsewhere(subject)]
    yield Code("\n".join(lines), "Compared with dense attention")
    yield Words(
        "Time: every live pair is computed once. Masked pairs of a live tile are computed and "
        "discarded (column: run). Memory of a call: q, k, v, out and one "
        "number per query; no score is stored. Decoding: " + _cache(subject) + "."
    )
    rows = [row for n in _counted_at(subject) for row in _count_rows(subject, n)]
    heads = ("N", "heads", "live pairs", "of all", "full", "partial", "empty", "run",
             "FLOP", "bytes moved", "scores of naive attention")  # fmt: skip
    yield ReportTable(heads, rows, frozenset({0, *range(2, len(heads))}))
    yield Command(f"maskc explain {subject.words} --n {_at(subject)} {_options(subject)}")


def _wins_elsewhere(subject: Subject) -> list[str]:
    """Return the predicted break-even on the card with known costs, if the target has none."""
    if card_of(subject.target.name) is not None:
        return []
    known = Target.named("sm_90a")
    try:
        problem = replace(subject.problem, dtype=DType.bfloat16)
        plan = driver.plan_kernel(subject.mask, problem, known)
        lines = driver.compared_with_dense(subject.mask, plan)
    except MaskcError:
        return []
    starts = [i for i, line in enumerate(lines) if line.startswith("wins")]
    return lines[starts[0] :] if starts else []


def _cache(subject: Subject) -> str:
    try:
        kept = subject.mask.cache(n_heads=subject.problem.n_heads)
    except MaskcError as refusal:
        return f"all of them: {refusal.finding}"
    return f"{kept.slots:,} keys at any length (proved)"


def _counted_at(subject: Subject) -> list[int]:
    measured = {row["n_q"] for row in subject.measurement.rows} if subject.measurement else set()
    return sorted({*measured, *_LENGTHS})


def _count_rows(subject: Subject, n: int) -> Iterator[tuple[str, ...]]:
    """Return counts of tiles if that is fast, otherwise of pairs; empty if lengths do not fit."""
    size = subject.problem.dtype.itemsize
    naive = words.scaled(size * n * n, "B")
    if n > _TILED:
        yield from _pairs_alone(subject, n, naive)
        return
    try:
        numbers_by_set = subject.numbers(n)
    except MaskcError:
        return
    for heads, numbers in numbers_by_set.items():
        yield (
            f"{n:,}", words.heads(heads) if heads else "all", f"{numbers.live:,}",
            words.percent(numbers.live_share), f"{numbers.full:,}", f"{numbers.partial:,}",
            f"{numbers.empty:,}", f"{numbers.waste:.2f} x" if numbers.live else "-",
            words.scaled(numbers.flops, "FLOP"), words.scaled(numbers.bytes, "B"), naive,
        )  # fmt: skip


def _pairs_alone(subject: Subject, n: int, naive: str) -> Iterator[tuple[str, ...]]:
    """The pairs by closed form, where the mask reads no data."""
    known = driver.analyse_heads(subject.mask, subject.problem.n_heads)
    if any(ir.data or ir.selections for ir in known.masks):
        return
    from maskc.analysis.counts import count_pairs

    dims = subject.problem.head_dim + subject.problem.head_dim_v
    for index, ir in enumerate(known.masks):
        pairs = count_pairs(ir.keep, n, n, {})
        if pairs is not None:
            who = _heads_of(known.of_head, index).rstrip(":") if known.of_head else "all"
            yield (
                f"{n:,}", who, f"{pairs:,}", words.percent(pairs / n**2), "", "", "", "",
                words.scaled(2 * dims * pairs, "FLOP"), "", naive,
            )  # fmt: skip


def _at(subject: Subject) -> int:
    """Return the length for single numbers."""
    measured = [row["n_q"] for row in subject.measurement.rows] if subject.measurement else []
    return max(measured, default=4096)


def _plan(subject: Subject) -> Iterator[Block]:
    from maskc.plan.explain import explain

    yield Words("What the compiler chose for this target, and why.")
    lines = explain(subject.plan).splitlines()
    yield Code("\n".join(line for line in lines if not line.startswith(("proof", "mask"))))
    yield Command(f"maskc explain {subject.words} {_options(subject)}")


def _options(subject: Subject) -> str:
    problem = subject.problem
    options = f"--target {subject.target.name} --head-dim {problem.head_dim}"
    return f"{options} --dtype {problem.dtype.value}"


# ------------------------------------------------------------------ what was measured


def _verification(subject: Subject) -> Iterator[Block]:
    measurement = subject.measurement
    yield Words(
        "fp64 attention by the mask's definition, written without the compiler, judges sampled "
        "query rows of every head and all gradients. Allowed: 1e-5 in fp32; in half precision "
        "twice the error of the same computation step by step."
    )
    if measurement is None:
        yield Words(f"Not run: {subject.why_not_measured}.")
    else:
        rows = [
            (f"{row['n_q']:,}", row["direction"],
             "none" if row["error"] is None else f"{row['error']:.1e}",
             "right" if row["ok"] else "WRONG")
            for row in measurement.rows if row["impl"] == "maskc"
        ]  # fmt: skip
        yield ReportTable(("N", "pass", "largest error", "verdict"), rows, frozenset({0, 2}))
        if measurement.command:
            yield Command(measurement.command)
    yield Words("More lengths, probes with keys of NaN, and random cases:")
    yield Code(f"maskc verify {subject.words} {_options(subject)}\nmaskc test {subject.words}")


def _speed(subject: Subject) -> Iterator[Block]:
    measurement = subject.measurement
    if measurement is None or all(row["ms"] is None for row in measurement.rows):
        yield Words(f"Not run: {subject.why_not_measured}.")
        return
    rivals = measurement.about.get("rivals")
    texts = rivals if isinstance(rivals, Mapping) else {}
    names = ["maskc", *texts]
    for growth in measurement.growths:
        rows = [r for r in measurement.rows if r["direction"] == growth.direction and r["ok"]]
        for measure, unit, say in _MEASURES:
            series = {
                name: {r["n_q"]: r[measure] for r in rows if r["impl"] == name and r[measure]}
                for name in names
            }
            label = f"{unit} over N, {growth.direction}"
            if svg := growth_chart(series, names, unit, label, say):
                yield Figure(svg, f"{label}.", _twin(series, say))
        yield Code(
            "\n".join(textwrap.fill(line, 100, subsequent_indent="    ") for line in growth.lines())
        )
    speeds = [_speed_row(row, measurement.rows) for row in _ordered(measurement.rows)]
    yield ReportTable(_SPEED, speeds, frozenset(range(2, 8)))
    yield Words(" ".join(f"{name}: {text}." for name, text in texts.items()))
    for note in measurement.notes:
        yield Words(f"Note: {note}")
    yield Command(measurement.command)


_MEASURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("ms", "ms a call", lambda value: f"{value:.4g}"),
    ("peak_bytes", "memory at the peak", lambda value: words.scaled(value, "B")),
)
_SPEED = ("pass", "implementation", "N", "ms", "tokens/s", "peak", "times maskc's", "error", "")


def _ordered(rows: Sequence[Row]) -> list[Row]:
    impls = list(dict.fromkeys(row["impl"] for row in rows))
    directions = list(dict.fromkeys(row["direction"] for row in rows))
    return sorted(
        rows,
        key=lambda r: (directions.index(r["direction"]), r["n_q"], impls.index(r["impl"])),
    )


def _speed_row(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """A wrong result has no time that counts."""
    mine = [
        r["ms"] for r in rows
        if r["impl"] == "maskc" and (r["n_q"], r["direction"]) == (row["n_q"], row["direction"])
    ]  # fmt: skip
    error = "-" if row["error"] is None else f"{row['error']:.1e}"
    head = row["direction"], row["impl"], f"{row['n_q']:,}"
    if not row["ok"]:
        return (*head, "", "", "", "", error, "WRONG")
    peak = "-" if row["peak_bytes"] is None else words.scaled(row["peak_bytes"], "B")
    ratio = f"{row['ms'] / mine[0]:.3g}" if mine and row["impl"] != "maskc" else ""
    return (*head, f"{row['ms']:.4g}", f"{row['tokens_per_s']:,.0f}", peak, ratio, error, "right")


def _twin(series: Mapping[str, Mapping[int, float]], say: Callable[[float], str]) -> str:
    lengths = sorted({n for at in series.values() for n in at})
    width = max(12, *(len(name) + 1 for name in series))
    lines = ["N".ljust(width) + "".join(f"{n:>12,}" for n in lengths)]
    for name, at in series.items():
        if at:
            cells = (f"{say(at[n]) if n in at else '':>12}" for n in lengths)
            lines.append(name.ljust(width) + "".join(cells))
    return "\n".join(lines)


# ------------------------------------------------------------------ what it loses


def _quality(subject: Subject) -> Iterator[Block]:
    if subject.evaluation is not None and subject.evaluated is not None:
        yield from quality_blocks(subject.evaluation, subject.evaluated)
        return
    yield Words("Not run here. It needs a model, or q, k and v of one. What would fill this:")
    yield Code(
        f"maskc evaluate {subject.words} --ablate -o quality.json\n"
        f"maskc report {subject.words} --evaluation quality.json -o report.html"
    )


def _ablations(subject: Subject) -> Iterator[Block]:
    yield from _terms(subject)
    if subject.evaluation is None or subject.evaluated is None:
        yield Words("What each term does for quality was not run: see the section on quality.")
    else:
        yield from ablation_blocks(subject.evaluation, subject.evaluated)


def _significance(subject: Subject) -> Iterator[Block]:
    if subject.evaluation is None:
        yield Words("Nothing was tested: see the section on quality.")
    else:
        yield from significance_blocks(subject.evaluation)


def _terms(subject: Subject) -> Iterator[Block]:
    """Blocks about the pairs that each term of the mask adds: a cost without a model."""
    from maskc.lab.evaluate import ablations

    if driver.selects(subject.mask):
        return
    n = min(_at(subject), 4096)
    try:
        others = ablations(subject.mask)
    except MaskcError as refusal:
        yield Words(f"No term can be left out: {refusal.finding}.")
        return
    whole = _count(subject, subject.mask, n)
    rows = []
    for name, other in others.items():
        count = _count(subject, other, n)
        share = words.percent(count / max(1, whole))
        rows.append((name, f"{count:,}", f"{count - whole:+,}", share))
    yield Words(f"Live pairs at N = {n:,}; the mask has {whole:,}.")
    yield ReportTable(("mask", "live pairs", "change", "of the mask's"), rows, frozenset({1, 2, 3}))


def _count(subject: Subject, mask: Mask, n: int) -> int:
    read = sample_data(mask, 1, 1)
    data: dict[str, Any] = {
        name: value for name, value in subject.data_at(n).items() if name in read
    }
    return mask.count(n, n_heads=subject.problem.n_heads, **data)


def _environment(subject: Subject) -> Iterator[Block]:
    from maskc import __version__

    about: Mapping[str, object] = {"maskc": __version__}
    if subject.measurement is not None:
        about = subject.measurement.about
    rows = [
        (name, str(value)) for name, value in about.items()
        if value is not None and name != "rivals"
    ]  # fmt: skip
    yield ReportTable(("what", "which"), rows)
    if subject.evaluation is not None:
        yield Words("Of the evaluation:")
        yield ReportTable(("what", "which"), [*subject.evaluation.environment])
    yield Command(subject.command)


_SECTIONS: tuple[tuple[str, str, Callable[[Subject], Iterator[Block]]], ...] = (
    ("motivation", "Motivation", _motivation),
    ("summary", "Summary", _summary),
    ("definition", "Definition", _definition),
    ("picture", "Picture", _picture),
    ("weights", "Attention weights", _weights),
    ("proofs", "Proofs", _proofs),
    ("pseudocode", "Pseudocode", _loops),
    ("complexity", "Complexity and memory", _complexity),
    ("plan", "The plan, and why", _plan),
    ("verification", "Verification", _verification),
    ("speed", "Speed", _speed),
    ("quality", "Quality", _quality),
    ("ablations", "Ablations", _ablations),
    ("significance", "Significance", _significance),
    ("discussion", "Discussion", _discussion),
    ("environment", "Environment", _environment),
)
_NOTES = ("motivation", "discussion")
"""Sections from the user's notes; empty without notes."""
