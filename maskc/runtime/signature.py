"""What a call was given: its arrays, and which features it asks for."""

from __future__ import annotations

import ctypes
from numbers import Real
from typing import Any

from maskc.core.errors import BadOption
from maskc.core.problem import Feature, Features
from maskc.runtime.arrays import LIBRARIES, Library, library
from maskc.runtime.plans import POINTERS, Pointers

_BACKWARD = 6
"""Fewest arrays that a backward pass is given: q, k, v, out, dout, lse."""


def read(
    names: tuple[str, ...], given: list[Any]
) -> tuple[Library, tuple[Any, ...], tuple[int, ...]]:
    """(q's library, what a plan depends on, addresses); `given` as in CompiledMask._begin."""
    kind = type(given[0])
    lib = LIBRARIES.get(kind)
    if len(given) == 3:
        same = type(given[1]) is kind and type(given[2]) is kind
    else:
        same = all(type(x) is kind for x in given)
    if lib is not None and same:
        try:
            return lib, *lib.read_all(given)
        except RuntimeError:
            pass  # one of them has no memory: which, is said below
    kinds: list[object] = []
    places = []
    for number, x in enumerate(given):
        lib = LIBRARIES.get(type(x))
        if lib is None:
            x = given[number] = library(x, names[number])
            lib = LIBRARIES[type(x)]
        try:
            found, place = lib.read(x)
        except RuntimeError:
            lib.view(x, names[number])  # says what is wrong with it
            raise
        kinds.append(found)
        places.append(place)
    return LIBRARIES[type(given[0])], tuple(kinds), tuple(places)


def with_heads(names: tuple[str, ...], given: list[Any], alibi: Any, sinks: Any) -> tuple[str, ...]:
    """`names` and what they name, with the vectors per head that were given."""
    for name, x in (("alibi_slopes", alibi), ("sink_logits", sinks)):
        if x is not None:
            names = (*names, name)
            given.append(x)
    return names


def low_bits(places: tuple[int, ...]) -> int:
    """The addresses of all tensors of rows, joined by `or`."""
    found = places[0] | places[1] | places[2]
    return found | places[3] | places[4] if len(places) >= _BACKWARD else found


def all_pointers(names: tuple[str, ...], places: tuple[int, ...], **others: int) -> Pointers:
    """Addresses in the order of the argument block."""
    found = dict(zip(names, places, strict=True)) | others
    return tuple(found.get(name, 0) for name in POINTERS)


def alpha_less_1(normalizer: str, alpha: object) -> float:
    """alpha - 1 of a call, as the fp32 value a kernel gets; 0 is softmax.

    Raises:
        BadOption: an unknown normalizer; an alpha of softmax, or one that is not in 1 .. 2.
    """
    if normalizer == "softmax":
        if alpha is not None:
            raise BadOption("alpha", "left out with normalizer='softmax'", alpha, at="alpha")
        return 0.0
    if normalizer != "entmax":
        wanted = "'softmax' or 'entmax'"
        raise BadOption("normalizer", wanted, repr(normalizer), at="normalizer")
    if alpha is None:
        return 0.5
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 1 <= alpha <= 2:
        raise BadOption("alpha", "a number in 1 .. 2", repr(alpha), at="alpha")
    return ctypes.c_float(float(alpha) - 1).value


def features_asked(names: tuple[str, ...], softcap: bool, entmax: bool, nan_safe: bool) -> Features:
    """What a call needs compiled in.

    Raises:
        BadOption: sink logits with entmax.
    """
    asked = {
        Feature.softcap: softcap,
        Feature.alibi: "alibi_slopes" in names,
        Feature.sinks: "sink_logits" in names,
        Feature.entmax: entmax,
        Feature.nan_safe: nan_safe,
    }
    if entmax and asked[Feature.sinks]:
        wanted = "left out with normalizer='entmax', which has no denominator"
        raise BadOption("sink_logits", wanted, "sink logits", at="sink_logits")
    return frozenset(feature for feature, wanted in asked.items() if wanted)
