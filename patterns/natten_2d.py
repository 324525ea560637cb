"""Neighborhood attention on an image.

Ali Hassani, Steven Walton, Jiachen Li, Shen Li, Humphrey Shi, "Neighborhood Attention Transformer",
2022, with the dilation and stride of its successors (see natten_1d.py).

Definition, on tokens in row-major order: the row of k is in the 1-D neighborhood of the row of q
among n // width rows, and the column likewise among `width` columns.
"""

from __future__ import annotations

from natten_1d import near

import maskc as mc


@mc.pattern
def natten_2d(
    *,
    width: int = 64,
    kernel: tuple[int, ...] = (7, 7),
    dilation: tuple[int, ...] = (1, 1),
    stride: tuple[int, ...] = (1, 1),
    causal: bool = False,
) -> mc.Mask:
    """A rectangle of kernel[0] rows and kernel[1] columns around the query."""

    def inside(q, k):
        rows = near(
            q // width, k // width, mc.n_kv // width, kernel[0], dilation[0], stride[0], causal
        )
        return rows & near(q % width, k % width, width, kernel[1], dilation[1], stride[1], causal)

    return mc.where(inside)


def main() -> None:
    from maskc.viz.terminal import draw

    print(draw(natten_2d(width=16, kernel=(5, 5)), 256))


if __name__ == "__main__":
    main()
