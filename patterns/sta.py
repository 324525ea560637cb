"""Sliding tile attention on a video.

Peiyuan Zhang et al., "Fast Video Generation with Sliding Tile Attention", 2025.
https://arxiv.org/abs/2502.04507

Definition: the video is cut into canvas[0] x canvas[1] x canvas[2] tiles of `tile` tokens each,
and tokens are ordered tile by tile. A query sees all keys of the window[0] x window[1] x window[2]
tiles (odd numbers) around its own tile, moved inwards at the borders: on every axis
|clamp(x_q, window // 2, canvas - 1 - window // 2) - x_k| <= window // 2, x the tile's coordinate.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def sta(
    *,
    canvas: tuple[int, ...] = (5, 6, 10),
    window: tuple[int, ...] = (3, 3, 3),
    tile: int = 384,
) -> mc.Mask:
    """Whole tiles around the query's own; by default tiles of 6 x 8 x 8 in a 30 x 48 x 80 video."""
    _, height, width = canvas

    def coordinates(token):
        at = token // tile
        return at // (height * width), at // width % height, at % width

    def near(x, y, length, size):
        centre = max(min(x, length - 1 - size // 2), size // 2)
        return abs(centre - y) <= size // 2

    def inside(q, k):
        axes = zip(coordinates(q), coordinates(k), canvas, window, strict=True)
        frames, rows, columns = (near(*axis) for axis in axes)
        return frames & rows & columns

    return mc.where(inside)


def main() -> None:
    sta(canvas=(4, 4, 4), window=(3, 3, 3), tile=4).show(256)


if __name__ == "__main__":
    main()
