"""Masks at a given number of live pairs: one parameter of each is solved for a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from maskc.core.errors import BudgetUnreachable
from maskc.dsl.combinators import (
    causal,
    chunked,
    dilated,
    global_tokens,
    offsets,
    random_blocks,
    sinks,
    strided,
    topk,
    window,
)
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import TopK
from maskc.ir.names import declared_names

Family = Callable[[int], Mask]
"""From a whole number to a mask with about as many pairs or more where the number is greater."""

_SINKS, _GLOBALS, _STRIDE, _BLOCK = 4, 16, 32, 16
_POWERS = tuple(1 << i for i in range(24))


def _exponential(width: int) -> Mask:
    mask = window(width)
    for stride in (2, 4, 8):
        mask |= dilated(width, stride=stride)
    return causal() & mask


FAMILIES: dict[str, Family] = {
    "window": lambda w: causal() & window(w),
    "streaming": lambda w: causal() & (sinks(_SINKS) | window(w)),
    "chunked": lambda size: chunked(size + 1),
    "strided": lambda w: causal() & (window(w) | strided(_STRIDE, _STRIDE - 1)),
    "fixed": lambda size: causal() & (chunked(size + 1) | strided(_STRIDE, _STRIDE - 1)),
    "longformer": lambda w: causal() & (window(w) | global_tokens(_GLOBALS)),
    "bigbird": lambda w: causal() & (window(w) | sinks(_BLOCK) | random_blocks(_BLOCK, 1, seed=0)),
    "exponential": _exponential,
    "logsparse": lambda w: causal() & (window(w) | offsets(_POWERS)),
    "dilated": lambda w: causal() & dilated(w, stride=4),
    "random": lambda count: causal() & random_blocks(_BLOCK, count, seed=0),
    "block_topk": lambda k: topk(k, of=causal(), score="block_mean", block=_BLOCK, q_block=_BLOCK),
    "topk": lambda k: topk(k, of=causal()),
}
"""Causal families for comparison: `streaming` has 4 sinks, `longformer` 16 global tokens, `strided`
and `fixed` every 32nd key, `bigbird` 16 sinks and a random block of 16 keys a block of queries.
`dilated` sees every 4th key and none of the 3 before it. `random` is a floor. `topk` chooses by the
very scores it then attends to: it is a ceiling, and saves no time by itself."""

ROLES = {"random": "control", "dilated": "control", "topk": "ceiling"}
"""Roles of families other than "pattern"."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The member of a family of masks that meets a budget of pairs."""

    value: int
    mask: Mask
    pairs: int


_REACHED = 0.9
"""Share of a budget that the largest member of a family must reach; otherwise an error is
raised."""


def at_budget(
    family: Family, budget: float, n: int, *, base: Mask | None = None, n_heads: int | None = None,
    low: int = 0, high: int | None = None, name: str = "value",
) -> Solved:  # fmt: skip
    """Find the largest member of a family with at most a fraction of the base mask's pairs.

    Args:
        family: a function from an integer to a mask. The number of pairs must not decrease as the
            integer grows, except by rounding.
        budget: share of the pairs of `base` at length n, above 0 and up to 1.
        n: tokens.
        base: the mask of dense attention; causal() when None.
        n_heads: query heads; needed if masks differ by head.
        low, high: smallest and largest integer to try; 0 and n by default.
        name: name of the integer in error messages.

    Returns:
        The value, its mask, and the number of pairs of the mask.

    Raises:
        BudgetUnreachable: the smallest member exceeds the budget, or the largest is far below it
            (MC732).
        MaskcError: as `Mask.count`.
    """
    base = causal() if base is None else base
    wanted = int(budget * pairs_of(base, n, base, n_heads))
    high = n if high is None else high

    def solved(value: int) -> Solved:
        mask = family(value)
        return Solved(value, mask, pairs_of(mask, n, base, n_heads))

    best, greatest = solved(low), solved(high)
    if best.pairs > wanted or greatest.pairs < _REACHED * wanted:
        ends = best.pairs, greatest.pairs
        raise BudgetUnreachable(name, low, high, wanted, *ends, at=name)
    first, last = low, high
    while first < last:
        middle = (first + last + 1) // 2
        member = solved(middle)
        if member.pairs <= wanted:
            first, best = middle, member
        else:
            last = middle - 1
    return best


def pairs_of(
    mask: Mask, n: int, base: Mask, n_heads: int | None = None,
    data: Mapping[str, object] | None = None, batch: int = 0,
) -> int:  # fmt: skip
    """Live pairs of mask & base for one head, the mean where heads differ, rounded down.

    A run-time selection counts as many as it keeps at most: k keys or blocks of keys for a query.

    Args:
        mask, base: with the same data.
        n: tokens.
        n_heads: query heads; needed if masks differ by head.
        data: what the masks read; names that a mask does not read are ignored.
        batch: the sequence, of data with several.
    """
    both = mask if mask == base else mask & base
    data_of: dict[str, Any] = (
        {name: data[name] for name in declared_names(both) & data.keys()} if data else {}
    )
    if isinstance(mask, TopK):
        allowed = (
            _row_counts(mask.of, base, n) if not data_of else _counts(mask.of & base, n, data_of)
        )
        rows = allowed.reshape(-1, n)[batch if allowed.size > n else 0]
        return int(np.minimum(rows, mask.k * mask.block).sum())
    if data_of:
        count = both.count(n, n_heads=n_heads, batch=batch, **data_of)
    else:
        count = both.count(n, n_heads=n_heads)
    if n_heads and n_heads > 1:
        from maskc.ir.lower import differs_by_head

        return count // n_heads if differs_by_head(both) else count
    return count


@cache
def _row_counts(mask: Mask, base: Mask, n: int) -> np.ndarray:
    return _counts(mask if mask == base else mask & base, n, {})


def _counts(mask: Mask, n: int, data: Mapping[str, Any]) -> np.ndarray:
    """Keys of each row, [n] or [B, n]."""
    counts: np.ndarray = mask.dense(n, **data).sum(axis=-1)
    return counts
