"""The array library of a value, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from maskc.runtime.arrays.known import _BY_NAME, LIBRARIES


def library(x: object, name: str) -> Any:
    """x itself where its type is known, else the `Foreign` that stands for it.

    Raises:
        NotAnArray: x has no array interface.
    """
    kind = type(x)
    if kind in LIBRARIES:
        return x
    for base in kind.__mro__:
        known = _BY_NAME.get((base.__module__.partition(".")[0], base.__name__))
        if known is not None:
            LIBRARIES[kind] = known
            return x
    return _foreign()(x, name)


@cache
def _foreign() -> Callable[[Any, str], Any]:
    from maskc.runtime.arrays.foreign import foreign

    return foreign
