"""Masks that libraries without a language for masks know by name."""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core import expr as E
from maskc.dsl import nodes as N
from maskc.dsl.combinators import causal, full
from maskc.verify.case import Case


@dataclass(frozen=True)
class Form:
    """A mask that libraries know by name."""

    name: str
    """`full`, `causal`, `window`, or `other`."""
    left: int | None = None
    right: int | None = None
    """These are the reaches of a window; None is unbounded."""


def form_of(case: Case) -> Form:
    """How a library without a mask language could be asked for this mask."""
    mask, square = case.mask, case.n_q == case.n_kv
    if mask.equals(full()) is True:
        return Form("full")
    if square and mask.equals(causal()) is True:
        return Form("causal")
    if square and isinstance(mask, N.Window):
        sides = [side if side is None else E.as_const(side) for side in (mask.left, mask.right)]
        known = [
            s is None or c is not None for s, c in zip((mask.left, mask.right), sides, strict=True)
        ]
        if all(known):
            return Form("window", *sides)
    return Form("other")
