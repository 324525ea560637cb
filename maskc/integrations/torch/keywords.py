"""The keywords of a call as an operator can take them: tensors, integers and one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from maskc.core.attention_call import CallOptions
from maskc.core.data import CuSeqlens, Parents
from maskc.core.dropout import RATE
from maskc.core.errors import BadOption
from maskc.core.tensors import Order


class PackedCall(NamedTuple):
    """Everything of a call except its tensors and its mask."""

    layout: Mapping[str, Any]
    """For every keyword where its value is. A number is a place among the data tensors, a text
    holds a place among `values`, a list is a tuple, a dictionary a marker."""
    values: tuple[Any, ...]
    """The data that are not tensors; integers, if the call becomes an operator."""
    options: CallOptions
    """The options, without vectors per head, which are tensors."""
    order: Order | None = None
    """The order of tensors and of out; operators only take [B, H, N, D]."""

    def numbers(self) -> tuple[Any, ...]:
        """Return the operators' arguments, in order. The layout is JSON, and no value is None."""
        x = self.options
        scale, softcap = _number("scale", x.scale), _number("softcap", x.softcap)
        alpha = _number("alpha", x.alpha)
        numbers = scale, softcap, x.normalizer, alpha, bool(x.nan_safe), x.deterministic
        return _text(self.layout), list(self.values) or None, *numbers

    @classmethod
    def of(cls, numbers: Sequence[Any]) -> PackedCall:
        """The call of `numbers`."""
        layout, values, scale, softcap, normalizer, alpha, nan_safe, deterministic = numbers
        options = CallOptions(
            scale, False, softcap, None, None, normalizer, alpha, nan_safe, deterministic
        )
        return cls(_parsed(layout), tuple(values or ()), options)

    @property
    def entmax(self) -> bool:
        """Whether weights are others than softmax's."""
        return self.options.normalizer == "entmax" and self.options.alpha != 1

    def undropped(self) -> PackedCall:
        """The keywords without dropout, which the gradient of lse does not see."""
        if RATE not in self.layout:
            return self
        index = int(self.layout[RATE])
        return self._replace(values=(*self.values[:index], 0, *self.values[index + 1 :]))

    def places(self) -> dict[str, int]:
        """Indices, among the data tensors, of keywords that are single tensors."""
        return {name: place for name, place in self.layout.items() if type(place) is int}

    def data(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """The mask's data and parameters, made of these data tensors."""
        return {
            name: tensors[place] if type(place) is int else _fill(place, tensors, self.values)
            for name, place in self.layout.items()
        }


def packed_call(
    options: CallOptions, data: Mapping[str, Any], as_operator: bool
) -> tuple[PackedCall, list[Any]]:
    """(the call, its data tensors).

    Args:
        options: of the call.
        data: its other keywords.
        as_operator: turn arrays and lists into tensors, so that only integers remain as values.
    """
    tensors: list[Any] = []
    values: list[Any] = []
    layout = {name: _place(value, tensors, values, as_operator) for name, value in data.items()}
    if options.alibi_slopes is not None or options.sink_logits is not None:
        options = options._replace(alibi_slopes=None, sink_logits=None)
    return PackedCall(layout, tuple(values), options), tensors


def _number(name: str, value: Any) -> float | None:
    """Convert an option for an operator; the kernel checks it when it runs.

    Raises:
        BadOption: it is not a number, or too large for one of 64 bits.
    """
    try:
        return None if value is None else float(value)
    except (OverflowError, TypeError, ValueError):
        raise BadOption(name, "a finite number", repr(value), at=name) from None


def _place(value: Any, tensors: list[Any], values: list[Any], as_operator: bool) -> Any:
    """Where the value is, see `PackedCall`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return len(tensors) - 1
    if isinstance(value, (CuSeqlens, Parents)):
        word = _MARKERS[type(value)]
        inner = _place(value.array, tensors, values, as_operator)
        most = getattr(value, "max_seqlen", None)
        if most is None:
            return {word: inner}
        values.append(most)
        return {word: inner, "max_seqlen": str(len(values) - 1)}
    if isinstance(value, tuple) and not all(isinstance(part, int) for part in value):
        return [_place(part, tensors, values, as_operator) for part in value]
    if value is None or value is True or value is False:
        return value
    if as_operator and not isinstance(value, (int, torch.SymInt)):
        tensors.append(_as_tensor(value))
        return len(tensors) - 1
    values.append(value)
    return str(len(values) - 1)


def _text(place: Any) -> str:
    """A place as JSON, also while torch.compile traces."""
    if isinstance(place, dict):
        return "{" + ", ".join([f'"{name}": {_text(x)}' for name, x in place.items()]) + "}"
    if isinstance(place, list):
        return "[" + ", ".join([_text(part) for part in place]) + "]"
    if place is None or place is True or place is False:
        return "null" if place is None else "true" if place else "false"
    return f'"{place}"' if isinstance(place, str) else str(place)


_MARKERS = {CuSeqlens: "cu_seqlens", Parents: "parents"}
_UNMARKED = {word: marker for marker, word in _MARKERS.items()}


def _as_tensor(value: Any) -> Any:
    """An array, or a list of numbers or of tensors."""
    if isinstance(value, list) and any(isinstance(part, torch.Tensor) for part in value):
        return torch.stack(value)
    return torch.as_tensor(value)


@lru_cache(maxsize=256)
def _parsed(layout: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(layout)
    return parsed


def _fill(place: Any, tensors: Sequence[Any], values: Sequence[Any]) -> Any:
    match place:
        case None | True | False:
            return place
        case int():
            return tensors[place]
        case str():
            return values[int(place)]
        case list():
            return tuple(_fill(part, tensors, values) for part in place)
    (word, inner), *rest = place.items()
    return _UNMARKED[word](
        *(_fill(part, tensors, values) for part in (inner, *dict(rest).values()))
    )
