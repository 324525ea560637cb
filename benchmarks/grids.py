"""Neighbourhoods on images and videos (NATTEN), at the sizes at which their authors time them.

Ali Hassani et al., "Generalized Neighborhood Attention", 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from benchmarks.anchors import Anchor
from maskc.dsl.mask import Mask
from maskc.dsl.tracer import where
from maskc.verify.case import Formula, MaskMod

Sides = tuple[int, ...]
"""One number for each axis, outermost first."""


def neighbourhood(grid: Sides, window: Sides, stride: Sides) -> Mask:
    """Windows of even sides, shared by groups of `stride` queries, moved inwards at the border."""

    def inside(q: Any, k: Any) -> Any:
        live, step = q >= 0, prod(grid)
        for extent, size, shared in zip(grid, window, stride, strict=True):
            outermost = step == prod(grid)
            step //= extent
            x, y = (t // step if outermost else t // step % extent for t in (q, k))
            leader = min(x // shared * shared + shared // 2, extent - 1)
            centre = max(min(leader, extent - size // 2), size // 2)
            live = live & (centre - size // 2 <= y) & (y < centre + size // 2)
        return live

    return where(inside)


def by_hand(grid: Sides, window: Sides, stride: Sides) -> Formula:
    """The neighbourhood from the first key of each window, on tensors."""

    def formula(data: Mapping[str, Any]) -> MaskMod:
        def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
            live = (q >= 0) & (k >= 0)
            for extent, size, step in reversed(list(zip(grid, window, stride, strict=True))):
                x, y = q % extent, k % extent
                first = (x - x % step + step // 2).clamp(max=extent - 1) - size // 2
                first = first.clamp(0, extent - size)
                live = live & (y >= first) & (y < first + size)
                q, k = q // extent, k // extent
            return live

        return keep

    return formula


def _anchor(name: str, grid: Sides, window: Sides, stride: Sides) -> Anchor:
    mask: Callable[[], Mask] = lambda: neighbourhood(grid, window, stride)  # noqa: E731
    return Anchor(name, mask, 1, 24, prod(grid), 128, dict, by_hand(grid, window, stride))


IMAGE, VIDEO = ((256, 256), (80, 80)), ((30, 48, 80), (18, 24, 24))
"""The grid and the window."""

GRIDS = (
    _anchor("natten2d_80", *IMAGE, (1, 1)),
    _anchor("natten2d_80_s16", *IMAGE, (16, 16)),
    _anchor("natten3d", *VIDEO, (1, 1, 1)),
    _anchor("natten3d_s16_8_8", *VIDEO, (16, 8, 8)),
)
"""Each window alone, and shared by groups of queries."""
