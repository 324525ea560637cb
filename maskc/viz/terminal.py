"""Pictures as text: half blocks where two states or colours suffice, shades where they do not.

Plain text is readable without colour; with colour the classes have the hues of the figures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from maskc.dsl.mask import Mask
from maskc.viz import words
from maskc.viz.picture import PairCells, Panel, Picture, picture

EMPTY, THIN, PARTIAL, FULL = range(4)
"""Looks of a cell: a thin one is partial with under half of its pairs live."""

_SHADES = np.array([" ", "░", "▒", "█"])
_HUES = (0, 137, 214, 33)
"""256-colour codes: tan, amber, blue; empty stays the terminal's own background."""

_FEWEST = 16
"""Narrowest drawing of the shorter side of a rectangular mask."""


def draw(
    mask: Mask,
    n_q: int,
    n_kv: int | None = None,
    *,
    n_heads: int | None = None,
    span: tuple[int, int, int, int] | None = None,
    width: int = 64,
    color: bool = False,
    **data: object,
) -> str:
    """Draw a mask as text, with token axes, a legend and its numbers.

    Args:
        mask: any mask; run-time selections choose by made-up scores, unless `data` holds `scores`.
        n_q, n_kv: queries (down) and keys (right); as many keys as queries when None.
        n_heads: needed where heads differ; every distinct set gets a panel.
        span: (q0, q1, k0, k1), the part to draw, ends not included.
        width: most characters across the drawing itself.
        color: add ANSI colours.
        data: the arrays and parameters the mask names.

    Raises:
        MaskcError: as Mask.layout, or a span outside the lengths.
    """
    shown = picture(mask, n_q, n_kv, span=span, n_heads=n_heads, data=data)
    return render(shown, width, color)


def render(shown: Picture, width: int = 64, color: bool = False) -> str:
    """A picture as text; see draw."""
    head = [shown.name] if shown.name != "mask" else []
    head += textwrap.wrap(shown.formula, max(60, width + 40), max_lines=6, placeholder=" ...")
    head += [f"{words.lengths(shown)} (queries down, keys right)", ""]
    lines = [line for panel in shown.panels for line in _panel(shown, panel, width, color)]
    return "\n".join(line.rstrip() for line in [*head, *lines]).rstrip("\n") + "\n"


@dataclass(frozen=True, eq=False)
class _Drawing:
    """A panel as rows of looks, before they become characters."""

    looks: np.ndarray
    """uint8 [pixel rows, pixel columns]."""
    halves: bool
    """Two pixel rows to a line of text."""
    covers: tuple[int, int]
    """Tiles or elements per cell."""
    rows_per_token: float
    columns_per_token: float


def _drawing(shown: Picture, panel: Panel, width: int, color: bool) -> _Drawing:
    n_q, n_kv = shown.span.shape
    ratio = n_q / n_kv
    across = width if ratio <= 1 else max(min(_FEWEST, width), round(width / ratio))
    down = width if ratio >= 1 else max(min(_FEWEST, width), round(width * ratio))
    exact = panel.raster.elements and max(panel.raster.classes.shape) <= min(across, down)
    halves = color or exact
    down = down if halves else max(1, down // 2)
    cells = panel.raster.fit(down, across)
    rows, columns = cells.classes.shape
    wide = max(1, across // columns)
    wanted = columns * wide * ratio / rows / (1 if halves else 2)
    tall = max(1, min(down // rows, round(wanted)))
    looks = np.repeat(np.repeat(_looks(cells), tall, axis=0), wide, axis=1)
    unit = panel.raster.unit
    return _Drawing(
        looks, halves, cells.covers,
        tall / (cells.covers[0] * unit[0]), wide / (cells.covers[1] * unit[1]),
    )  # fmt: skip


def _looks(cells: PairCells) -> np.ndarray:
    partial = np.where(cells.share < 0.5, THIN, PARTIAL)
    looks = [np.full_like(partial, EMPTY), partial, np.full_like(partial, FULL)]
    return np.choose(cells.classes, looks).astype(np.uint8)


def _panel(shown: Picture, panel: Panel, width: int, color: bool) -> Iterator[str]:
    if panel.heads:
        yield words.heads(panel.heads)
    numbers = _numbers(shown, panel)
    if not panel.numbers.pairs:
        yield from ("nothing to draw: there are no pairs", "", *numbers, "")
        return
    drawing = _drawing(shown, panel, width, color)
    text = list(_text(drawing, color))
    labels = _row_labels(shown, drawing, len(text))
    gutter = max(map(len, labels.values()))
    margin, rule = " " * gutter, "─" * drawing.looks.shape[1]
    yield f"{margin} {_column_labels(shown, drawing)}"
    framed = [f"{margin} ┌{rule}┐"]
    for index, line in enumerate(text):
        edge = "┤" if index in labels else "│"
        framed.append(f"{labels.get(index, ''):>{gutter}} {edge}{line}│")
    framed.append(f"{margin} └{rule}┘")
    blank = " " * (gutter + len(rule) + 3)
    for left, note in zip_longest(framed, numbers):
        yield f"{left or blank}   {note or ''}"
    yield from _legend(panel, drawing, color, gutter)
    yield ""


# ------------------------------------------------------------------ cells


def _text(drawing: _Drawing, color: bool) -> Iterator[str]:
    if not drawing.halves:
        for row in _SHADES[drawing.looks]:
            yield "".join(row)
        return
    looks = drawing.looks
    if len(looks) % 2:
        looks = np.vstack([looks, np.zeros_like(looks[:1])])
    for top, bottom in zip(looks[0::2].tolist(), looks[1::2].tolist(), strict=True):
        pairs = list(zip(top, bottom, strict=True))
        yield _colored(pairs) if color else "".join(" ▄▀█"[2 * (a > 0) + (b > 0)] for a, b in pairs)


def _colored(pairs: list[tuple[int, int]]) -> str:
    """One line of half blocks; a colour code is written only where the colour changes."""
    out, last = [], ""
    for top, bottom in pairs:
        glyph, code = _half(top, bottom)
        if code != last:
            out.append(f"\x1b[{code or '0'}m")
            last = code
        out.append(glyph)
    return "".join(out) + ("\x1b[0m" if last else "")


def _half(top: int, bottom: int) -> tuple[str, str]:
    """The glyph of two pixels and its ANSI code."""
    if top == bottom == EMPTY:
        return " ", ""
    if top == bottom:
        return "█", f"0;38;5;{_HUES[top]}"
    if top == EMPTY:
        return "▄", f"0;38;5;{_HUES[bottom]}"
    if bottom == EMPTY:
        return "▀", f"0;38;5;{_HUES[top]}"
    return "▀", f"0;38;5;{_HUES[top]};48;5;{_HUES[bottom]}"


# ------------------------------------------------------------------ axes and words


def _row_labels(shown: Picture, drawing: _Drawing, lines: int) -> dict[int, str]:
    """Line of text -> query index."""
    per_line = drawing.rows_per_token / (2 if drawing.halves else 1)
    span = shown.span
    labels: dict[int, str] = {}
    for tick in words.ticks(span.q0, span.q1, max(2, lines // 5)):
        labels.setdefault(min(lines - 1, int((tick - span.q0) * per_line)), str(tick))
    return labels


def _column_labels(shown: Picture, drawing: _Drawing) -> str:
    """Key indices, each starting above its column; the frame's corner comes first."""
    span, columns = shown.span, drawing.looks.shape[1]
    longest = len(str(span.k1)) + 2
    text = ""
    for tick in words.ticks(span.k0, span.k1, max(2, columns // (longest + 4))):
        at = 1 + int((tick - span.k0) * drawing.columns_per_token)
        if at >= len(text) + (1 if text else 0):
            text = text.ljust(at) + str(tick)
    return text


def _numbers(shown: Picture, panel: Panel) -> list[str]:
    numbers = panel.numbers
    counts = (("full", numbers.full), ("partial", numbers.partial), ("empty", numbers.empty))
    lines = [f"{label:<9} {value}" for label, value in words.facts(numbers)]
    tiles = [words.tiles(shown, numbers).replace("tiles of ", "tiles     ")]
    tiles += [f"          {note}" for note in shown.alternatives]
    tiles += [f"  {label:<7} {value:>9,}" for label, value in counts]
    return lines[:2] + tiles + lines[2:] + [f"          {words.setting(shown)}"]


def _legend(panel: Panel, drawing: _Drawing, color: bool, gutter: int) -> Iterator[str]:
    margin = " " * (gutter + 2)
    single = drawing.covers == (1, 1)
    if panel.raster.elements:
        names = {FULL: "live"} if single else {
            FULL: "all live", PARTIAL: "half or more live", THIN: "under half live",
        }  # fmt: skip
        blank, what = "masked", "pairs"
    else:
        names = {FULL: "full", PARTIAL: "partial"}
        if (drawing.looks == THIN).any():
            names[THIN] = "partial, under half its pairs live"
        blank, what = "empty", "tiles"
    swatches = "   ".join(f"{_swatch(look, color)} {name}" for look, name in names.items())
    yield f"{margin}{swatches}   blank: {blank}"
    if not single:
        down, right = drawing.covers
        yield f"{margin}a cell covers {down} x {right} {what}"


def _swatch(look: int, color: bool) -> str:
    return f"\x1b[38;5;{_HUES[look]}m█\x1b[0m" if color else str(_SHADES[look])
