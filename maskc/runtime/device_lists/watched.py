"""Detect whether the data of a call are the arrays of an earlier call, with unchanged content."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

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
    leaves: list[Any] = [*data, *data.values()]
    for kind in map(type, leaves):
        if kind in _NESTED:
            leaves = [*data]
            for one in data.values():
                _open(one, leaves)
            break
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


class _Form(NamedTuple):
    """The common part of calls whose data differ in their arrays alone."""

    leaves: list[tuple[Library | None, object]]
    """For each leaf (library, layout) of an array, or (None, a plain value)."""
    named: list[tuple[str, type, Library, object]]
    """(keyword, type, library, layout) of the arrays where each keyword gives one, and there is
    nothing else; otherwise empty."""


class Watched:
    """The data of a call, for as long as its arrays live. `same` recognises the same arrays without
    later writes; torch counts the writes to its tensors."""

    __slots__ = ("_arrays", "_form", "state")

    def __init__(self, form: _Form, arrays: list[Any], state: tuple[Any, ...]) -> None:
        """Used by `of` and `again`.

        Args:
            form: what later calls with such data share.
            arrays: references to the arrays.
            state: see the attribute.
        """
        self._form, self._arrays = form, arrays
        self.state = state
        """Address and counter of writes of each array, in the order of the caller's keywords. They
        are equal where the arrays are the same and nothing was written."""

    @property
    def places(self) -> tuple[int, ...]:
        """Addresses of the arrays, in the order of the caller's keywords."""
        return self.state[::2]

    @property
    def counted(self) -> bool:
        """Whether writes to all arrays are counted."""
        return all(type(version) is int for version in self.state[1::2])

    @classmethod
    def of(cls, data: Data, held: Held | None) -> Watched | None:
        """Watch the data of a call; None if one of them is neither an array in memory of a device
        nor a plain value.

        Args:
            data: the caller's keywords.
            held: what formulas of the mask captured.
        """
        leaves: list[tuple[Library | None, object]] = []
        arrays: list[Any] = []
        state: tuple[Any, ...] = ()
        for one in _leaves(data, held):
            library = LIBRARIES.get(type(one))
            if library is not None:
                seen = library.watch(one)
                if seen is None:
                    return None
                place, version, layout = seen
                leaves.append((library, layout))
                arrays.append(weakref.ref(one))
                state += (place, version)
            elif type(one) in _PLAIN:
                leaves.append((None, one))
            else:
                return None
        named: list[tuple[str, type, Library, object]] = []
        if held is None and len(arrays) == len(data) and len(leaves) == 2 * len(data):
            for name, (lib, expected) in zip(data, leaves[len(data) :], strict=True):
                if lib is not None:
                    named.append((name, type(data[name]), lib, expected))
        return cls(_Form(leaves, named), arrays, state)

    def again(self, data: Data, held: Held | None) -> Watched | None:
        """Watch the data of a later call, if its arrays have the same layouts and its plain values
        are equal.

        Returns this object if the arrays are the same and nothing was written, and None if a layout
        or a value differs. Takes the arguments of `of`.
        """
        form = self._form
        arrays: list[Any] = []
        state: tuple[Any, ...] = ()
        if held is None and form.named and len(data) == len(form.named):  # takes less time
            for name, kind, library, expected in form.named:
                one = data.get(name)
                seen = library.watch(one) if type(one) is kind else None
                if seen is None or seen[2] != expected:
                    return None
                arrays.append(weakref.ref(one))
                state += seen[:2]
        else:
            leaves = _leaves(data, held)
            if len(leaves) != len(form.leaves):
                return None
            for one, (lib, expected) in zip(leaves, form.leaves, strict=True):
                if lib is None:
                    if expected is one or (type(expected) is type(one) and expected == one):
                        continue
                    return None
                seen = lib.watch(one) if LIBRARIES.get(type(one)) is lib else None
                if seen is None or seen[2] != expected:
                    return None
                arrays.append(weakref.ref(one))  # the same reference for the same array
                state += seen[:2]
        if state == self.state and all(map(is_, arrays, self._arrays)):
            return self
        return Watched(form, arrays, state)

    def same(self, other: Watched) -> bool:
        """Whether another call gave the same arrays, with the same content."""
        if other.state != self.state:
            return False
        if other._form is not self._form and other._form != self._form:
            return False
        for mine, its in zip(self._arrays, other._arrays, strict=True):
            if mine is not its or mine() is None:
                return False
        return True

    def order_of(self, arrays: Sequence[int]) -> tuple[int, ...] | None:
        """Return the positions in `places` of arrays with these identities.

        Returns None if the caller did not pass one of them, or passed it several times: a later
        call may pass different arrays in these places.
        """
        known = [id(one()) for one in self._arrays]
        if any(known.count(one) != 1 for one in arrays):
            return None
        return tuple(map(known.index, arrays))
