"""Pictures as PNG and SVG. matplotlib is imported when something is drawn.

The same picture gives the same bytes: no date, no random ids.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from maskc.dsl.mask import Mask
from maskc.viz import words
from maskc.viz.canvas import (
    MONO,
    QUIET,
    Drawn,
    Page,
    classes,
    format_of,
    paint,
    scales,
    sized,
    style,
)
from maskc.viz.picture import Panel, Picture, picture

_MARGIN = 0.35
_AXIS_LEFT, _AXIS_TOP = 0.8, 0.38
"""Inches that tick labels and axis labels take."""
_SMALL = 2.56
"""Inches of a panel in a gallery: a pixel for each of 256 elements."""


def save(
    mask: Mask,
    path: str | Path,
    *,
    n_q: int,
    n_kv: int | None = None,
    name: str = "mask",
    n_heads: int | None = None,
    data: Mapping[str, object] | None = None,
) -> None:
    """Draw a mask into a file; its suffix says whether as PNG or as SVG.

    Args:
        mask: any mask; run-time selections choose by made-up scores, unless `data` holds `scores`.
        path: *.png or *.svg.
        n_q, n_kv: queries (down) and keys (right); as many keys as queries when None.
        name: the title.
        n_heads: needed where heads differ; every distinct set gets a panel.
        data: the arrays and parameters the mask names.

    Raises:
        UsageMistake: another suffix. ExtraMissing: matplotlib is not installed.
        OSError: the file cannot be written. MaskcError: as Mask.layout.
    """
    format_of(path)
    write(picture(mask, n_q, n_kv, name=name, n_heads=n_heads, data=data), path)


def write(shown: Picture, path: str | Path) -> None:
    """Write a picture that was made already; see save."""
    kind = format_of(path)
    with style():
        page = _single(shown) if len(shown.panels) == 1 else _several(shown)
        page.save(path, kind)


def gallery(
    patterns: Mapping[str, Mask], path: str | Path, *, n_q: int = 256, columns: int = 5
) -> None:
    """Draw many masks side by side, one small panel each; where heads differ, the first set.

    Args:
        patterns: masks by the names to print.
        path: the picture, .png or .svg.
        n_q: queries, and keys; up to 256 a side elements are drawn, beyond that tiles.
        columns: panels in a row.

    Raises:
        UsageMistake, ExtraMissing, MaskcError: as `save` and `picture`.
    """
    kind = format_of(path)
    shown = [picture(mask, n_q, None, name=name) for name, mask in patterns.items()]
    with style():
        _gallery(shown, columns).save(path, kind)


# ------------------------------------------------------------------ pages


def _single(shown: Picture) -> Page:
    """Draw one large panel with its numbers to the right."""
    drawn = sized(shown, shown.panels[0], 5.2)
    title = _title(shown, max(60, int((drawn.width + 3.6) * 12)))
    left, top = _MARGIN + _AXIS_LEFT, _below(title) + _AXIS_TOP
    notes = (*shown.alternatives, *_convention(drawn))
    height = max(drawn.height, (4.1 if drawn.panel.raster.elements else 3.7) + 0.17 * len(notes))
    page = Page.blank(left + drawn.width + 2.8, top + height + _MARGIN)
    _write_title(page, shown, title)
    scales(paint(page, drawn, left, top), drawn, 1.7)
    _draw_notes(page, left + drawn.width + 0.45, top, drawn, notes)
    return page


def _several(shown: Picture) -> Page:
    """A panel per distinct set of heads, numbers below each."""
    panels = [sized(shown, panel, 2.6) for panel in shown.panels]
    columns = min(len(panels), 4 if len(panels) > 4 else 3)
    rows = -(-len(panels) // columns)
    step_x = _AXIS_LEFT + max(panels[0].width, 2.5) + 0.2
    step_y = panels[0].height + 1.5
    across = _MARGIN + columns * step_x + 0.1
    title = _title(shown, int(across * 11.5))
    top = _below(title) + 0.65
    page = Page.blank(across, top + rows * step_y - 0.1)
    _write_title(page, shown, title)
    for index, drawn in enumerate(panels):
        x = _MARGIN + _AXIS_LEFT + index % columns * step_x
        y = top + index // columns * step_y
        scales(paint(page, drawn, x, y), drawn, 1.7, names=False)
        page.text(x, y - 0.34, words.heads(drawn.panel.heads), fontsize=10, fontweight="bold")
        _below_panel(page, x, y + drawn.height + 0.2, drawn.panel)
    page.legend(_MARGIN, page.height - 0.3, classes(panels[0].panel.raster))
    page.text(across - _MARGIN, page.height - 0.3, words.setting(shown), ha="right", color=QUIET)
    return page


def _gallery(shown: list[Picture], columns: int) -> Page:
    panels = [sized(one, one.panels[0], _SMALL) for one in shown]
    columns = max(1, min(columns, len(panels)))
    rows = -(-len(panels) // columns)
    step_x, step_y = _SMALL + 0.34, _SMALL + 0.85
    narrow = columns < 3  # too narrow for all of the foot in one line
    height = 0.35 + rows * step_y + (0.55 if narrow else 0.3)
    page = Page.blank(max(2 * _MARGIN - 0.34 + columns * step_x, 4.6), height)
    for index, (one, drawn) in enumerate(zip(shown, panels, strict=True)):
        x, y = _MARGIN + index % columns * step_x, 0.6 + index // columns * step_y
        paint(page, drawn, x, y)
        page.text(x, y - 0.1, one.name.replace("_", " "), fontsize=12, fontweight="bold")
        share = f"{words.percent(drawn.panel.numbers.live_share)} live"
        page.text(x, y + drawn.height + 0.19, share, fontsize=10.5, color=QUIET)
    if shown:
        base = page.height - 0.28
        page.legend(_MARGIN, base, classes(panels[0].panel.raster), fontsize=10.5)
        foot = words.lengths(shown[0]) + ("" if columns < 2 else "; queries go down, keys go right")
        look = {"fontsize": 10.5, "color": QUIET}
        if narrow:
            page.text(_MARGIN, base - 0.27, foot, **look)
        else:
            page.text(page.width - _MARGIN, base, foot, ha="right", **look)
    return page


# ------------------------------------------------------------------ parts


def _title(shown: Picture, columns: int) -> list[str]:
    """The formula in lines of the page's width."""
    return textwrap.wrap(
        shown.formula, columns, max_lines=5, placeholder=" ...", break_on_hyphens=False
    )


def _below(title: list[str]) -> float:
    """The height at which the title ends."""
    return _MARGIN + 0.62 + 0.17 * len(title)


def _write_title(page: Page, shown: Picture, title: list[str]) -> None:
    page.text(_MARGIN, _MARGIN + 0.1, shown.name.replace("_", " "), fontsize=14, fontweight="bold")
    base = _MARGIN + 0.37
    for line in title:
        page.text(_MARGIN, base, line, family=MONO, fontsize=8.5)
        base += 0.17
    page.text(_MARGIN, base + 0.03, words.lengths(shown), fontsize=8.5, color=QUIET)


def _draw_notes(page: Page, x: float, y: float, drawn: Drawn, notes: tuple[str, ...]) -> None:
    """Draw the column of numbers next to a single panel."""
    numbers = drawn.panel.numbers
    page.text(x, y + 0.23, words.percent(numbers.live_share), fontsize=22, fontweight="bold")
    page.text(x, y + 0.47, "of all pairs are live", color=QUIET)
    page.text(x, y + 0.65, words.of_all(numbers.live, numbers.pairs), fontsize=8, color=QUIET)
    y = _counts(page, x, y + 1.05, drawn.shown, drawn.panel)
    lines = (
        (f"{numbers.waste:.2f} x" if numbers.live else "none", "tile waste: pairs run / live"),
        (words.scaled(numbers.flops, "FLOP"), "forward, one head"),
        (words.scaled(numbers.bytes, "B"), "read and written, one head"),
    )
    for value, label in lines:
        page.text(x, y, value, fontsize=11, fontweight="bold")
        page.text(x, y + 0.17, label, fontsize=8, color=QUIET)
        y += 0.48
    for line in (words.setting(drawn.shown), *notes):
        page.text(x, y, line, fontsize=8, color=QUIET)
        y += 0.17


def _counts(page: Page, x: float, y: float, shown: Picture, panel: Panel) -> float:
    """The legend, with the number of tiles of each class; returns where it ends."""
    numbers = panel.numbers
    colors = classes(panel.raster)
    if panel.raster.elements:
        for color, label in colors:
            page.swatch(x, y, color)
            page.text(x + 0.22, y, label)
            y += 0.21
        y += 0.15
    page.text(x, y, words.tiles(shown, numbers), color=QUIET)
    counts = (("full", numbers.full), ("partial", numbers.partial), ("empty", numbers.empty))
    for index, (label, count) in enumerate(counts):
        y += 0.21
        if not panel.raster.elements:
            page.swatch(x, y, colors[index][0])
        page.text(x + 0.22, y, label)
        page.text(x + 1.75, y, f"{count:,}", ha="right")
    return y + 0.4


def _convention(drawn: Drawn) -> tuple[str, ...]:
    """Return captions that explain the shades and, if a cell covers several tiles, the colors."""
    raster, (down, right) = drawn.panel.raster, drawn.cells.covers
    several = (down, right) != (1, 1)
    if raster.elements:
        said = [f"a cell covers {down} x {right} pairs:", "fainter blue: fewer of them seen"]
        return ("", *said) if several else ()
    said = ["paler amber: fewer pairs are live"] if drawn.panel.numbers.partial else []
    if several:
        said = [f"a cell covers {down} x {right} tiles:", "blue if all are full, blank if none is",
                "live; paler amber: fewer pairs are"]  # fmt: skip
    if raster.step > 1:
        said.append(f"(by one query in {raster.step})")
    return ("", *said) if said else ()


def _below_panel(page: Page, x: float, y: float, panel: Panel) -> None:
    """Lines of numbers under one panel of several."""
    n = panel.numbers
    lines = (
        f"{words.percent(n.live_share)} live, tile waste {n.waste:.2f} x",
        f"{n.full:,} full, {n.partial:,} partial, {n.empty:,} empty ({n.tile[0]} x {n.tile[1]})",
        f"{words.scaled(n.flops, 'FLOP')}, {words.scaled(n.bytes, 'B')} a head",
    )
    for index, line in enumerate(lines):
        page.text(x, y + 0.17 * index, line, fontsize=8, color=QUIET)
