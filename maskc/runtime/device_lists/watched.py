"""Detect whether the data of a call are the arrays of an earlier call, with unchanged content."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from maskc.core.captured import Held
from maskc.core.data import CuSeqlens
from maskc.runtime.arrays.known import LIBRARIES, Library

_NESTED = {tuple, list, CuSeqlens}
_PLAIN = {type(None), type, str, bool, int, np.int32, np.int64}
"""Types that are compared by value."""

Data = Mapping[str, Any]


def _leaves(data: Data, held: Held | None) -> list[Any]:
    """Return the names, then the arrays and numbers of a caller; containers are identified by
    type."""
    leaves: list[Any] = list(data)
    for one in data.values():
        if type(one) in _NESTED:
            _open(one, leaves)
        else:
            leaves.append(one)
    if held is not None:
        leaves += held.sources
    return leaves


def _open(given: Any, leaves: list[Any]) -> None:
    """Add what an object holds."""
    kind = type(given)
    if kind is CuSeqlens:
        size, inside = given.max_seqlen, (given.array,)
    elif kind in _NESTED:
        size, inside = len(given), given
    else:
        leaves.append(given)
        return
    leaves += (kind, size)
    for one in inside:
        _open(one, leaves)


class Watched:
    """The data of a call, for as long as its arrays live. `same` recognises the same arrays without
    later writes; torch counts the writes to its tensors."""

    __slots__ = ("_known", "_versions")

    def __init__(
        self, known: Sequence[tuple[Any, Library | None, object]], versions: list[int]
    ) -> None:
        """Used by `of` and `again`.

        Args:
            known: (reference to an array, its library, its address and layout), or (a plain value,
                None, None).
            versions: of the arrays.
        """
        self._known, self._versions = known, versions

    @classmethod
    def of(cls, data: Data, held: Held | None) -> Watched | None:
        """Watch the data of a call; None if writes to one of its arrays are not counted.

        Args:
            data: the caller's keywords.
            held: what formulas of the mask captured.
        """
        known: list[tuple[Any, Library | None, object]] = []
        versions: list[int] = []
        for one in _leaves(data, held):
            library = LIBRARIES.get(type(one))
            if library is not None:
                seen = library.watch(one)
                if seen is None:
                    return None
                known.append((weakref.ref(one), library, seen[0]))
                versions.append(seen[1])
            elif type(one) in _PLAIN:
                known.append((one, None, None))
            else:
                return None
        return cls(known, versions)

    def again(self, data: Data, held: Held | None) -> Watched | None:
        """Return the same arrays in their present state.

        Returns this object if nothing was written, and None if any array is another one. Takes the
        arguments of `of`.
        """
        leaves, known, versions = _leaves(data, held), self._known, []
        if len(leaves) != len(known):
            return None
        for one, (mine, library, place) in zip(leaves, known, strict=True):
            if library is None:
                if mine is not one and (type(mine) is not type(one) or mine != one):
                    return None
                continue
            seen = library.watch(one) if mine() is one else None
            if seen is None or seen[0] != place:
                return None
            versions.append(seen[1])
        return self if versions == self._versions else Watched(known, versions)

    def same(self, other: Watched) -> bool:
        """Whether another call gave the same arrays, with the same content."""
        if other._versions != self._versions or len(self._known) != len(other._known):
            return False
        for mine, its in zip(self._known, other._known, strict=True):
            if mine[1] is None or its[1] is None:
                if mine != its:
                    return False
            elif mine[0] is not its[0] or mine[0]() is None or mine[2] != its[2]:
                return False
        return True
