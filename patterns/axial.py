"""Axial attention on an image.

Jonathan Ho, Nal Kalchbrenner, Dirk Weissenborn, Tim Salimans, "Axial Attention in Multidimensional
Transformers", 2019: the union of its row and column layers.
https://arxiv.org/abs/1912.12180

Definition, on tokens in row-major order: p // width == k // width or p mod width == k mod width.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def axial(*, width: int = 64) -> mc.Mask:
    """The query's row and its column."""
    return mc.block_diagonal(width) | mc.dilated(mc.n_kv, mc.n_q, stride=width)


def main() -> None:
    axial(width=16).show(256)


if __name__ == "__main__":
    main()
