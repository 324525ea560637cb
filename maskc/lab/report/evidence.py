"""Quality, ablations and significance: what `maskc evaluate` found, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from maskc.lab.report.document import Block, Command, ReportTable, Words
from maskc.viz import words

if TYPE_CHECKING:
    from maskc.lab.evaluate import Evaluated, Evaluation

_SHOWN_LAYERS = 40
"""Layers that are shown one by one; of more, every second."""


def dense_words(masks: Sequence[Evaluated], evaluation: Evaluation) -> str:
    """Note on masks that keep every pair of dense attention at the length of the evaluation."""
    *others, last = (one.name for one in masks)
    subject = f"{', '.join(others)} and {last} keep" if others else f"{last} keeps"
    return (
        f"{subject} every pair of {evaluation.base} at N = {evaluation.n:,}: these numbers are of "
        "dense attention. Evaluate longer sequences, or a smaller --budget."
    )


def quality_blocks(evaluation: Evaluation, subject: Evaluated) -> Iterator[Block]:
    """Report the evidence, its limits, and the mask compared with the others.

    Args:
        subject: the row of the report's mask.
    """
    many = "1 sequence" if evaluation.sequences == 1 else f"{evaluation.sequences} sequences"
    yield Words(
        f"On {evaluation.source}: {many} of {evaluation.n:,} tokens. "
        f"Shares are of the pairs of {evaluation.base}."
    )
    yield Words(f"In these tables the mask is called {subject.name}.")
    if subject.is_dense:
        yield Words(dense_words([subject], evaluation))
    for text in evaluation.cannot_show:
        yield Words(f"Limit: {text}")
    rows = [pattern for pattern in evaluation.patterns if pattern.role != "ablation"]
    yield from _losses(rows)
    yield from _trained(rows)
    yield from _layers(subject)
    yield Command(evaluation.command or "maskc evaluate")


def ablation_blocks(evaluation: Evaluation, subject: Evaluated) -> Iterator[Block]:
    """Blocks about the mask without each of its terms, next to the mask itself."""
    without = [
        pattern
        for pattern in evaluation.patterns
        if (pattern.role, pattern.of) == ("ablation", subject.name)
    ]
    if not without:
        yield Words("The evaluation has no ablations: `maskc evaluate --ablate` makes them.")
        return
    yield Words(f"The mask first, then without each of its terms, at N = {evaluation.n:,}:")
    yield from _losses([subject, *without])


def significance_blocks(evaluation: Evaluation) -> Iterator[Block]:
    """Blocks about the significance of the differences."""
    blocks = [
        *_rows(
            evaluation.patterns, "perplexity",
            "Paired differences to dense attention on the same tokens, in nats per token: moving "
            f"blocks of tokens inside of whole documents, {evaluation.resamples:,} resamples, 95 % "
            "intervals. p is corrected by Holm's method for all rows. `detectable` is the least "
            "difference that would have been found with a power of 80 %. `as good` is two "
            "one-sided tests at 5 % against the margin, never the absence of a small p.",
            ("pattern", "difference", "p (Holm)", "detectable", "margin", "as good"),
            lambda pattern, lost: (
                pattern.name, str(lost.difference), f"{lost.p_holm:.3g}", f"{lost.detectable:.3g}",
                f"{lost.margin:g}", "yes" if lost.equivalent else "not shown",
            ), frozenset({1, 2, 3, 4}),
        ),
        *_rows(
            evaluation.patterns, "retrieval",
            "Retrieval compared with dense attention on the same trials, McNemar's exact test:",
            ("pattern", "dense only", "pattern only", "p (Holm)"),
            lambda pattern, asked: (
                pattern.name, f"{asked.only_dense}", f"{asked.only_masked}", f"{asked.p_holm:.3g}"
            ), frozenset({1, 2, 3}),
        ),
    ]  # fmt: skip
    yield from blocks
    if not blocks:
        yield Words(
            "Only information loss was asked, which is exact on its inputs: the intervals of the "
            "section on quality speak of other texts, and nothing was tested."
        )


def _rows(
    patterns: Sequence[Evaluated], part: str, text: str, heads: Sequence[str],
    row: Callable[[Evaluated, Any], Sequence[str]], numbers: frozenset[int],
) -> Iterator[Block]:  # fmt: skip
    """Return a table of the patterns that have this part of an evaluation; empty if none has."""
    having = [(pattern, getattr(pattern, part)) for pattern in patterns]
    rows = [row(pattern, result) for pattern, result in having if result is not None]
    if rows:
        yield Words(text)
        yield ReportTable(heads, rows, numbers)


def _losses(patterns: Sequence[Evaluated]) -> Iterator[Block]:
    """Blocks about losses of attention, predictions and retrieval."""
    yield from _rows(
        patterns, "information",
        "Attention mass on kept keys (mean over queries, heads and layers), compared with as many "
        "random keys and as many best keys; relative error of outputs.",
        ("pattern", "role", "pairs", "retained", "random keys", "best keys", "output error",
         "KL, nats"),
        lambda pattern, result: (
            pattern.name, pattern.role, words.percent(pattern.share), str(result.retained),
            f"{result.floor:.4g}", f"{result.ceiling:.4g}", str(result.output_error),
            f"{result.kl:.3g}",
        ), frozenset(range(2, 8)),
    )  # fmt: skip
    yield from _rows(
        patterns, "perplexity", "Perplexity of a model that was trained without the mask:",
        ("pattern", "pairs", "perplexity", "dense", "ratio"),
        lambda pattern, result: (
            pattern.name, words.percent(pattern.share), f"{result.perplexity:.4g}",
            f"{result.dense:.4g}", str(result.ratio),
        ), frozenset({1, 2, 3, 4}),
    )  # fmt: skip
    yield from _rows(
        patterns, "retrieval",
        "A number that stands somewhere in a long text, repeated by the model:",
        ("pattern", "found", "rate", "dense found"),
        lambda pattern, result: (
            pattern.name, f"{result.found} of {result.trials}", str(result.rate),
            f"{result.dense_found} of {result.trials}",
        ), frozenset({1, 2, 3}),
    )  # fmt: skip


def _trained(patterns: Sequence[Evaluated]) -> Iterator[Block]:
    rows = [
        (pattern.name, one.task, one.measure, f"{len(one.seeds)}", str(one.difference),
         f"{one.p_value:.3g}", f"{one.margin:g}", f"{one.p_equivalence:.3g}")
        for pattern in patterns for one in pattern.trained
    ]  # fmt: skip
    if rows:
        yield Words("Small models trained with the mask, compared with models trained without:")
        heads = ("pattern", "task", "measure", "seeds", "difference", "p", "margin",
                 "p of a loss as large")  # fmt: skip
        yield ReportTable(heads, rows, frozenset(range(3, 8)))


def _layers(subject: Evaluated) -> Iterator[Block]:
    """Retained mass of each layer, mean over heads."""
    if subject.information is None:
        return
    layers = subject.information.layers
    step = 1 if len(layers) <= _SHOWN_LAYERS else 2
    rows = [
        (f"{one.layer}", f"{sum(one.retained) / len(one.retained):.3f}",
         f"{min(one.retained):.3f}", f"{max(one.retained):.3f}",
         f"{sum(one.output_error) / len(one.output_error):.3f}")
        for one in layers[::step]
    ]  # fmt: skip
    yield Words(f"{subject.name}, layer by layer: retained mass, and the error of outputs.")
    heads = ("layer", "retained", "worst head", "best head", "output error")
    yield ReportTable(heads, rows, frozenset(range(5)))
