"""A number in a long text that the model must repeat at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from maskc.lab.evaluate.models import ReadingAttention, masked
from maskc.lab.evaluate.noted_attention import attention_of
from maskc.lab.evaluate.results import Retrieval
from maskc.lab.evaluate.statistics import mcnemar, wilson
from maskc.lab.evaluate.tensors import Data

_NEEDLE = "\nThe secret number is {0}. Remember it: the secret number is {0}.\n"
_QUESTION = "\nThe secret number is"


class Trial(NamedTuple):
    """A prompt with the answer at its end."""

    ids: Any
    """int64 [N]."""
    answer: int
    """The number of last tokens that are the answer."""
    depth: float
    """Where the number stands, 0 at the beginning and 1 at the end."""


def trials(tokenizer: Any, filler: Any, n: int, count: int, seed: int = 0) -> list[Trial]:
    """Prompts of n tokens, with the number at places spread evenly.

    Args:
        tokenizer: of transformers.
        filler: int64 [sequences, at least n], texts to hide the number in.
        n: tokens of a prompt, the answer included.
        count: prompts.
        seed: of the numbers.
    """
    import torch

    rng = np.random.default_rng(seed)
    drawn = []
    for index in range(count):
        number = str(rng.integers(10_000, 100_000))
        needle, question, answer = (
            tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in (_NEEDLE.format(number), _QUESTION, f" {number}")
        )
        room = n - len(needle) - len(question) - len(answer)
        depth = (index + 0.5) / count
        at = int(depth * room)
        text = filler[index % len(filler), :room].tolist()
        ids = [*text[:at], *needle, *text[at:], *question, *answer]
        drawn.append(Trial(torch.tensor(ids), len(answer), depth))
    return drawn


def answers(
    model: Any, asked: Sequence[Trial], masks: Any = None, compute: Any = None,
    data: Data | None = None,
) -> tuple[bool, ...]:  # fmt: skip
    """Whether greedy decoding repeats the number, by trial.

    The answer is in the prompt, and each of its tokens must be the most likely after those before
    it: that is what greedy decoding comes to, in one forward pass.
    """
    import torch

    device = next(model.parameters()).device
    answered, reading = [], ReadingAttention(data, compute)
    with attention_of(model, compute=reading), masked(model, masks), torch.no_grad():
        for trial in asked:
            ids = trial.ids.to(device)[None]
            reading.look(ids[0])
            logits = model(ids, use_cache=False, logits_to_keep=trial.answer + 1).logits[0, :-1]
            answered.append((logits.argmax(-1) == ids[0, -trial.answer :]).all())
    return tuple(map(bool, answered))


def retrieval(asked: Sequence[Trial], dense: Sequence[bool], ours: Sequence[bool]) -> Retrieval:
    """Compare one mask with dense attention; p_holm is p_value until others are known."""
    only_dense = sum(a and not b for a, b in zip(dense, ours, strict=True))
    only_masked = sum(b and not a for a, b in zip(dense, ours, strict=True))
    parts: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    for trial, right in zip(asked, ours, strict=True):
        parts[min(int(3 * trial.depth), 2)].append(right)
    by_depth = tuple(
        (round((part + 0.5) / 3, 3), len(hits), sum(hits)) for part, hits in parts.items() if hits
    )
    p_value = mcnemar(only_dense, only_masked)
    return Retrieval(
        len(asked), sum(ours), wilson(sum(ours), len(asked)), sum(dense), only_dense, only_masked,
        p_value, p_value, by_depth,
    )  # fmt: skip
