"""Neighborhood attention on an image.

Ali Hassani, Steven Walton, Jiachen Li, Shen Li, Humphrey Shi, "Neighborhood Attention Transformer",
2022, with the dilation and stride of its successors (see natten_1d.py).
https://arxiv.org/abs/2204.07143

Definition, on tokens in row-major order: the row of k is in the 1-D neighborhood of the row of q
among n // width rows, and the column likewise among `width` columns. Each of `kernel`, `dilation`,
`stride` and `causal` is one value for both axes, or (rows, columns).
"""

from __future__ import annotations

from natten_1d import near, per_axis

import maskc as mc


@mc.pattern
def natten_2d(
    *,
    width: int = 64,
    kernel: int | tuple[int, ...] = (7, 7),
    dilation: int | tuple[int, ...] = (1, 1),
    stride: int | tuple[int, ...] = (1, 1),
    causal: bool | tuple[bool, ...] = False,
) -> mc.Mask:
    """A rectangle of kernel[0] rows and kernel[1] columns around the query."""
    rows, columns = per_axis(2, kernel=kernel, dilation=dilation, stride=stride, causal=causal)

    def inside(q, k):
        among_rows = near(q // width, k // width, mc.n_kv // width, **rows)
        return among_rows & near(q % width, k % width, width, **columns)

    return mc.where(inside)


def main() -> None:
    natten_2d(width=16, kernel=(5, 5)).show(256)


if __name__ == "__main__":
    main()
