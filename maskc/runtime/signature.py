"""What a call was given: its arrays, and which features it asks for."""

from __future__ import annotations

import ctypes
from numbers import Real
from typing import Any

from maskc.core.abi import POINTERS, Pointers
from maskc.core.errors import BadOption
from maskc.core.problem import Feature, Features
from maskc.runtime.arrays import LIBRARIES, Library, library
from maskc.runtime.autograd import refuse_lost_gradient

_BACKWARD = 6
"""Fewest arrays that a backward pass is given: q, k, v, out, dout, lse."""
_NO_POINTERS = dict.fromkeys(POINTERS, 0)
"""In the order of the argument block."""


def read(
    names: tuple[str, ...], given: list[Any]
) -> tuple[Library, tuple[Any, ...], tuple[int, ...]]:
    """(q's library, what a plan depends on, addresses); `given` as in CompiledMask._begin."""
    kind = type(given[0])
    lib = LIBRARIES.get(kind)
    if lib is None:
        given[0] = library(given[0], names[0])
        kind = type(given[0])
        lib = LIBRARIES[kind]
    if len(given) == 3:
        same = type(given[1]) is kind and type(given[2]) is kind
    else:
        same = [type(x) for x in given].count(kind) == len(given)
    if same:
        try:
            kinds, places = lib.read_all(given)
            return lib, kinds, places
        except RuntimeError:
            pass  # one of them has no memory: which, is said below
    found, places = [], []
    for number, x in enumerate(given):
        lib = LIBRARIES.get(type(x))
        if lib is None:
            x = given[number] = library(x, names[number])
            lib = LIBRARIES[type(x)]
        try:
            kind, place = lib.read(x)
        except RuntimeError:
            lib.view(x, names[number])  # says what is wrong with it
            raise
        if getattr(x, "requires_grad", False) and lib is not LIBRARIES[type(given[0])]:
            refuse_lost_gradient(given[0], names[number], x)
        found.append(kind)
        places.append(place)
    return LIBRARIES[type(given[0])], tuple(found), tuple(places)


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
    """Addresses in the order of the argument block, 0 for those that are not named."""
    found = _NO_POINTERS | dict(zip(names, places, strict=True)) | others
    return tuple(found.values())


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
