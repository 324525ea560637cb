"""Quality, ablations and significance: what `maskc evaluate` found, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from maskc.report.document import Block, Command, Table, Words
from maskc.viz import words

if TYPE_CHECKING:
    from maskc.evaluate import Evaluated, Evaluation

_SHOWN_LAYERS = 40
"""Layers that are shown one by one; of more, every second."""


def quality_blocks(found: Evaluation) -> Iterator[Block]:
    """What was looked at, what it cannot show, and each pattern beside the others."""
    many = "1 sequence" if found.sequences == 1 else f"{found.sequences} sequences"
    yield Words(
        f"On {found.source}: {many} of {found.n:,} tokens. Shares are of the pairs of {found.base}."
    )
    for text in found.cannot_show:
        yield Words(f"What this cannot show: {text}")
    own = [each for each in found.patterns if each.role != "ablation"]
    yield from _information(own)
    yield from _perplexity(own)
    yield from _retrieval(own)
    yield from _trained(own)
    yield from _layers(own)
    yield Command(found.command or "maskc evaluate")


def ablation_blocks(found: Evaluation) -> Iterator[Block]:
    """The mask without each of its terms, and beside it."""
    own = [each for each in found.patterns if each.role == "ablation"]
    if not own:
        yield Words("The evaluation has no ablations: `maskc evaluate --ablate` makes them.")
        return
    names = dict.fromkeys(each.of for each in own)
    whole = [each for each in found.patterns if each.name in names]
    yield Words("The mask first, then without each of its terms:")
    yield from _information([*whole, *own])
    yield from _perplexity([*whole, *own])
    yield from _retrieval([*whole, *own])


def significance_blocks(found: Evaluation) -> Iterator[Block]:
    """How sure the differences are."""
    tested = [each for each in found.patterns if each.perplexity is not None]
    if tested:
        yield Words(
            "Paired differences to dense attention on the same tokens, in nats per token: moving "
            f"blocks of tokens inside of whole documents, {found.resamples:,} resamples, 95 % "
            "intervals. p is corrected by Holm's method for all rows. `detectable` is the least "
            "difference that would have been found with a power of 80 %. `as good` is two "
            "one-sided tests at 5 % against the margin, never the absence of a small p."
        )
        yield Table(
            ("pattern", "difference", "p (Holm)", "detectable", "margin", "as good"),
            [_test_row(each) for each in tested], frozenset({1, 2, 3, 4}),
        )  # fmt: skip
    asked = [each for each in found.patterns if each.retrieval is not None]
    if asked:
        yield Words("Retrieval beside dense attention on the same trials, McNemar's exact test:")
        yield Table(
            ("pattern", "dense only", "pattern only", "p (Holm)"),
            [
                (e.name, f"{e.retrieval.only_dense}", f"{e.retrieval.only_masked}",
                 f"{e.retrieval.p_holm:.3g}")
                for e in asked if e.retrieval is not None
            ], frozenset({1, 2, 3}),
        )  # fmt: skip
    if not tested and not asked:
        yield Words(
            "Only information loss was asked, which is exact on its inputs: the intervals of the "
            "section on quality speak of other texts, and nothing was tested."
        )


def _test_row(each: Evaluated) -> tuple[str, ...]:
    found = each.perplexity
    if found is None:
        return (each.name,)
    return (
        each.name, str(found.difference), f"{found.p_holm:.3g}", f"{found.detectable:.3g}",
        f"{found.margin:g}", "yes" if found.equivalent else "not shown",
    )  # fmt: skip


def _information(patterns: Sequence[Evaluated]) -> Iterator[Block]:
    rows = []
    for each in patterns:
        if (found := each.information) is not None:
            rows.append((
                each.name, each.role, words.percent(each.share), str(found.retained),
                f"{found.floor:.4g}", f"{found.ceiling:.4g}", str(found.output_error),
                f"{found.kl:.3g}",
            ))  # fmt: skip
    if rows:
        heads = ("pattern", "role", "pairs", "retained", "random keys", "best keys",
                 "output error", "KL, nats")  # fmt: skip
        yield Words(
            "Attention mass that stays on kept keys (mean over queries, heads and layers), beside "
            "what as many random keys and the best keys would keep; relative error of outputs."
        )
        yield Table(heads, rows, frozenset(range(2, 8)))


def _perplexity(patterns: Sequence[Evaluated]) -> Iterator[Block]:
    rows = []
    for each in patterns:
        if (found := each.perplexity) is not None:
            rows.append((
                each.name, words.percent(each.share), f"{found.perplexity:.4g}",
                f"{found.dense:.4g}", str(found.ratio),
            ))  # fmt: skip
    if rows:
        yield Words("Perplexity of a model that was trained without the mask:")
        heads = ("pattern", "pairs", "perplexity", "dense", "ratio")
        yield Table(heads, rows, frozenset({1, 2, 3, 4}))


def _retrieval(patterns: Sequence[Evaluated]) -> Iterator[Block]:
    rows = []
    for each in patterns:
        if (found := each.retrieval) is not None:
            rows.append((
                each.name, f"{found.found} of {found.trials}", str(found.rate),
                f"{found.dense_found} of {found.trials}",
            ))  # fmt: skip
    if rows:
        yield Words("A number that stands somewhere in a long text, repeated by the model:")
        heads = ("pattern", "found", "rate", "dense found")
        yield Table(heads, rows, frozenset({1, 2, 3}))


def _trained(patterns: Sequence[Evaluated]) -> Iterator[Block]:
    rows = [
        (each.name, one.task, one.measure, f"{len(one.seeds)}", str(one.difference),
         f"{one.p_value:.3g}", f"{one.margin:g}", f"{one.p_equivalence:.3g}")
        for each in patterns for one in each.trained
    ]  # fmt: skip
    if rows:
        yield Words("Small models trained with the mask, beside others trained without:")
        heads = ("pattern", "task", "measure", "seeds", "difference", "p", "margin",
                 "p of a loss as large")  # fmt: skip
        yield Table(heads, rows, frozenset(range(3, 8)))


def _layers(patterns: Sequence[Evaluated]) -> Iterator[Block]:
    """Retained mass of each layer, mean over heads, of the first pattern."""
    first = next((each for each in patterns if each.information is not None), None)
    if first is None or first.information is None:
        return
    layers = first.information.layers
    step = 1 if len(layers) <= _SHOWN_LAYERS else 2
    rows = [
        (f"{one.layer}", f"{sum(one.retained) / len(one.retained):.3f}",
         f"{min(one.retained):.3f}", f"{max(one.retained):.3f}",
         f"{sum(one.output_error) / len(one.output_error):.3f}")
        for one in layers[::step]
    ]  # fmt: skip
    yield Words(f"{first.name}, layer by layer: retained mass, and the error of outputs.")
    heads = ("layer", "retained", "worst head", "best head", "output error")
    yield Table(heads, rows, frozenset(range(5)))
