"""C text of coordinates in a grid whose boxes are tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from maskc.core.boxes import Boxes, boxes_along, steps_of
from maskc.core.problem import Direction

_NAMES = "zyx"
"""The names of axes, the innermost last."""


@dataclass(frozen=True, slots=True)
class BoxText:
    """Text about boxes for templates; axes come outermost first."""

    note: str
    """A description of the grid and its boxes for the reader."""
    names: tuple[str, ...]
    """Members of `struct Point`."""
    query: tuple[str, ...]
    """The values of a point for a token of a tile of queries, over the tile, `box`, and the token's
    number in it, `own`."""
    key: tuple[str, ...]
    """The coordinate of keys, likewise."""
    beyond: str
    """A condition: the point `at` lies outside the grid, ignoring the first axis."""
    token: str
    """The number of a point, `at`."""
    copied: tuple[str, ...]
    """Coordinates of copies behind the element: of a point, `at`, and a `head` and `batch`."""
    rows: str
    """Coordinates of rows along the first axis, whole boxes, over `p`."""
    words: tuple[str, ...]
    """Per axis where the word is that tells what a row, the point `at`, sees of a tile of columns,
    `box`; over `rows`."""
    outside: str
    """The place of a tile of columns, `box`, on all axes except the innermost."""
    size: str
    """Words of one mask, over `p` and `rows`."""


def box_text(boxes: Boxes, direction: Direction) -> BoxText:
    """The text for a pass: rows of a tile's bits are keys in a backward pass, else queries."""
    count = len(boxes.extents) + 1
    names = tuple(_NAMES[-count:])
    backward = direction is Direction.backward
    row, column = (boxes.k, boxes.q) if backward else (boxes.q, boxes.k)
    row_tiles, column_tiles = ("cols", "rows") if backward else ("rows", "cols")
    rest = {box: prod(boxes_along(boxes.extents, box[1:])) for box in (row, column)}
    quads = 4 * (prod(column) // boxes.seen)
    words, size = _words(boxes, row, column, quads, names)
    along = f"(u32)p.tile_{column_tiles} / {rest[column]}"
    tokens = steps_of((1, *boxes.extents))
    inner = list(zip(names[1:], boxes.extents, strict=True))
    point = [f"at.{name}" for name in names[::-1]]
    return BoxText(
        note=_note(boxes),
        names=names,
        query=_coordinates(boxes, boxes.q),
        key=_coordinates(boxes, boxes.k),
        beyond=" || ".join(f"at.{name} >= {extent}" for name, extent in inner),
        token=" + ".join(
            _times(f"at.{name}", step) for name, step in zip(names, tokens, strict=True)
        ),
        copied=(*point, "head", "batch") if count == 2 else (*point, "head"),
        rows=_times(f"(u32)p.tile_{row_tiles} / {rest[row]}", row[0]),
        words=words,
        outside=f"box / {boxes_along(boxes.extents, column[1:])[-1]}",
        size=f"{size} + {along} * rows * {quads}",
    )


def _note(boxes: Boxes) -> str:
    def by(numbers: tuple[int, ...]) -> str:
        return " x ".join(map(str, numbers))

    return f"queries of {by(boxes.q)}, keys of {by(boxes.k)}, in N x {by(boxes.extents)}"


def _coordinates(boxes: Boxes, box: tuple[int, ...]) -> tuple[str, ...]:
    counts = (0, *boxes_along(boxes.extents, box[1:]))
    axes = zip(box, steps_of(box), counts, steps_of((1, *counts[1:])), strict=True)
    return tuple(
        f"{_times(_digit('box', step, count), side)} + {_digit('own', inner, side if i else 0)}"
        for i, (side, inner, count, step) in enumerate(axes)
    )


def _words(
    boxes: Boxes, row: tuple[int, ...], column: tuple[int, ...], quads: int, names: tuple[str, ...]
) -> tuple[tuple[str, ...], int]:
    """Places of words by axis, and how many the axes but the first have."""
    counts = boxes_along(boxes.extents, column[1:])
    lengths = [n * side for n, side in
               zip(boxes_along(boxes.extents, row[1:]), row[1:], strict=True)]  # fmt: skip
    steps, starts, start = steps_of((1, *counts)), [], 0
    for axis in range(len(counts), 0, -1):
        along = _times(_digit("box", steps[axis], counts[axis - 1]), lengths[axis - 1])
        starts.append(f"{f'{start} + ' if start else ''}({along} + at.{names[axis]}) * {quads}")
        start += counts[axis - 1] * lengths[axis - 1] * quads
    starts.append(f"{start} + ({_digit('box', steps[0], 0)} * rows + at.{names[0]}) * {quads}")
    return tuple(starts), start


def _digit(name: str, step: int, count: int) -> str:
    """name / step % count; without an end where `count` is 0."""
    over = f"{name} / {step}" if step > 1 else name
    return f"{over} % {count}" if count else over


def _times(text: str, factor: int) -> str:
    return f"{text} * {factor}" if factor > 1 else text
