"""Default lengths for drawing a mask: long enough to show its shape."""

from __future__ import annotations

from collections.abc import Mapping

from maskc.driver import selects
from maskc.dsl.mask import Mask
from maskc.questions.lengths import constants, fixed_lengths

_FEWEST, _MAX = 256, 1 << 17
"""Elements are drawn up to the first; at the second a picture has 1024 tiles of 128 a side."""
_TIMES = 4
"""A mask has its shape at this many times its largest constant."""
_PLAIN = 4096
"""Tokens of a mask whose constants say nothing; scores of selections are made up to this."""
_TILED = 2048
"""Tokens where tiles are drawn: 16 of the largest a side or more."""


def showing(
    mask: Mask, n_heads: int | None = None, params: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """Queries and keys: a power of two, at least four times the mask's largest constant.

    A window of 1024 keys is a plain triangle at 512 tokens and a hairline at a million. If
    elements do not fit, 16 tiles of a kernel do. A mask that selects keys is drawn with made-up
    scores: at 4096 tokens where that is half more than its largest constant.

    Args:
        mask: any mask.
        n_heads: query heads, where the mask differs between them.
        params: values of its parameters; the others have their defaults.
    """
    if (fixed := fixed_lengths(mask)) and all(fixed):
        return fixed[0][-1], fixed[1][-1]
    sizes = [number for number in constants(mask, n_heads, params or {}) if number > 1]
    if not sizes:
        return _PLAIN, _PLAIN
    side = 1 << (_TIMES * max(sizes) - 1).bit_length()
    side = min(max(side, _FEWEST), _MAX)
    if side > _FEWEST:
        side = max(side, _TILED)
    if side > _PLAIN and 3 * max(sizes) <= 2 * _PLAIN and selects(mask):
        side = _PLAIN
    return side, side
