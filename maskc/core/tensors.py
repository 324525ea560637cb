"""Tensors as plain numbers: pointer, shape, strides, dtype and device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from maskc.core.errors import BadOption

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
    """The axes of [B, H, N, D] but the last, from the outermost in memory, as of the input that it
    goes with; see `order_of`."""
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
        if self.order == (0, 1, 2) or len(self.shape) != 4:
            return self.shape, ()
        shape = *(self.shape[axis] for axis in self.order), self.shape[3]
        return shape, (*(self.order.index(axis) for axis in range(3)), 3)

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
    """Return the strides of an array from `empty` for a shape [B, H, N, D]."""
    if order == (0, 1, 2):
        return contiguous(shape)
    *steps, last = contiguous((*(shape[axis] for axis in order), shape[3]))
    return *(steps[order.index(axis)] for axis in range(3)), last


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


LAYOUTS = ("bhsd", "bshd", "sbhd")
"""Orders of sequences, heads and tokens in the tensors of a call."""


def layout_among(layout: object, names: Iterable[str]) -> str | None:
    """The name with the order that `layout` means, or None. "s" and "n" both stand for tokens."""
    spelling = layout.replace("n", "s") if isinstance(layout, str) else None
    return next((name for name in names if name.replace("n", "s") == spelling), None)


def layout_of(layout: object) -> str:
    """Return the name of a layout in LAYOUTS: "bshd" for "bnhd", too.

    Raises:
        BadOption: `layout` is not a layout.
    """
    name = layout_among(layout, LAYOUTS)
    if name is None:
        raise BadOption("layout", "'bhsd', 'bshd' or 'sbhd'", repr(layout), at="layout")
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
