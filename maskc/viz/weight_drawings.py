"""Heatmaps of attention weights: text, figures and SVG on one logarithmic scale.

Masked pairs have a colour of their own, light grey: a small weight is dark, not grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.viz import words
from maskc.viz.canvas import EMPTY, LINE, MONO, QUIET, Page, format_of, rgb, style

if TYPE_CHECKING:
    from maskc.viz.weights import WeightCells, WeightMap

_ANCHORS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")
"""From the smallest weights to the largest, of rising lightness: readable in grey as well."""
MASKED = EMPTY
_DECADES = 4
"""Powers of ten that the scale spans, at most; smaller weights have the colour of its end."""
_LEVELS = 24
"""Colours of an SVG drawing."""
_CELLS = 128
"""Cells across an SVG drawing, at most."""


@dataclass(frozen=True)
class WeightScale:
    """A logarithmic scale of weights."""

    low: float
    high: float

    @staticmethod
    def of(cells: WeightCells) -> WeightScale:
        """The scale up to the largest weight, down to the smallest within four powers of ten."""
        seen = cells.values[~cells.masked & (cells.values > 0)]
        if not seen.size:
            return WeightScale(0.1, 1.0)
        high = float(seen.max())
        low = max(float(seen.min()), high * 10.0**-_DECADES)
        return WeightScale(low if low < high else high / 10, high)

    def place(self, values: np.ndarray) -> np.ndarray:
        """Numbers from 0 (low and below) to 1 (high)."""
        span = np.log(self.high / self.low)
        with np.errstate(divide="ignore"):
            places: np.ndarray = np.clip(np.log(values / self.low) / span, 0.0, 1.0)
        return places

    def ticks(self) -> list[float]:
        """The ends of the scale, and the powers of ten between them."""
        first, last = np.ceil(np.log10(self.low)), np.floor(np.log10(self.high))
        inner = [float(10.0**power) for power in np.arange(first, last + 1)]
        room = [x for x in inner if self.low * 1.5 < x < self.high / 1.5]
        return [self.low, *room, self.high]


def colors(places: np.ndarray) -> np.ndarray:
    """float [..., 3]: the colour of each place from 0 to 1."""
    anchors = np.array([rgb(anchor) for anchor in _ANCHORS])
    at = np.linspace(0, 1, len(anchors))
    return np.stack([np.interp(places, at, anchors[:, part]) for part in range(3)], axis=-1)


def cell_words(shown: WeightMap, cells: WeightCells) -> str:
    """Explain the color of a cell."""
    if cells.covers == (1, 1):
        return "attention weight, log scale"
    down, right = cells.covers
    of = "mean" if shown.reduce == "mean" else "maximum"
    return f"attention weight, {of} of the kept pairs of {down} x {right}, log scale"


# ------------------------------------------------------------------ text

_GLYPHS = "░▒▓█"
_BOUNDS = (1e-3, 1e-2, 1e-1)
"""Weights from which the next glyph is drawn."""


def text(shown: WeightMap, width: int = 64) -> str:
    """A heatmap as text: a shade per power of ten, blank where masked."""
    n_q, n_kv = max(shown.n_q, 1), max(shown.n_kv, 1)
    across = min(width, n_kv)
    cells = shown.cells(max(1, min(n_q, round(across / 2 * min(n_q / n_kv, 4)))), across)
    rows, columns = cells.values.shape
    glyphs = np.array(list(_GLYPHS))[np.digitize(cells.values, _BOUNDS)]
    glyphs[cells.masked] = " "
    gutter = len(str(n_q))
    labels = {tick // cells.covers[0]: tick for tick in words.ticks(0, n_q, max(2, rows // 5))}
    lines = [shown.name] if shown.name != "mask" else []
    lines += textwrap.wrap(shown.formula, max(60, width + 40), max_lines=6, placeholder=" ...")
    lines += [shown.caption, ""]
    lines.append(" " * (gutter + 2) + _across(shown, cells, columns))
    lines.append(f"{'':>{gutter}} ┌{'─' * columns}┐")
    for index, row in enumerate(glyphs):
        edge = "┤" if index in labels else "│"
        lines.append(f"{labels.get(index, ''):>{gutter}} {edge}{''.join(row)}│")
    lines.append(f"{'':>{gutter}} └{'─' * columns}┘")
    margin = " " * (gutter + 2)
    lines.append(
        f"{margin}█ 0.1 and more   ▓ 0.01 to 0.1   ▒ 0.001 to 0.01   ░ less   blank: masked"
    )
    lines.append(f"{margin}{cell_words(shown, cells).removesuffix(', log scale')}; "
                 f"largest {cells.values.max(initial=0):.3g}")  # fmt: skip
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _across(shown: WeightMap, cells: WeightCells, columns: int) -> str:
    """Key indices above their columns."""
    line, longest = "", len(str(shown.n_kv)) + 2
    for tick in words.ticks(0, shown.n_kv, max(2, columns // (longest + 4))):
        at = tick // cells.covers[1]
        if at >= len(line) + bool(line):
            line = line.ljust(at) + str(tick)
    return line


# ------------------------------------------------------------------ SVG


def svg_cells(cells: WeightCells, scale: WeightScale) -> Iterator[str]:
    """One <path> per colour, in the coordinates of cells; nothing where masked."""
    levels = np.rint(scale.place(cells.values) * (_LEVELS - 1)).astype(int)
    levels[cells.masked] = -1
    outlines: dict[int, list[str]] = {}
    for row, line in enumerate(levels):
        ends = np.flatnonzero(np.diff(line, prepend=-2, append=-2))
        for first, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if line[first] >= 0:
                outlines.setdefault(int(line[first]), []).append(
                    f"M{first} {row}h{stop - first}v1H{first}z"
                )
    for level in sorted(outlines):
        yield f'<path fill="{_hex(level / (_LEVELS - 1))}" d="{"".join(outlines[level])}"/>'


def _hex(place: float) -> str:
    parts = np.rint(255 * colors(np.array(place))).astype(int).tolist()
    return "#" + "".join(f"{part:02x}" for part in parts)


_SIDE = 360
"""The longer side of a heatmap, in pixels."""


def svg(shown: WeightMap, label: str) -> str:
    """A heatmap with axes and a colour bar as an <svg> element, without style or script."""
    cells = shown.cells(_CELLS, _CELLS)
    scale = WeightScale.of(cells)
    rows, columns = cells.values.shape
    ratio = min(max(shown.n_q / max(shown.n_kv, 1), 0.25), 4.0)
    width, height = round(_SIDE * min(1, 1 / ratio)), round(_SIDE * min(1, ratio))
    left, top, bar = 52, 22, 14
    inner = (
        f'<svg x="{left}" y="{top}" width="{width}" height="{height}" '
        f'viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" shape-rendering="crispEdges">'
        f'<rect class="ground" fill="{MASKED}" width="{columns}" height="{rows}"/>'
        f"{''.join(svg_cells(cells, scale))}</svg>"
    )
    parts = [inner]
    write = '<text font-size="11" font-family="sans-serif" fill="#5b6470"'
    for part in (0, 0.25, 0.5, 0.75):
        query, key = round(part * shown.n_q), round(part * shown.n_kv)
        parts.append(f'{write} x="{left + part * width:.0f}" y="{top - 6}">{key:,}</text>')
        place = f'x="{left - 6}" y="{top + part * height + 10:.0f}" text-anchor="end"'
        parts.append(f"{write} {place}>{query:,}</text>")
    at = left + width + 20
    step = height / _LEVELS
    for level in range(_LEVELS):
        y = top + height - (level + 1) * step
        color = _hex(level / (_LEVELS - 1))
        parts.append(f'<rect x="{at}" y="{y:.2f}" width="{bar}" height="{step + 0.5:.2f}" '
                     f'fill="{color}"/>')  # fmt: skip
    for tick in scale.ticks():
        y = top + height * (1 - float(scale.place(np.array(tick)))) + 4
        parts.append(f'{write} x="{at + bar + 5}" y="{y:.0f}">{tick:.2g}</text>')
    parts.append(f'<rect class="ground" x="{at}" y="{top + height + 10}" width="{bar}" '
                 f'height="{bar}" fill="{MASKED}" stroke="{LINE}"/>')  # fmt: skip
    parts.append(f'{write} x="{at + bar + 5}" y="{top + height + 21}">masked</text>')
    whole_w, whole_h = at + bar + 70, top + height + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" '
        f'width="{whole_w}" height="{whole_h}" viewBox="0 0 {whole_w} {whole_h}">'
        f"{''.join(parts)}</svg>"
    )


def html(shown: WeightMap) -> str:
    """A heatmap for a notebook."""
    from maskc.core.svg import page

    notes = [shown.caption, cell_words(shown, shown.cells(_CELLS, _CELLS))]
    return page(words.cut(shown.formula, 400), notes, [("", svg(shown, "Attention weights"))])


# ------------------------------------------------------------------ figures


def save(shown: WeightMap, path: str) -> None:
    """Write a heatmap as PNG or SVG; see WeightMap.save."""
    kind = format_of(path)
    with style():
        _page(shown).save(path, kind)


def _page(shown: WeightMap) -> Page:
    cells = shown.cells()
    scale = WeightScale.of(cells)
    ratio = min(max(shown.n_q / max(shown.n_kv, 1), 0.2), 5.0)
    width, height = 5.12 * min(1, 1 / ratio), 5.12 * min(1, ratio)
    title = textwrap.wrap(
        shown.formula, 80, max_lines=5, placeholder=" ...", break_on_hyphens=False
    )
    left, top = 1.15, 1.35 + 0.17 * len(title)
    page = Page.blank(left + width + 1.6, top + max(height, 2.0) + 0.7)
    page.text(0.35, 0.45, shown.name.replace("_", " "), fontsize=14, fontweight="bold")
    for index, line in enumerate(title):
        page.text(0.35, 0.72 + 0.17 * index, line, family=MONO, fontsize=8.5)
    page.text(0.35, 0.75 + 0.17 * len(title), shown.caption, fontsize=8.5, color=QUIET)
    image = colors(scale.place(cells.values))
    image[cells.masked] = rgb(MASKED)
    axes = page.axes(left, top, width, height)
    rows, columns = cells.values.shape
    box = (0, columns * cells.covers[1], rows * cells.covers[0], 0)
    look: dict[str, Any] = {"interpolation": "none", "aspect": "auto"}
    axes.imshow(image, extent=box, **look)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(words.ticks(0, shown.n_kv, max(2, int(width * 1.5))))
    axes.set_yticks(words.ticks(0, shown.n_q, max(2, int(height * 1.5))))
    axes.tick_params(length=3, width=0.8, labelsize=8, pad=2)
    axes.set_xlabel("keys", fontsize=9, labelpad=5)
    axes.set_ylabel("queries", fontsize=9, labelpad=4)
    bar = page.axes(left + width + 0.3, top, 0.18, height)
    bar.imshow(colors(np.linspace(1, 0, 256)[:, None]), extent=(0, 1, 0, 1), **look)
    bar.set_xticks([])
    bar.yaxis.tick_right()
    ticks = scale.ticks()
    bar.set_yticks([float(scale.place(np.array(tick))) for tick in ticks])
    bar.set_yticklabels([f"{tick:.2g}" for tick in ticks])
    bar.tick_params(length=3, width=0.8, labelsize=8, pad=2)
    base = top + max(height, 2.0) + 0.35
    page.text(left, base, cell_words(shown, cells), fontsize=8.5, color=QUIET)
    page.swatch(left + width + 0.3, base, MASKED)
    page.text(left + width + 0.5, base, "masked", fontsize=8.5, color=QUIET)
    return page
