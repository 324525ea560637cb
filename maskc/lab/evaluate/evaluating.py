"""Layers 1 and 2 of the evidence for several masks on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import exp
from typing import Any

import numpy as np

from maskc.core.errors import BadTensors, SameNames
from maskc.dsl.combinators import causal
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import Node, default_parameters, structure
from maskc.dsl.not_a_mask import not_a_mask
from maskc.ir.names import declared_names
from maskc.lab.evaluate import retrieval as needle
from maskc.lab.evaluate.families import pairs_of
from maskc.lab.evaluate.information import Losses, information_loss
from maskc.lab.evaluate.matrices import Matrices
from maskc.lab.evaluate.models import losses
from maskc.lab.evaluate.results import Evaluated, Evaluation, InformationLoss, Interval, Perplexity
from maskc.lab.evaluate.statistics import bootstrap, holm
from maskc.lab.evaluate.tensors import Data, Tensors, capture, data_of

INFORMATION = (
    "Retained mass and output error describe one model's q and k on these texts, layer by layer. "
    "Errors of one layer are not fed to the next."
)
UNTRAINED = (
    "Perplexity and retrieval without training show how well a dense model tolerates the mask. "
    "They do not predict a model trained with it: a pattern that ranks low here may train well."
)
SCOPE = "Larger models, longer sequences, other languages and other benchmarks were not evaluated."


@dataclass(frozen=True)
class Candidate:
    """A mask to evaluate."""

    name: str
    mask: Mask
    role: str = "pattern"
    of: str = ""
    budget: float | None = None
    layers: tuple[int, ...] | None = None
    """The layers that get the mask, the others stay dense; all layers when None. Information loss
    is not computed for candidates with some layers only."""
    pairs: int | None = None
    """Live pairs of a head, where they are known already."""
    setting: str = ""
    """The parameter of a pattern that gives this mask, as `--set` takes it: window=12."""


@dataclass
class Inputs:
    """A model and texts. The model's results without a mask are computed on first use and kept."""

    model: Any
    tokenizer: Any
    ids: Any
    """int64 [sequences, n]."""
    texts: Sequence[str]
    """The name of each sequence's text."""
    source: str
    needles: Sequence[needle.Trial] = ()
    layers: Sequence[int] | None = None
    """The layers to compute information loss for; all of them when None."""
    matrices: Matrices | None = None
    """Where attention is computed by matrices instead of kernels; None: by kernels."""

    @property
    def compute(self) -> Any:
        """The attention implementation; None is maskc."""
        return None if self.matrices is None else self.matrices.attention

    @property
    def n(self) -> int:
        """Tokens of a sequence."""
        return int(self.ids.shape[1])

    @cached_property
    def dense_losses(self) -> np.ndarray:
        """float64 [sequences, n - 1] in nats."""
        values: np.ndarray = losses(self.model, self.ids, None, self.compute)
        return values

    @cached_property
    def dense_answers(self) -> tuple[bool, ...]:
        """Which numbers the model repeats without a mask."""
        return needle.answers(self.model, self.needles, None, self.compute)

    def tensors(self) -> Iterable[Tensors]:
        """q, k and v of one sequence at a time: those of all do not fit into memory."""
        device = next(self.model.parameters()).device
        for row in self.ids:
            yield capture(self.model, row[None].to(device), self.layers, self.compute)


def evaluate(
    masks: Mapping[str, Mask] | Sequence[Candidate], inputs: Inputs | Tensors, *,
    parts: Sequence[str] = ("information", "perplexity", "retrieval"), margin: float = 0.02,
    resamples: int = 2000, seed: int = 0, known: Sequence[Evaluated] = (),
    base: Mask | None = None, data: Data | None = None, command: str = "",
    environment: Mapping[str, object] | None = None,
    progress: Callable[[str], object] | None = None,
    each: Callable[[Evaluated], bool] | None = None,
) -> Evaluation:  # fmt: skip
    """Measure what masks lose of dense attention, and what a model loses by them without training.

    Args:
        masks: masks by name, or candidates.
        inputs: a model with texts, or q, k and v alone, which yield information loss only.
        parts: which of "information", "perplexity" and "retrieval" to measure; retrieval needs
            `Inputs.needles`.
        margin: nats per token below which a difference counts as none.
        resamples: number of resamples of each bootstrap.
        seed: seed of the bootstraps.
        known: results of an earlier run; candidates of the same names are not evaluated again.
        base: the mask of dense attention, for pair counts; causal() when None.
        data: arrays and parameters that masks read, by name. With a model: the same for every
            sequence and prompt, or a function that computes them from the tokens of one (int64 [N],
            NumPy). With tensors: arrays, which may have a row for each sequence.
        command: the command that reproduces the numbers, for reports.
        environment: versions and the machine, for reports.
        progress: called with a description of the next step.
        each: called with each result of a candidate; the run ends early if it returns False.

    Returns:
        The evaluation, with p-values corrected for all its patterns by Holm's method.

    Raises:
        NotAMask: a value is not a mask (MC106).
        SameNames: two candidates have the same name (MC695).
        BadTensors: data are a function of tokens, but the inputs have none (MC730).
        MaskcError: see calls of the masks.
    """
    candidates = _candidates(masks)
    base = causal() if base is None else base
    tell = progress or (lambda _: None)
    finished = {result.name: result for result in known}
    wanted = [one for one in candidates if one.name not in finished]
    whole = [one for one in wanted if one.layers is None]
    model = inputs if isinstance(inputs, Inputs) else None
    if model is None and callable(data):
        raise BadTensors(inputs.source, "it has no tokens to derive data from", at="data")
    information: dict[str, InformationLoss] = {}
    if "information" in parts and whole:
        masks_of = {one.name: one.mask for one in whole}
        information = _joined(masks_of, inputs, data, resamples, seed, tell)
    everything = pairs_of(base, inputs.n, base, heads_of(inputs)) if wanted else 1
    for number, one in enumerate(wanted, start=1):
        tell(f"{one.name} ({number} of {len(wanted)})")
        pairs = mean_pairs(one.mask, inputs, base, data) if one.pairs is None else one.pairs
        result = Evaluated(
            one.name, repr(one.mask), one.role, one.of, pairs,
            pairs / everything, one.budget, information.get(one.name),
            digest=digest_of(one.mask, {} if callable(data) else data or {}), setting=one.setting,
        )  # fmt: skip
        if model is not None:
            result = _of_model(result, one, model, data, parts, margin, resamples, seed)
        finished[one.name] = result
        if each is not None and not each(result):
            break
    results = _corrected([finished[one.name] for one in candidates if one.name in finished])
    limits = (INFORMATION, UNTRAINED, SCOPE) if model is not None else (INFORMATION, SCOPE)
    sequences = len(inputs.ids) if isinstance(inputs, Inputs) else inputs.sequences
    about = tuple((key, str(value)) for key, value in (environment or {}).items())
    return Evaluation(
        inputs.source, inputs.n, sequences, str(base), tuple(results), limits, command, seed,
        resamples, about,
    )  # fmt: skip


def digest_of(mask: Mask, data: Mapping[str, object]) -> str:
    """sha256 of a mask, hexadecimal, the same in every process.

    Args:
        data: the values of parameters; arrays count as data that a mask is evaluated on.
    """
    values = {**default_parameters(mask), **data}
    params = [(name, values[name]) for name in sorted(default_parameters(mask))]
    return sha256(repr((structure(mask), params)).encode()).hexdigest()


def _candidates(masks: Mapping[str, Mask] | Sequence[Candidate]) -> list[Candidate]:
    if isinstance(masks, Mapping):
        for name, mask in masks.items():
            if not isinstance(mask, Node):
                raise not_a_mask("evaluate", mask, f"masks[{name!r}]")
        return [Candidate(name, mask) for name, mask in masks.items()]
    by_name: dict[str, Candidate] = {}
    for one in masks:
        if (other := by_name.setdefault(one.name, one)) is not one:
            raise SameNames(one.name, other.mask, one.mask, at="masks")
    return list(masks)


def heads_of(inputs: Inputs | Tensors) -> int:
    """Query heads of each layer."""
    if isinstance(inputs, Tensors):
        return int(inputs.layers[0].q.shape[1])
    return int(inputs.model.config.get_text_config().num_attention_heads)


def mean_pairs(mask: Mask, inputs: Inputs | Tensors, base: Mask, data: Data | None = None) -> int:
    """Live pairs of a head, the mean of all sequences where masks read data, rounded down."""
    n, heads = inputs.n, heads_of(inputs)
    if not data or not declared_names(mask):
        return pairs_of(mask, n, base, heads)
    if isinstance(inputs, Inputs):
        counts = [pairs_of(mask, n, base, heads, data_of(data, row)) for row in inputs.ids]
    else:
        rows, given = range(inputs.sequences), data_of(data, None)
        counts = [pairs_of(mask, n, base, heads, given, batch) for batch in rows]
    return sum(counts) // len(counts)


def _joined(
    masks: Mapping[str, Mask], inputs: Inputs | Tensors, data: Data | None, resamples: int,
    seed: int, tell: Callable[[str], object],
) -> dict[str, InformationLoss]:  # fmt: skip
    """Information loss on several lots of sequences."""
    if isinstance(inputs, Tensors):
        return information_loss(
            masks, inputs, data=data_of(data, None), resamples=resamples, seed=seed, progress=tell
        )
    losses_of = Losses(masks, matrices=inputs.matrices)
    for number, (row, lot) in enumerate(zip(inputs.ids, inputs.tensors(), strict=True)):

        def told(text: str, at: int = number) -> object:
            return tell(f"lot {at + 1}, {text}")

        losses_of.add(lot, told, data_of(data, row) or None)
    return losses_of.found(resamples, seed)


def _of_model(
    evaluated: Evaluated, one: Candidate, inputs: Inputs, data: Data | None, parts: Sequence[str],
    margin: float, resamples: int, seed: int,
) -> Evaluated:  # fmt: skip
    masks: Any = one.mask if one.layers is None else dict.fromkeys(one.layers, one.mask)
    if "perplexity" in parts:
        dense = inputs.dense_losses
        ours = losses(inputs.model, inputs.ids, masks, inputs.compute, data)
        evaluated = replace(
            evaluated, perplexity=perplexity(dense, ours, inputs.texts, margin, resamples, seed)
        )
    if "retrieval" in parts and inputs.needles:
        ours = needle.answers(inputs.model, inputs.needles, masks, inputs.compute, data)
        asked = needle.retrieval(inputs.needles, inputs.dense_answers, ours)
        evaluated = replace(evaluated, retrieval=asked)
    return evaluated


def perplexity(
    dense: np.ndarray, ours: np.ndarray, texts: Sequence[str], margin: float = 0.02,
    resamples: int = 2000, seed: int = 0,
) -> Perplexity:  # fmt: skip
    """Compare losses with a mask to losses without, on the same tokens.

    Args:
        dense, ours: float [sequences, tokens] in nats; each sequence is a document of its own.
        texts: the name of each sequence's text.
        margin: nats below which a difference counts as none.
        resamples, seed: of the bootstrap.

    Returns:
        The result; p_holm is p_value until other patterns are known.
    """
    drawn = bootstrap(list(ours - dense), resamples=resamples, seed=seed)
    interval = drawn.interval()
    ratio = Interval(*(exp(min(x, 700.0)) for x in (interval.value, interval.low, interval.high)))
    names = list(dict.fromkeys(texts))
    by_text = tuple(
        (name, float(np.mean((ours - dense)[[text == name for text in texts]]))) for name in names
    )
    return Perplexity(
        dense.size, len(dense), exp(min(float(ours.mean()), 700.0)), exp(float(dense.mean())),
        interval, ratio, drawn.p_value, drawn.p_value, drawn.detectable, margin,
        drawn.within(margin), by_text,
    )  # fmt: skip


def _corrected(every: Sequence[Evaluated]) -> list[Evaluated]:
    """Correct p-values for all patterns, each kind of test among its own."""
    results = list(every)
    for kind in ("perplexity", "retrieval"):
        having = [i for i, result in enumerate(results) if getattr(result, kind) is not None]
        p_values = [getattr(results[i], kind).p_value for i in having]
        for i, value in zip(having, holm(p_values), strict=True):
            part = replace(getattr(results[i], kind), p_holm=value)
            results[i] = replace(results[i], **{kind: part})
    return results
