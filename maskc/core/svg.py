"""Tiles as an SVG text for notebooks: plain strings, every name escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

FULL, PARTIAL, EMPTY = (31, 95, 153), (240, 168, 48), (239, 241, 244)
"""Blue, amber and near white, as in figures."""
_FAINTEST = 0.45
"""Strength of the amber of a cell with almost no live pair."""
_SIDE = 240
"""Longer side of a panel in pixels."""
MAX_CELLS = 96
"""Cells across a panel, at most: a page holds many outputs."""


def panel(classes: np.ndarray, share: np.ndarray, ratio: float) -> str:
    """One mask as an <svg> element.

    Args:
        classes: uint8 [rows, columns]: 0 empty, 1 partial, 2 full.
        share: float [rows, columns]: how much of a partial cell is live.
        ratio: queries over keys, the picture's height over its width.
    """
    rows, columns = classes.shape
    ratio = min(max(ratio, 0.1), 10.0)
    width, height = (round(_SIDE * side) for side in (min(1, 1 / ratio), min(1, ratio)))
    outlines: dict[str, str] = {}  # one path a colour: a picture has many runs and few colours
    for row, first, stop, kind, strength in runs(classes, np.round(share * 8) / 8):
        color = _color(kind, strength)
        outlines[color] = outlines.get(color, "") + f"M{first} {row}h{stop - first}v1H{first}z"
    boxes = "".join(f'<path fill="{color}" d="{shape}"/>' for color, shape in outlines.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {max(columns, 1)} {max(rows, 1)}" preserveAspectRatio="none" '
        f'shape-rendering="crispEdges" style="border:1px solid #b9c0ca;background:{_rgb(EMPTY)}">'
        f"{boxes}</svg>"
    )


def page(title: str, lines: Sequence[str], panels: Sequence[tuple[str, str]]) -> str:
    """Panels below a title, as one <div>.

    Args:
        title: plain text, shown in a fixed font.
        lines: plain texts below the panels.
        panels: (caption, <svg>) each; captions are plain text.
    """
    shown = "".join(
        f'<div>{svg}<div style="font-size:85%">{escape(caption)}</div></div>'
        for caption, svg in panels
    )
    notes = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return (
        '<div style="font-family:sans-serif;font-size:90%">'
        f'<code style="white-space:pre-wrap">{escape(title)}</code>'
        f'<div style="display:flex;flex-wrap:wrap;gap:16px;margin:6px 0">{shown}</div>{notes}</div>'
    )


def runs(classes: np.ndarray, share: np.ndarray) -> Iterator[tuple[int, int, int, int, float]]:
    """Yield (row, first, stop, class, share) of each run of equal cells in a row that are not
    empty.

    Args:
        classes: uint8 [rows, columns]: 0 empty, 1 partial, 2 full.
        share: float [rows, columns]: which part of a partial cell is live.
    """
    for row in range(classes.shape[0]):
        looks = np.where(classes[row] == 1, share[row], classes[row] + 1.0)
        looks[classes[row] == 0] = -1.0
        ends = np.flatnonzero(np.diff(looks, prepend=np.nan, append=np.nan) != 0)
        for first, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if classes[row, first]:
                yield row, first, stop, int(classes[row, first]), float(share[row, first])


def _color(kind: int, share: float) -> str:
    if kind == 2:
        return _rgb(FULL)
    strength = _FAINTEST + (1 - _FAINTEST) * share
    mixed = (round(e + strength * (p - e)) for e, p in zip(EMPTY, PARTIAL, strict=True))
    return _rgb(tuple(mixed))


def _rgb(color: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in color)


def shrunk(classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join cells until there are at most MAX_CELLS a side.

    Args:
        classes: uint8 [rows, columns]: 0 empty, 1 partial, 2 full.

    Returns:
        The classes of the joined cells, uint8, and the share of their tiles that are live, float. A
        joined cell is full where all of its tiles are, and empty if all are.
    """
    steps = [max(1, -(-size // MAX_CELLS)) for size in classes.shape]
    if not classes.size:
        return classes, classes.astype(float)
    size, live, full = (sums(x, *steps) for x in (classes < 3, classes > 0, classes == 2))
    return np.where(full == size, 2, np.minimum(live, 1)).astype(np.uint8), live / size


def sums(numbers: np.ndarray, down: int, right: int) -> np.ndarray:
    """Sum numbers [rows, columns] over blocks of down x right entries, as float64.

    The last blocks of a row or column may be smaller.
    """
    starts = [np.arange(0, n, step) for n, step in zip(numbers.shape, (down, right), strict=True)]
    if not numbers.size:
        return np.zeros([len(start) for start in starts])
    by_row = np.add.reduceat(numbers, starts[0], axis=0, dtype=np.float64)
    sums_by_row: np.ndarray = np.add.reduceat(by_row, starts[1], axis=1)
    return sums_by_row
