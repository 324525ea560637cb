"""Whether the data of a call are those of an earlier one, with the same content."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from maskc.core.data import CuSeqlens
from maskc.runtime.arrays.known import LIBRARIES, Library

_NESTED = {tuple, list, CuSeqlens}
_PLAIN = {type(None), type, str, bool, int, np.int32, np.int64}
"""Told apart by what they are."""


def leaves_of(given: Iterable[Any]) -> list[Any]:
    """The arrays, and the numbers beside them, of what a caller gives; what holds several is told
    by its type."""
    found: list[Any] = []
    for one in given:
        kind = type(one)
        if kind not in _NESTED:
            found.append(one)
        elif kind is CuSeqlens:
            found += (kind, one.max_seqlen, *leaves_of((one.array,)))
        else:
            found += (kind, len(one), *leaves_of(one))
    return found


class Watched:
    """Data of a call, as long as its arrays live: the same arrays, which nobody has written into
    since, are told from all others. Torch counts what is written into its tensors."""

    __slots__ = ("_leaves", "_versions")

    def __init__(
        self, leaves: tuple[tuple[Any, Library | None, object], ...], versions: tuple[int, ...]
    ) -> None:
        """Of `of` and `again`.

        Args:
            leaves: (reference to an array, its library, where and how it lies), or (a plain value,
                None, None).
            versions: of the arrays; 0 for plain values.
        """
        self._leaves, self._versions = leaves, versions

    @classmethod
    def of(cls, leaves: Iterable[Any]) -> Watched | None:
        """None where an array is of a library that counts nothing, or made where nothing is
        counted."""
        found: list[tuple[Any, Library | None, object]] = []
        versions = []
        for one in leaves:
            library = LIBRARIES.get(type(one))
            if library is not None:
                version = library.version(one)
                if version is None:
                    return None
                found.append((weakref.ref(one), library, library.read(one)))
            elif type(one) in _PLAIN:
                version = 0
                found.append((one, None, None))
            else:
                return None
            versions.append(version)
        return cls(tuple(found), tuple(versions))

    def again(self, leaves: list[Any]) -> Watched | None:
        """The same arrays, where they are still, as they are now: this object where nothing was
        written; None where any is another one."""
        known = self._leaves
        if len(leaves) != len(known):
            return None
        versions: list[Any] = []
        for one, (mine, library, place) in zip(leaves, known, strict=True):
            if library is None:
                if type(mine) is not type(one) or mine != one:
                    return None
                versions.append(0)
                continue
            if mine() is not one or library.read(one) != place:
                return None
            versions.append(library.version(one))
        now = tuple(versions)
        if now == self._versions:
            return self
        return None if None in now else Watched(known, now)

    def same(self, other: Watched | None) -> bool:
        """Whether another call gave the same arrays, with the same content."""
        if other is None or other._versions != self._versions:
            return False
        if len(self._leaves) != len(other._leaves):
            return False
        for mine, its in zip(self._leaves, other._leaves, strict=True):
            if mine[1] is None or its[1] is None:
                if mine != its:
                    return False
            elif mine[0] is not its[0] or mine[0]() is None or mine[2] != its[2]:
                return False
        return True
