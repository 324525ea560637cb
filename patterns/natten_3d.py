"""Neighborhood attention on a video.

Ali Hassani, Steven Walton, Jiachen Li, Shen Li, Humphrey Shi, "Neighborhood Attention Transformer",
2022, with the dilation and stride of its successors (see natten_1d.py).
https://arxiv.org/abs/2204.07143

Definition, on tokens ordered by frame, then row, then column: each of the three coordinates of k is
in the 1-D neighborhood of that of q, among n // (height * width) frames, `height` rows and `width`
columns. Each of `kernel`, `dilation`, `stride` and `causal` is one value for all axes, or
(frames, rows, columns).
"""

from __future__ import annotations

from natten_1d import near, per_axis

import maskc as mc


@mc.pattern
def natten_3d(
    *,
    height: int = 16,
    width: int = 16,
    kernel: int | tuple[int, ...] = (5, 5, 5),
    dilation: int | tuple[int, ...] = (1, 1, 1),
    stride: int | tuple[int, ...] = (1, 1, 1),
    causal: bool | tuple[bool, ...] = False,
) -> mc.Mask:
    """A box of kernel[0] frames, kernel[1] rows and kernel[2] columns around the query."""
    axes = per_axis(3, kernel=kernel, dilation=dilation, stride=stride, causal=causal)

    def coordinates(token):
        return token // (height * width), token // width % height, token % width

    def inside(q, k):
        lengths = mc.n_kv // (height * width), height, width
        pairs = zip(coordinates(q), coordinates(k), lengths, axes, strict=True)
        frames, rows, columns = (
            near(of_q, of_k, length, **own) for of_q, of_k, length, own in pairs
        )
        return frames & rows & columns

    return mc.where(inside)


def main() -> None:
    natten_3d(height=8, width=8, kernel=(3, 3, 3)).show(256)


if __name__ == "__main__":
    main()
