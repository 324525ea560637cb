"""The longest document, as `max_seqlen` of cumulative lengths promises it; a promise that is broken
is an error."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.core.data import CuSeqlens
from maskc.core.errors import DataRange, DataType
from maskc.core.widths import plain_integer
from maskc.layout.inputs.host import to_host

NO_PROMISE = (1 << 31) - 1
"""Tokens that no document exceeds."""
_LEAST, _STEPS = 16, 4
"""Upper bounds are rounded up, to multiples of _LEAST tokens and to _STEPS values per power of two,
so that calls with slightly different bounds share a plan."""


def promised(name: str, given: object) -> int | None:
    """The `max_seqlen` of documents, None if they bring none; `name` is for errors.

    Raises:
        DataType: no integer. DataRange: negative.
    """
    if not isinstance(given, CuSeqlens) or given.max_seqlen is None:
        return None
    value: Any = given.max_seqlen
    most = plain_integer(value)
    if most is None:
        wanted = "an integer as max_seqlen"
        raise DataType(name, type(value).__name__, wanted, at=name)
    if most < 0:
        hint = "max_seqlen is the length of the longest document"
        raise DataRange(name, f"max_seqlen is {most}", hint, at=name)
    return min(most, NO_PROMISE)


def longest_promised(name: str, given: object) -> int | None:
    """The longest document that the documents of a call may have, rounded up; None if those of
    queries or those of keys promise nothing.

    Raises:
        As `promised`.
    """
    sides = given if isinstance(given, tuple) else (given,)
    promised_lengths = [promised(name, one) for one in sides]
    known = [most for most in promised_lengths if most is not None]
    return rounded(max(known)) if known and len(known) == len(promised_lengths) else None


def longest_on_host(given: object) -> int | None:
    """Return the longest document of cumulative lengths on the host, rounded up like a promise.

    None stands for ids of documents, or for lengths on a device.

    Args:
        given: documents, checked.
    """
    sides = given if isinstance(given, tuple) else (given,)
    longest = 0
    for one in sides:
        if not isinstance(one, CuSeqlens) or not _is_on_host(one.array):
            return None
        lengths = np.diff(to_host(one.array).astype(np.int64))
        longest = max(longest, int(lengths.max(initial=0)))
    return rounded(longest)


def _is_on_host(array: object) -> bool:
    known = isinstance(array, (np.ndarray, list, tuple))
    return known or getattr(getattr(array, "device", None), "type", "") == "cpu"


def rounded(most: int) -> int:
    """A promise, rounded up."""
    step = max(_LEAST, 1 << max(0, (most - 1).bit_length() - _STEPS.bit_length()))
    return max(1, -(-most // step)) * step


def promises(most: int) -> tuple[int, ...]:
    """All that promises may be once they are rounded up, to the first that is not below `most`."""
    lengths = [rounded(1)]
    while lengths[-1] < most:
        lengths.append(rounded(lengths[-1] + 1))
    return tuple(lengths)


def check_lengths_promised(name: str, given: CuSeqlens, sizes: np.ndarray) -> None:
    """Compare a promise with the lengths of documents, int64 [documents].

    Raises:
        DataRange: one is longer; and as `promised`.
    """
    most = promised(name, given)
    if most is not None and sizes.size and sizes.max() > most:
        at = int(sizes.argmax())
        finding = f"document {at} has {sizes[at]} tokens, and max_seqlen promises {most} at most"
        raise DataRange(name, finding, "give the longest length, or leave max_seqlen out", at=name)
