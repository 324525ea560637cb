"""Whether the arrays of a call are those of an earlier one, with the same content."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from maskc.core.data import CuSeqlens
from maskc.runtime.arrays.known import LIBRARIES


def leaves_of(given: Any) -> Iterator[Any]:
    """The arrays, and the numbers beside them, of the caller's keywords."""
    kind = type(given)
    if kind is tuple or kind is list:
        yield len(given)
        for each in given:
            yield from leaves_of(each)
    elif kind is CuSeqlens:
        yield given.max_seqlen
        yield from leaves_of(given.array)
    else:
        yield given


class Watched:
    """Arrays of a call, as long as they live: the same ones, which nobody has written into since,
    are told from all others. Torch counts what is written into its tensors."""

    __slots__ = ("_arrays", "_flat", "places", "versions")

    def __init__(
        self, arrays: tuple[Any, ...], places: tuple[Any, ...], versions: tuple[int, ...],
        flat: bool = False,
    ) -> None:  # fmt: skip
        self._arrays, self.places, self.versions = arrays, places, versions
        self._flat = flat
        """Whether these are the arrays as they were given: neither pairs nor wrappers."""

    @classmethod
    def of(cls, given: Sequence[Any]) -> Watched | None:
        """None where an array is of another library, or made where nothing is counted."""
        arrays: list[Any] = []
        places: list[Any] = []
        versions: list[int] = []
        for one in chain.from_iterable(map(leaves_of, given)):
            if one is None or type(one) is int:
                arrays.append(one)
                continue
            library = LIBRARIES[type(one)]
            version = library.version(one)
            if version is None:
                return None
            arrays.append(weakref.ref(one))
            places.append(library.read(one))
            versions.append(version)
        flat = all(type(one) in LIBRARIES for one in given)
        return cls(tuple(arrays), tuple(places), tuple(versions), flat)

    def again(self, given: Sequence[Any]) -> Watched | None:
        """The same arrays, where they are still, as they are now; None where any is another one."""
        places: list[Any] = []
        versions: list[Any] = []
        leaves = given if self._flat else list(chain.from_iterable(map(leaves_of, given)))
        if len(leaves) != len(self._arrays):
            return None
        for mine, one in zip(self._arrays, leaves, strict=True):
            if type(mine) is weakref.ref:
                if mine() is not one:
                    return None
                library = LIBRARIES[type(one)]
                places.append(library.read(one))
                versions.append(library.version(one))
            elif type(mine) is not type(one) or mine != one:
                return None
        if tuple(places) != self.places:
            return None
        if tuple(versions) == self.versions:
            return self
        if None in versions:
            return None
        return Watched(self._arrays, self.places, tuple(versions), self._flat)

    def same(self, other: Watched | None) -> bool:
        """Whether another call gave the same arrays, with the same content."""
        if other is None or other.versions != self.versions or other.places != self.places:
            return False
        pairs = zip(self._arrays, other._arrays, strict=False)
        return len(self._arrays) == len(other._arrays) and all(
            (a is b and a() is not None) if type(a) is weakref.ref else a == b for a, b in pairs
        )
