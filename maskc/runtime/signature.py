"""What a call was given: its arrays, and which features it asks for."""

from __future__ import annotations

from typing import Any

from maskc.core.problem import Feature, Features
from maskc.runtime.arrays import LIBRARIES, Library, library
from maskc.runtime.plans import POINTERS, Pointers


def read(names: tuple[str, ...], given: list[Any]) -> tuple[Library, list[object], list[int]]:
    """(q's library, what a plan depends on, addresses); `given` as in CompiledMask._begin."""
    kind = type(given[0])
    lib = LIBRARIES.get(kind)
    if len(given) == 3:
        same = type(given[1]) is kind and type(given[2]) is kind
    else:
        same = all(type(x) is kind for x in given)
    if lib is not None and same:
        try:
            kinds, places = lib.read_all(given)
            return lib, kinds, places
        except RuntimeError:
            pass  # one of them has no memory: which, is said below
    signature: list[object] = []
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
        signature.append(found)
        places.append(place)
    return LIBRARIES[type(given[0])], signature, places


def with_heads(names: tuple[str, ...], given: list[Any], alibi: Any, sinks: Any) -> tuple[str, ...]:
    """`names` and what they name, with the vectors per head that were given."""
    for name, x in (("alibi_slopes", alibi), ("sink_logits", sinks)):
        if x is not None:
            names = (*names, name)
            given.append(x)
    return names


def all_pointers(names: tuple[str, ...], places: list[int], **others: int) -> Pointers:
    """Addresses in the order of the argument block."""
    found = dict(zip(names, places, strict=True)) | others
    return tuple(found.get(name, 0) for name in POINTERS)


def features_asked(names: tuple[str, ...], softcap: bool, nan_safe: bool) -> Features:
    """What a call needs compiled in."""
    asked = {
        Feature.softcap: softcap,
        Feature.alibi: "alibi_slopes" in names,
        Feature.sinks: "sink_logits" in names,
        Feature.nan_safe: nan_safe,
    }
    return frozenset(feature for feature, wanted in asked.items() if wanted)
