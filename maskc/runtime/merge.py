"""Joining attention over disjoint sets of keys by their log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from maskc.core.errors import BadShape, MixedLibraries
from maskc.runtime.arrays.known import cast_like, module_of, to_fp32
from maskc.runtime.autograd import kind_of


def merge(outs: Sequence[Any], lses: Sequence[Any]) -> tuple[Any, Any]:
    """The attention over the union of disjoint pieces, from the attention over each.

    Args:
        outs: one array [B, H, N, Dv] per piece, all of one library: torch, CuPy or NumPy.
        lses: fp32 [B, H, N] per piece, natural log, as `return_lse=True` gives them. Sink logits
            may be counted in one piece only.

    Returns:
        (out [B, H, N, Dv] in the dtype of the first piece, lse fp32 [B, H, N]). A row that is
        empty in every piece gives 0 and -inf.

    Raises:
        BadShape: no pieces, or shapes that differ.
        MixedLibraries: arrays of several libraries.
    """
    if not outs or len(outs) != len(lses):
        raise BadShape(
            "outs", f"({len(outs)} pieces)", f"{len(lses)} pieces, at least 1", at="outs"
        )
    _check_libraries(outs, lses)
    for out, lse in zip(outs, lses, strict=True):
        if tuple(out.shape) != tuple(outs[0].shape):
            raise BadShape("outs", tuple(out.shape), tuple(outs[0].shape), at="outs")
        if tuple(lse.shape) != tuple(out.shape[:-1]):
            raise BadShape("lses", tuple(lse.shape), tuple(out.shape[:-1]), at="lses")
    space = module_of(outs[0])
    with np.errstate(divide="ignore"):
        top = reduce(space.maximum, lses)
        base = space.where(top == -np.inf, space.zeros_like(top), top)
        weights = [space.exp(lse - base) for lse in lses]
        total = sum(weights[1:], weights[0])
        lse = space.log(total) + base
    divisor = space.where(total == 0, space.ones_like(total), total)
    terms = [
        to_fp32(out) * (weight / divisor)[..., None]
        for out, weight in zip(outs, weights, strict=True)
    ]
    return cast_like(sum(terms[1:], terms[0]), outs[0]), lse


def _check_libraries(outs: Sequence[Any], lses: Sequence[Any]) -> None:
    """Refuse arrays of several libraries, which would lose gradients or results on the way."""
    pieces = (("outs", outs), ("lses", lses))
    (first, given), *others = ((f"{n}[{i}]", x) for n, xs in pieces for i, x in enumerate(xs))
    for name, x in others:
        if module_of(x) is not module_of(given):
            raise MixedLibraries(first, kind_of(given), name, kind_of(x), at=name)
