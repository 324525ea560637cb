"""Tensors as plain numbers: pointer, shape, strides, dtype and device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from maskc.core.errors import BadOption, MaskedValues, NotAnArray, WrongRank, with_article
from maskc.core.source import SourceLoc

Shape = tuple[int, ...]


Device = tuple[str, int]
"""("cpu", 0), or ("cuda", index)."""


HOST: Device = ("cpu", 0)

PAPER = 1 << 16
"""Index of the first recording device. It represents the device with this index minus PAPER.
Launches on it are recorded, see maskc/runtime/launch/recording.py."""


class Array(NamedTuple):
    """Properties of an array that a kernel needs."""

    pointer: int
    shape: Shape
    strides: Shape
    """The strides, in elements."""
    dtype: str
    """`float32`, `bfloat16`, ...; another byte order has another name."""
    device: Device


@dataclass(frozen=True, eq=False)
class Output:
    """Specification of one result to allocate."""

    shape: Shape
    order: Shape = (0, 1, 2)
    """The axes but the last, from the outermost in memory, as of the input that it goes with; see
    `order_of`."""
    like_q: bool = False
    """Whether it has q's shape, dtype and order."""
    dtype: str = ""
    """The dtype's name, where it is not q's."""
    strides: Shape = field(init=False)
    """The strides, in elements."""

    @property
    def in_memory(self) -> tuple[Shape, Shape]:
        """Return the shape of a C-contiguous array, and the permutation of its axes to the result;
        empty if none is needed."""
        rows = len(self.order)
        if self.order == tuple(range(rows)) or len(self.shape) != rows + 1:
            return self.shape, ()
        shape = *(self.shape[axis] for axis in self.order), self.shape[rows]
        return shape, (*(self.order.index(axis) for axis in range(rows)), rows)

    def __post_init__(self) -> None:
        object.__setattr__(self, "strides", out_strides(self.shape, self.order))


def singles(*shape: int) -> Output:
    """fp32 numbers."""
    return Output(shape, dtype="float32")


def contiguous(shape: Shape) -> Shape:
    """Strides, in elements, of a C-contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=1 << 12)
def out_strides(shape: Shape, order: Shape) -> Shape:
    """Return the strides of an array from `empty`, whose axes but the last are in this order."""
    rows = len(order)
    if order == tuple(range(rows)):
        return contiguous(shape)
    *steps, last = contiguous((*(shape[axis] for axis in order), shape[rows]))
    return *(steps[order.index(axis)] for axis in range(rows)), last


def order_of(shape: Shape, strides: Shape) -> Shape:
    """Return the axes of an array [B, H, N, D] without the last, from the outermost in memory.

    Axes that memory does not order (one sequence, or an expanded axis) keep this order. Sizes are
    read only if strides are not in this order, because compilers would turn them into guards of the
    graph.
    """
    b, h, n = strides[:3]
    if b >= h >= n:
        return 0, 1, 2

    def inside(first: int, other: int) -> bool:
        return 0 < strides[first] < strides[other] and shape[first] > 1 and shape[other] > 1

    order = [0]
    for axis in (1, 2):
        place = next((i for i, other in enumerate(order) if inside(other, axis)), len(order))
        order.insert(place, axis)
    return tuple(order)


# ------------------------------------------------------------------ what is no plain array


def refuse_masked(x: object, name: str, at: SourceLoc | str | None = None) -> None:
    """Raise an error for a masked array of NumPy; without masked entries it is a plain array.

    Args:
        x: any object.
        name: what it is in the message.
        at: the place; None: the argument of that name.
    """
    if isinstance(x, np.ma.MaskedArray) and (masked := int(np.ma.getmaskarray(x).sum())):
        raise MaskedValues(name, masked, at=name if at is None else at)


def not_an_array(name: str, x: Any, at: SourceLoc | str | None = None) -> NotAnArray:
    """Return the error for an object that is not an array, with a hint for its kind."""
    kind, at = type(x).__name__, name if at is None else at
    if getattr(x, "layout", None) is not None and "strided" not in str(x.layout):
        hint = "call .to_dense() for an array of all its elements"
        return NotAnArray(name, f"{kind} of layout {x.layout}", hint, at=at)
    if hasattr(x, "toarray"):  # SciPy
        return NotAnArray(name, kind, "call .toarray() for an array of all its elements", at=at)
    if hasattr(x, "to_numpy"):  # pandas, polars
        elements = getattr(x, "dtype", None)
        kind += "" if elements is None else f" of {elements}"
        hint = "call .to_numpy() for an array, and convert text and missing values before"
        return NotAnArray(name, kind, hint, at=at)
    if isinstance(x, (list, tuple)):
        hint = "rows of a list need one length, and its entries must be numbers"
        return NotAnArray(name, f"{kind} that is ragged or holds more than numbers", hint, at=at)
    return NotAnArray(name, kind, at=at)


# ------------------------------------------------------------------ orders of axes

LAYOUTS = ("bhsd", "bshd", "sbhd")
"""Orders of sequences, heads and tokens in the tensors of a call."""


class Order(NamedTuple):
    """Order of the axes of a caller's q, k, v and out, which kernels take as [B, H, N, D]."""

    layout: str
    """One of LAYOUTS."""
    axes: Shape
    """Kernels' axes of the caller's, in turn. Packed tokens, [N, H, D], lack the axis of
    sequences."""

    @property
    def is_packed(self) -> bool:
        """Whether tensors have no axis of sequences."""
        return len(self.axes) == 3

    @property
    def sequences(self) -> int:
        """The caller's axis of sequences; that of queries if there is none."""
        return 0 if self.is_packed else self.axes.index(0)

    def fits(self, x: Any) -> bool:
        """Whether an array has views, and as many axes."""
        return hasattr(x, "swapaxes") and len(x.shape) == len(self.axes)

    def shape(self, shape: Shape) -> Shape:
        """The shape [B, H, N, D] of a caller's array."""
        if len(shape) == 3:
            return 1, shape[1], shape[0], shape[2]
        first, second, third, _ = _TO_KERNELS[self.layout]
        return shape[first], shape[second], shape[third], shape[3]

    def array(self, x: Array) -> Array:
        """A caller's array as [B, H, N, D]; unchanged if it does not fit."""
        if len(x.shape) != len(self.axes):
            return x
        shape, strides = x.shape, x.strides
        if self.is_packed:
            shape, strides = (1, *shape), (shape[0] * strides[0], *strides)
        axes = _TO_KERNELS[self.layout]
        return x._replace(
            shape=tuple(shape[axis] for axis in axes), strides=tuple(strides[axis] for axis in axes)
        )

    def output(self, x: Output) -> Output:
        """A result [B, H, N, D] as it is allocated for the caller, in the same place."""
        order = tuple(self.axes.index(axis) for axis in x.order if axis in self.axes)
        return Output(tuple(x.shape[axis] for axis in self.axes), order, x.like_q, x.dtype)

    def view(self, x: Any, name: str) -> Any:
        """A view [B, H, N, D] of an array that may lack sequences; `name` is for errors.

        Raises:
            BadOption: the object has no views.
            WrongRank: it has neither three nor four axes.
        """
        if not hasattr(x, "swapaxes"):
            finding = f"{name}, {with_article(type(x).__name__)}"
            raise BadOption("layout", "'bhsd' for arrays without swapaxes", finding, at="layout")
        if len(x.shape) not in (3, 4):
            raise WrongRank(name, tuple(x.shape), at=name)
        return self.heads_first(x)

    def heads_first(self, x: Any) -> Any:
        """A view [B, H, N, D] of a caller's array."""
        if len(x.shape) == 3:
            return x[None].swapaxes(1, 2)
        return (x.swapaxes(0, 1) if self.layout == "sbhd" else x).swapaxes(1, 2)

    def restored(self, x: Any) -> Any:
        """A view, in this order, of an array [B, H, N, D]."""
        if self.is_packed:
            return x[0].swapaxes(0, 1)
        x = x.swapaxes(1, 2)
        return x.swapaxes(0, 1) if self.layout == "sbhd" else x

    def with_out(self, results: Any) -> Any:
        """Results, out or a tuple, with out in this order."""
        if isinstance(results, tuple):
            return self.restored(results[0]), *results[1:]
        return self.restored(results)

    def with_lse(self, results: Any) -> Any:
        """Results, out or (out, lse), with log-sum-exps as they go with out in this order: they
        keep heads before tokens."""
        if not isinstance(results, tuple):
            return results
        out, lse = results
        return out, in_memory_order(out, lse[0] if self.is_packed else lse, self.layout)


_TO_KERNELS = {"bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3)}
"""The caller's axis for each axis of kernels."""
ORDERS = {
    "bshd": Order("bshd", (0, 2, 1, 3)),
    "sbhd": Order("sbhd", (2, 0, 1, 3)),
    "packed": Order("bshd", (2, 1, 3)),
}
"""Orders other than that of kernels."""


def layout_among(layout: object, names: Iterable[str]) -> str | None:
    """The name with the order that `layout` means, or None. "s" and "n" both stand for tokens."""
    spelling = layout.replace("n", "s") if isinstance(layout, str) else None
    return next((name for name in names if name.replace("n", "s") == spelling), None)


def layout_of(layout: object) -> str:
    """Return the name of a layout in LAYOUTS: "bshd" for "bnhd", too.

    Raises:
        BadOption: `layout` is not a layout.
    """
    if type(layout) is str and layout in LAYOUTS:
        return layout
    name = layout_among(layout, LAYOUTS)
    if name is None:
        hint = "b stands for sequences, h for heads, s or n for tokens, d for elements"
        if layout == "thd":
            hint = "packed tokens [tokens, heads, D] need no layout, but cu_seqlens_q="
        raise BadOption("layout", "'bhsd', 'bshd' or 'sbhd'", repr(layout), hint, at="layout")
    return name


def axes_of(layout: str, rank: int) -> Shape:
    """For each axis of `out` but the last, the axis of log-sum-exps [B, H, N] or [H, N]."""
    axes = tuple(range(rank))
    if rank < 2 or layout == "bhsd":
        return axes
    return (*axes[:-2], rank - 1, rank - 2) if layout == "bshd" else (rank - 1, *axes[:-1])


def lse_shape(out: Shape, layout: str) -> Shape:
    """The shape of the log-sum-exps of a call with this layout, from the shape of its `out`."""
    axes = axes_of(layout, len(out) - 1)
    return tuple(out[axes.index(axis)] for axis in range(len(axes)))


def layouts_of(out: Shape, lse: Shape) -> tuple[str, ...]:
    """The layouts that results of these shapes may have; packed tokens have no sequences."""
    known = LAYOUTS if len(lse) == 3 else LAYOUTS[:2]
    return tuple(layout for layout in known if lse_shape(out, layout) == tuple(lse))


def in_memory_order(out: Any, lse: Any, layout: str) -> Any:
    """Return the log-sum-exps in the axis order of a layout.

    Where shapes do not tell how they go with `out`, as with as many tokens as heads, memory does
    then: it has sequences, heads and tokens in the order of `out`.
    """
    if len(layouts_of(out.shape, lse.shape)) < 2 or is_in_memory_order(lse, layout):
        return lse
    axes = axes_of(layout, len(lse.shape))
    turned = lse.permute(axes) if hasattr(lse, "permute") else lse.transpose(axes)
    copy = turned.contiguous() if hasattr(turned, "contiguous") else turned.copy()
    back = tuple(axes.index(axis) for axis in range(len(axes)))
    return copy.permute(back) if hasattr(copy, "permute") else copy.transpose(back)


def is_in_memory_order(lse: Any, layout: str) -> bool:
    """Whether memory holds log-sum-exps in the order of this layout, see `in_memory_order`."""
    strides = lse.stride() if hasattr(lse, "stride") else lse.strides
    axes = axes_of(layout, len(lse.shape))
    ordered = [strides[axis] for axis in axes if lse.shape[axis] > 1]
    return all(outer > inner for outer, inner in pairwise(ordered))


def torch_of(x: Any) -> Any:
    """Return PyTorch if x may be one of its tensors, otherwise None.

    Compilers trace this function. They accept an import, but would wrap every loaded module if it
    read `sys.modules`.
    """
    if not hasattr(x, "requires_grad"):
        return None
    try:
        import torch
    except ImportError:
        return None
    return torch
