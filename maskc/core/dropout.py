"""Dropout arguments of calls, as kernels take them."""

from __future__ import annotations

from numbers import Real
from typing import Any

from maskc.core.errors import DropoutRate

PARTS = 1 << 16
"""A rate is a whole number of these parts."""
RATE, SEED, FIRST = "dropout_rate", "dropout_key", "dropout_first"
"""Keywords of kernels with dropout: the rate in units of 1 / PARTS, the seed, and the first tokens.

The seed is an integer, or an array that holds one. For a part of a longer sequence, the last
keyword has the tokens before its first query and its first key, divided by 16.
"""
SQUARE = 16
"""Tokens of the squares in which pairs are drawn."""


def check_rate(p: Any, name: str) -> None:
    """Check a dropout rate.

    Raises:
        DropoutRate: p is not a number in 0 .. 1 (MC430).
    """
    if not isinstance(p, Real) or isinstance(p, bool) or not 0 <= float(p) <= 1:
        raise DropoutRate(name, repr(p), at=name)
