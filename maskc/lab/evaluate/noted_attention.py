"""A model of transformers with maskc's attention, and a note of what each layer computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from maskc.api import attention
from maskc.core.errors import ModelNotServed
from maskc.dsl.mask import Mask

NAME = "maskc_evaluated"
"""The attention implementation of models while they are looked at."""

Note = Callable[[int, Any, Any, Any, Mask, Mapping[str, Any]], object]
"""Is told layer index, q, k, v, mask and the keywords of the call of `maskc.attention`."""


@contextmanager
def attention_of(model: Any, note: Note | None = None, compute: Any = None) -> Iterator[None]:
    """The model with maskc's attention, in evaluation mode, for a while.

    Args:
        model: a model of transformers.
        note: is called by every attention layer, when it has its result.
        compute: what computes attention in the place of `maskc.attention`, as `Matrices.attention`.

    Raises:
        ModelNotServed: the model computes attention by itself (MC605).
        ExtraMissing: transformers is not installed (MC507).
        LibraryTooOld: it is an earlier transformers than 5.24 (MC613).
    """
    from maskc.integrations.transformers import register
    from maskc.integrations.transformers.carried import NEVER_ASKS, can_be_set, make_mask

    register()
    from transformers import AttentionInterface, AttentionMaskInterface

    if not can_be_set(type(model)):
        raise ModelNotServed(type(model).__name__, NEVER_ASKS)
    AttentionMaskInterface.register(NAME, make_mask)
    AttentionInterface.register(NAME, _run)
    before, training = model.config._attn_implementation, model.training
    _noting.append((note, compute))
    try:
        model.eval()
        model.set_attn_implementation(NAME)
        yield
    finally:
        _noting.pop()
        model.set_attn_implementation(before)
        model.train(training)


_noting: list[tuple[Note | None, Any]] = []


def _run(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **more: Any) -> Any:
    """maskc's attention function, which tells what it computes with."""
    from maskc.integrations.transformers.attention import run

    note, compute = _noting[-1] if _noting else (None, None)
    number = getattr(module, "layer_idx", None)
    if compute is not None:
        compute = partial(compute, layer=number)
    if note is not None:
        compute = partial(_noted, note, number or 0, compute or attention)
    return run(module, query, key, value, attention_mask, compute=compute, **more)


def _noted(
    note: Note, number: int, compute: Any, q: Any, k: Any, v: Any, mask: Mask, **options: Any
) -> Any:
    results = compute(q, k, v, mask, **options)
    note(number, q, k, v, mask, options)
    return results
