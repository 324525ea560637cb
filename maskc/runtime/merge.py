"""Merge attention over disjoint sets of keys by their log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from maskc.core.errors import BadOption, MixedLibraries, PiecesDiffer
from maskc.core.tensors import (
    LAYOUTS,
    axes_of,
    in_memory_order,
    is_in_memory_order,
    layout_of,
    layouts_of,
    lse_shape,
    not_an_array,
)
from maskc.runtime.arrays.known import cast_like, module_of, widened
from maskc.runtime.autograd import kind_of


def merge(
    outs: Sequence[Any], lses: Sequence[Any], *, layout: str | None = None
) -> tuple[Any, Any]:
    """Merge the results of attention over disjoint pieces into attention over their union.

    Args:
        outs: one array per piece, as `mc.attention` returned it: [B, H, N, Dv], [B, N, H, Dv] with
            layout="bshd", [N, B, H, Dv] with layout="sbhd", or [tokens, H, Dv] of packed tokens.
            All are of one library: torch, CuPy or NumPy.
        lses: fp32 [B, H, N], or [H, tokens] of packed tokens, per piece, natural log, as
            `return_lse=True` gives them. Sink logits may be counted in one piece only.
        layout: layout of `outs`: "bhsd", "bshd" or "sbhd". None: derived from shapes, or from
            strides if there are as many tokens as heads or sequences.

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
    layout = _layout(outs, lses, layout)
    if layout == "bhsd":
        return _merged(outs, lses)
    move, axes = module_of(outs[0]).moveaxis, axes_of(layout, len(lses[0].shape))
    heads_first = tuple(range(len(axes)))
    out, lse = _merged([move(out, heads_first, axes) for out in outs], lses)
    out = move(out, axes, heads_first)
    return out, in_memory_order(out, lse, layout)


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


def _layout(outs: Sequence[Any], lses: Sequence[Any], layout: str | None) -> str:
    """The layout of all `outs`, see `merge`."""
    if layout is not None:
        layout = layout_of(layout)
    shape = tuple(outs[0].shape)
    wanted = dict.fromkeys(lse_shape(shape, name) for name in ([layout] if layout else LAYOUTS))
    layouts: set[str | None] = set()
    for out, lse in zip(outs, lses, strict=True):
        if tuple(out.shape) != shape:
            raise PiecesDiffer("outs", tuple(out.shape), shape, at="outs")
        if tuple(lse.shape) not in wanted:
            shapes = " or ".join(map(str, wanted))
            raise PiecesDiffer("lses", tuple(lse.shape), shapes, at="lses")
        layouts.add(layout or _by_memory(lse, layouts_of(shape, lse.shape)))
    name = layouts.pop()
    if layouts or name is None:
        what = "given, or the same in all pieces"
        kinds = "strides that do not tell whether tokens, heads or sequences come first"
        raise BadOption("layout", what, kinds, at="layout")
    return name


def _by_memory(lse: Any, fitting: Sequence[str]) -> str | None:
    """One of the layouts that fit; None if memory does not tell either."""
    if len(fitting) == 1:
        return fitting[0]
    return next((layout for layout in fitting if is_in_memory_order(lse, layout)), None)


def _check_libraries(outs: Sequence[Any], lses: Sequence[Any]) -> None:
    """Raise an error for arrays of several libraries: gradients or results would be lost."""
    pieces = (("outs", outs), ("lses", lses))
    (first, given), *others = ((f"{n}[{i}]", x) for n, xs in pieces for i, x in enumerate(xs))
    if not hasattr(given, "shape"):
        raise not_an_array(first, given, at=first)
    for name, x in others:
        if module_of(x) is not module_of(given):
            raise MixedLibraries(first, kind_of(given), name, kind_of(x), at=name)
