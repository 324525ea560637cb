"""The keywords of a call as an operator can take them: tensors, integers and one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from maskc.core.data import CuSeqlens, Parents
from maskc.core.dropout import RATE
from maskc.core.errors import BadOption


@dataclass(frozen=True, slots=True)
class Call:
    """Everything of a call except its tensors and its mask."""

    layout: str
    """JSON object: for every keyword where its value is. A number is a place among the data
    tensors, a text holds a place among `values`, a list is a tuple, an object a marker."""
    values: tuple[Any, ...]
    """The options that are no tensors; they are integers where the call becomes an operator."""
    scale: float | None
    softcap: float | None
    normalizer: str
    alpha: float | None
    nan_safe: bool
    deterministic: bool

    def numbers(self) -> tuple[Any, ...]:
        """The fields in order, as the operators take them."""
        values = list(self.values)
        return (
            self.layout, values, self.scale, self.softcap, self.normalizer, self.alpha,
            self.nan_safe, self.deterministic,
        )  # fmt: skip

    @property
    def entmax(self) -> bool:
        """Whether weights are others than softmax's."""
        return self.normalizer == "entmax" and self.alpha != 1

    def options(self) -> dict[str, Any]:
        """Numbers and words that both passes of a CompiledMask take."""
        return {
            "scale": self.scale, "softcap": self.softcap, "normalizer": self.normalizer,
            "alpha": self.alpha, "nan_safe": self.nan_safe,
        }  # fmt: skip

    def undropped(self) -> Call:
        """The keywords without dropout, which the gradient of lse does not see."""
        place = _parsed(self.layout).get(RATE) if RATE in self.layout else None
        if place is None:
            return self
        index = int(place)
        values = (*self.values[:index], 0, *self.values[index + 1 :])
        return replace(self, values=values)

    def places(self) -> dict[str, int]:
        """Where the keywords that are tensors by themselves lie among the data tensors."""
        known = {} if self.layout == _NOTHING else _parsed(self.layout)
        return {name: place for name, place in known.items() if type(place) is int}

    def data(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """The mask's data and parameters, made of these data tensors."""
        if self.layout == _NOTHING:
            return {}
        places = _parsed(self.layout).items()
        return {name: _fill(place, tensors, self.values) for name, place in places}


_NOTHING = "{}"
_OWN = ("scale", "softcap", "normalizer", "alpha", "nan_safe")
"""Keywords with a field of their own."""


def call_of(
    options: Mapping[str, Any], deterministic: bool, as_operator: bool
) -> tuple[Call, list[Any]]:
    """(the call, its data tensors).

    Args:
        options: keywords of the call, without `return_lse`, slopes and sink logits.
        deterministic: for the backward pass.
        as_operator: turn arrays and lists into tensors, so that only integers remain as values.
    """
    tensors: list[Any] = []
    values: list[Any] = []
    places = [
        f'"{name}": {_place(value, tensors, values, as_operator)}'
        for name, value in options.items()
        if name not in _OWN
    ]
    scale, softcap, normalizer, alpha, nan_safe = map(options.get, _OWN)
    if as_operator:
        scale, softcap, alpha = (
            _number(name, x)
            for name, x in (("scale", scale), ("softcap", softcap), ("alpha", alpha))
        )
    layout = "{" + ", ".join(places) + "}"
    numbers = (scale, softcap, "softmax" if normalizer is None else normalizer, alpha)
    return Call(layout, tuple(values), *numbers, bool(nan_safe), deterministic), tensors


def _number(name: str, value: Any) -> float | None:
    """An option as operators take it; the kernel's own check comes when it runs.

    Raises:
        BadOption: it is no number, or too large for one of 64 bits.
    """
    try:
        return None if value is None else float(value)
    except (OverflowError, TypeError, ValueError):
        raise BadOption(name, "a finite number", repr(value), at=name) from None


def _place(value: Any, tensors: list[Any], values: list[Any], as_operator: bool) -> str:
    """The place of the value in the JSON text."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return str(len(tensors) - 1)
    if isinstance(value, (CuSeqlens, Parents)):
        word = _MARKERS[type(value)]
        inner = _place(value.array, tensors, values, as_operator)
        most = getattr(value, "max_seqlen", None)
        if most is None:
            return f'{{"{word}": {inner}}}'
        values.append(most)
        return f'{{"{word}": {inner}, "max_seqlen": "{len(values) - 1}"}}'
    if isinstance(value, tuple) and not all(isinstance(part, int) for part in value):
        parts = [_place(part, tensors, values, as_operator) for part in value]
        return "[" + ", ".join(parts) + "]"
    if value is None or value is True or value is False:
        return "null" if value is None else "true" if value else "false"
    if as_operator and not isinstance(value, (int, torch.SymInt)):
        tensors.append(_as_tensor(value))
        return str(len(tensors) - 1)
    values.append(value)
    return f'"{len(values) - 1}"'


_MARKERS = {CuSeqlens: "cu_seqlens", Parents: "parents"}
_UNMARKED = {word: marker for marker, word in _MARKERS.items()}


def _as_tensor(value: Any) -> Any:
    """An array, or a list of numbers or of tensors."""
    if isinstance(value, list) and any(isinstance(part, torch.Tensor) for part in value):
        return torch.stack(value)
    return torch.as_tensor(value)


@lru_cache(maxsize=256)
def _parsed(layout: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(layout)
    return found


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
