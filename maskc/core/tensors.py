"""Tensors as plain numbers: pointer, shape, strides, dtype and device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

Shape = tuple[int, ...]


Device = tuple[str, int]
"""("cpu", 0), or ("cuda", index)."""


HOST: Device = ("cpu", 0)


class Array(NamedTuple):
    """What a kernel needs to know of an array."""

    pointer: int
    shape: Shape
    strides: Shape
    """The strides, in elements."""
    dtype: str
    """`float32`, `bfloat16`, ...; another byte order has another name."""
    device: Device


@dataclass(frozen=True, eq=False)
class Output:
    """How to allocate one result."""

    shape: Shape
    tokens_first: bool = False
    """[B, H, N, D] is stored as [B, N, H, D], like the input it goes with."""
    like_q: bool = False
    """Whether it has q's shape, dtype and order."""
    dtype: str = ""
    """The dtype's name, where it is not q's."""
    strides: Shape = field(init=False)
    """The strides, in elements."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strides", out_strides(self.shape, self.tokens_first))


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
def out_strides(shape: Shape, tokens_first: bool) -> Shape:
    """Strides of what `empty` gives for a shape [B, H, N, D]."""
    if not tokens_first:
        return contiguous(shape)
    b, n, h, d = contiguous((shape[0], shape[2], shape[1], shape[3]))
    return b, h, n, d


def tokens_major(lse: Any) -> Any:
    """The log-sum-exps [.., H, N] of a call whose tensors have tokens first.

    Where there are as many tokens as heads, no shape tells how they go with `out`: memory does
    then, in which tokens come before heads.
    """
    if lse.shape[-1] != lse.shape[-2] or lse.shape[-1] < 2:
        return lse
    turned = lse.swapaxes(-1, -2)
    copy = turned.contiguous() if hasattr(turned, "contiguous") else turned.copy()
    return copy.swapaxes(-1, -2)


def is_tokens_major(lse: Any) -> bool:
    """Whether memory holds tokens before heads, see `tokens_major`."""
    strides = lse.stride() if hasattr(lse, "stride") else lse.strides
    return bool(strides[-2] < strides[-1])


def torch_of(x: Any) -> Any:
    """PyTorch where x, an array of any shape and library, may be one of its tensors, else None.

    Compilers trace this: they take an import as it is, and would wrap every loaded module where
    `sys.modules` is read.
    """
    if not hasattr(x, "requires_grad"):
        return None
    try:
        import torch
    except ImportError:
        return None
    return torch
