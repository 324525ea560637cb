"""The lengths at which a mask is drawn where nobody says which: those at which it has its shape."""

from __future__ import annotations

from collections.abc import Mapping

from maskc.dsl.mask import Mask
from maskc.questions.lengths import constants, fixed_lengths

_FEWEST, _MOST = 256, 1 << 20
"""Elements are drawn up to the first; nothing of the size of the second squared is made."""
_TIMES = 4
"""A mask has its shape at this many times its largest constant."""
_PLAIN = 4096
"""Tokens of a mask whose constants say nothing."""


def showing(
    mask: Mask, n_heads: int | None = None, params: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """Queries and keys: a power of two, at least four times the mask's largest constant.

    A window of 1024 keys is a plain triangle at 512 tokens and a hairline at a million.

    Args:
        mask: any mask.
        n_heads: query heads, where the mask differs between them.
        params: values of its parameters; the others have their defaults.
    """
    if (fixed := fixed_lengths(mask)) and all(fixed):
        return fixed[0][-1], fixed[1][-1]
    found = [number for number in constants(mask, n_heads, params or {}) if number > 1]
    if not found:
        return _PLAIN, _PLAIN
    side = 1 << (_TIMES * max(found) - 1).bit_length()
    side = min(max(side, _FEWEST), _MOST)
    return side, side
