"""Joining attention over disjoint sets of keys by their log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from maskc.core.errors import BadOption, MixedLibraries, PiecesDiffer
from maskc.core.tensors import is_tokens_major, tokens_major
from maskc.runtime.arrays.known import cast_like, module_of, widened
from maskc.runtime.autograd import kind_of


def merge(
    outs: Sequence[Any], lses: Sequence[Any], *, layout: str | None = None
) -> tuple[Any, Any]:
    """The attention over the union of disjoint pieces, from the attention over each.

    Args:
        outs: one array per piece, as `mc.attention` returned it: [B, H, N, Dv], [B, N, H, Dv] with
            layout="bshd", or [tokens, H, Dv] of packed tokens. All are of one library: torch, CuPy
            or NumPy.
        lses: fp32 [B, H, N], or [H, tokens] of packed tokens, per piece, natural log, as
            `return_lse=True` gives them. Sink logits may be counted in one piece only.
        layout: "bhsd" or "bshd": whether heads or tokens come first in `outs`. None: shapes tell,
            and where there are as many tokens as heads, the strides of what attention returned.

    Returns:
        (out in the shape and dtype of the first piece, lse fp32). A row that is empty in every
        piece gives 0 and -inf.

    Raises:
        PiecesDiffer: no pieces, or shapes that differ (MC425).
        BadOption: pieces have different layouts (MC407).
        MixedLibraries: arrays of several libraries (MC411).
    """
    if not outs or len(outs) != len(lses):
        raise PiecesDiffer(
            "outs", f"({len(outs)} pieces)", f"{len(lses)} pieces, at least 1", at="outs"
        )
    _check_libraries(outs, lses)
    if not _tokens_first(outs, lses, layout):
        return _merged(outs, lses)
    out, lse = _merged([out.swapaxes(-2, -3) for out in outs], lses)
    return out.swapaxes(-2, -3), tokens_major(lse)


def _merged(outs: Sequence[Any], lses: Sequence[Any]) -> tuple[Any, Any]:
    """The union of pieces [.., N, Dv] with log-sum-exps [.., N]."""
    space = module_of(outs[0])
    with np.errstate(divide="ignore"):
        top = reduce(space.maximum, lses)
        base = space.where(top == -np.inf, space.zeros_like(top), top)
        weights = [space.exp(lse - base) for lse in lses]
        total = sum(weights[1:], weights[0])
        lse = space.log(total) + base
    divisor = space.where(total == 0, space.ones_like(total), total)
    terms = [
        widened(out) * (weight / divisor)[..., None]
        for out, weight in zip(outs, weights, strict=True)
    ]
    return cast_like(sum(terms[1:], terms[0]), outs[0]), lse


def _tokens_first(outs: Sequence[Any], lses: Sequence[Any], layout: str | None) -> bool:
    """Whether tokens come before heads in all `outs`.

    Raises:
        PiecesDiffer, BadOption.
    """
    if layout not in (None, "bhsd", "bshd"):
        raise BadOption("layout", "'bhsd' or 'bshd'", repr(layout), at="layout")
    shape = tuple(outs[0].shape)
    heads_first, tokens_first = shape[:-1], (*shape[:-3], *shape[-3:-1][::-1])
    wanted = {None: (heads_first, tokens_first), "bhsd": (heads_first,), "bshd": (tokens_first,)}
    for out, lse in zip(outs, lses, strict=True):
        if tuple(out.shape) != shape:
            raise PiecesDiffer("outs", tuple(out.shape), shape, at="outs")
        if tuple(lse.shape) not in wanted[layout]:
            shapes = " or ".join(map(str, dict.fromkeys(wanted[layout])))
            raise PiecesDiffer("lses", tuple(lse.shape), shapes, at="lses")
    if layout is not None:
        return layout == "bshd"
    if heads_first == tokens_first:
        orders = {len(shape) > 2 and is_tokens_major(lse) for lse in lses}
    else:
        orders = {tuple(lse.shape) == tokens_first for lse in lses}
    if len(orders) > 1:
        what = "given, or the same in all pieces"
        raise BadOption("layout", what, "strides of tokens first and of heads first", at="layout")
    return orders.pop()


def _check_libraries(outs: Sequence[Any], lses: Sequence[Any]) -> None:
    """Refuse arrays of several libraries, which would lose gradients or results on the way."""
    pieces = (("outs", outs), ("lses", lses))
    (first, given), *others = ((f"{n}[{i}]", x) for n, xs in pieces for i, x in enumerate(xs))
    for name, x in others:
        if module_of(x) is not module_of(given):
            raise MixedLibraries(first, kind_of(given), name, kind_of(x), at=name)
