"""Inputs of a call: its arrays, and the features that it requests."""

from __future__ import annotations

from typing import Any

from maskc.core.abi import POINTERS, Pointers
from maskc.runtime.arrays.known import LIBRARIES, Library, library
from maskc.runtime.autograd import refuse_lost_gradient

_BACKWARD = 6
"""The least number of arrays of a backward pass: q, k, v, out, dout, lse."""
_NO_POINTERS = dict.fromkeys(POINTERS, 0)
"""No pointers, in the order of the argument block."""


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
    for x in given:
        if type(x) is not kind:
            break
    else:
        try:
            kinds, places = lib.read_all(given)
            return lib, kinds, places
        except RuntimeError:
            pass  # one of them has no memory: which, is said below
    shown_kinds: list[object] = []
    addresses: list[int] = []
    for number, x in enumerate(given):
        lib = LIBRARIES.get(type(x))
        if lib is None:
            x = given[number] = library(x, names[number])
            lib = LIBRARIES[type(x)]
        try:
            alone = [x]
            shown, (place,) = lib.read_all(alone)
        except RuntimeError:
            lib.view(x, names[number])  # says what is wrong with it
            raise
        given[number] = alone[0]
        if getattr(x, "requires_grad", False) and lib is not LIBRARIES[type(given[0])]:
            refuse_lost_gradient(given[0], names[number], x)
        shown_kinds.append(shown)
        addresses.append(place)
    return LIBRARIES[type(given[0])], tuple(shown_kinds), tuple(addresses)


def with_heads(names: tuple[str, ...], given: list[Any], alibi: Any, sinks: Any) -> tuple[str, ...]:
    """Return names and arrays, with the vectors per head of the call appended."""
    for name, x in (("alibi_slopes", alibi), ("sink_logits", sinks)):
        if x is not None:
            names = (*names, name)
            given.append(x)
    return names


def low_bits(places: tuple[int, ...]) -> int:
    """The addresses of all tensors of rows, joined by `or`."""
    bits = places[0] | places[1] | places[2]
    return bits | places[3] | places[4] if len(places) >= _BACKWARD else bits


def all_pointers(names: tuple[str, ...], places: tuple[int, ...], **others: int) -> Pointers:
    """Return addresses in the order of the argument block, 0 for arrays that are not named."""
    pointers = _NO_POINTERS | dict(zip(names, places, strict=True)) | others
    return tuple(pointers.values())
