"""The lengths at which a mask shows everything in it, from its own constants.

A window of 4095 keys is plain causal attention below 4096 tokens: a check at shorter lengths
checks nothing. So the longest lengths lie past the largest window, block, residue, stride and
limit of the mask, by more than two tiles: then full, partial and empty tiles all occur.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from maskc.questions.lengths import constants, fixed_lengths

if TYPE_CHECKING:
    import numpy as np

    from maskc.dsl.mask import Mask

Shape = tuple[int, int]
"""(queries, keys)."""

SHORT: tuple[Shape, ...] = ((1, 1), (64, 64), (129, 129), (257, 257), (75, 203), (203, 75))
"""The lengths at which every mask is checked: one token, whole tiles, odd, rectangular."""

MARGIN = 257
"""Tokens past a constant: two tiles of 128, and one more."""
_PAIRS, _PAIRS_RANKED = 1 << 20, 1 << 17
"""Pairs of a long shape; where keys are ranked, whose oracle sorts every row."""
_LONGEST = 1 << 16
"""Tokens: more would not fit in seconds."""
_ADDED_RATIO = 4
"""A constant at least this many times smaller may be added to the largest."""
_FEWEST = 16
"""Queries of the longest shapes."""


@dataclass(frozen=True)
class Lengths:
    """The lengths at which a mask is checked."""

    shapes: tuple[Shape, ...]
    constants: tuple[int, ...]
    """Tokens at which something about the mask changes, ascending; those that are reached."""
    unreached: tuple[int, ...] = ()
    """The constants that would take too long to reach."""


def lengths_for(mask: Mask, n_heads: int | None, params: Mapping[str, int]) -> Lengths:
    """Return short lengths, and lengths past the largest constant: equal ones if they have few
    enough pairs, otherwise few queries on many keys and many queries on few keys.

    Args:
        mask: any mask.
        n_heads: query heads, where the mask differs between them.
        params: values of its parameters; the others have their defaults.
    """
    from maskc.driver import selects

    sizes = sorted(set(constants(mask, n_heads, params)))
    fixed = fixed_lengths(mask)
    if fixed:
        return Lengths(_fitting(fixed), tuple(sizes))
    reached = [number for number in sizes if number + number // _ADDED_RATIO + MARGIN <= _LONGEST]
    shapes = list(SHORT)
    longest = _past(reached)
    pairs = _PAIRS_RANKED if selects(mask) else _PAIRS
    if longest**2 <= pairs:
        shapes += [(longest, longest)] if longest > MARGIN + MARGIN // 2 else []
    else:
        few = max(_FEWEST, pairs // longest)
        shapes += [(few, longest), (longest, few)]
        within = [n for n in reached if (n + n // _ADDED_RATIO + MARGIN) ** 2 <= pairs]
        side = _past(within)
        shapes += [(side, side)] if side > MARGIN + MARGIN // 2 else []
    return Lengths(tuple(shapes), tuple(reached), tuple(sizes[len(reached) :]))


def _past(sizes: list[int]) -> int:
    """Return a number of tokens past the sum of the largest constant and another one.

    With sinks and a window, all keys are live until both are exceeded.
    """
    largest = max(sizes, default=0)
    second = max((number for number in sizes if number * _ADDED_RATIO <= largest), default=0)
    return largest + second + MARGIN


def _fitting(fixed: tuple[range, range]) -> tuple[Shape, ...]:
    """The least, the largest and the middle of the lengths that fit."""
    queries, keys = (
        sorted({side[0], side[len(side) // 2], side[-1]}) if side else [] for side in fixed
    )
    return tuple(dict.fromkeys(product(queries, keys)))


# ------------------------------------------------------------------ what is seen


_TILE = 64


@dataclass(frozen=True)
class Seen:
    """Properties of a mask at some lengths."""

    case: str
    looks: str
    """`full`, `causal`, `empty`, or `other`."""
    live_share: float
    """The share of live pairs among all pairs."""
    full: int
    """Tiles of 64 x 64 whose pairs are all kept; likewise some, and none."""
    partial: int
    empty: int


def seen(keep: np.ndarray, case: str) -> Seen:
    """Describe a mask.

    Args:
        keep: bool [..., n_q, n_kv].
        case: the lengths, as the report gives them.
    """
    import numpy as np

    n_q, n_kv = keep.shape[-2:]
    keep = keep.reshape(-1, n_q, n_kv)
    plain = {
        "full": True, "empty": False,
        "causal": np.arange(n_kv)[None, :] <= np.arange(n_q)[:, None] + n_kv - n_q,
    }  # fmt: skip
    looks = next((name for name, pairs in plain.items() if (keep == pairs).all()), "other")
    rows, columns = np.arange(0, n_q, _TILE), np.arange(0, n_kv, _TILE)
    live = np.add.reduceat(np.add.reduceat(keep, columns, 2, int), rows, 1)
    sizes = np.outer(np.diff([*rows, n_q]), np.diff([*columns, n_kv]))
    full, empty = int((live == sizes).sum()), int((live == 0).sum())
    return Seen(case, looks, float(keep.mean()), full, live.size - full - empty, empty)
