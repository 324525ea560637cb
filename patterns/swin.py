"""Shifted windows on an image.

Ze Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", 2021.
https://arxiv.org/abs/2103.14030

Definition, on tokens in row-major order, with row = t // width and col = t mod width:
(row + window - shift) // window and (col + window - shift) // window are equal for q and k. Windows
that the border cuts stay small. The paper's cyclic shift packs several of them into one window and
masks them from each other, which keeps the same pairs.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def swin(*, width: int = 64, window: int = 8, shift: int = 4) -> mc.Mask:
    """Windows of window x window tokens, moved by `shift` (0: not moved)."""

    def same(q, k):
        return (q + window - shift) // window == (k + window - shift) // window

    return mc.where(lambda q, k: same(q // width, k // width) & same(q % width, k % width))


def main() -> None:
    swin(width=16, window=4, shift=2).show(256)


if __name__ == "__main__":
    main()
