"""Drawings of a report as SVG: colours come from the page's style, so that dark pages stay dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import log

import numpy as np

from maskc.core.svg import runs
from maskc.viz.picture import Panel, Picture

_SIDE, _LEFT, _TOP = 440, 52, 20
_CELLS = 110
"""Cells across a drawing of a mask, at most."""
_FAINTEST = 0.3
"""Strength of a partial cell with almost no live pair."""


def map_of(shown: Picture, panel: Panel, label: str) -> str:
    """One set of pairs: queries go down, keys to the right.

    Args:
        label: what a screen reader says.
    """
    cells = panel.raster.fit(_CELLS, _CELLS)
    rows, columns = cells.classes.shape
    ratio = min(max(shown.span.shape[0] / max(1, shown.span.shape[1]), 0.1), 10.0)
    width, height = _SIDE * min(1, 1 / ratio), _SIDE * min(1, ratio)
    boxes = "".join(
        f'<rect class="{"full" if kind == 2 else "partial"}" x="{first}" y="{row}" '
        f'width="{stop - first}" height="1"{_strength(kind, share)}/>'
        for row, first, stop, kind, share in runs(cells.classes, np.round(cells.share * 8) / 8)
    )
    inner = (
        f'<svg x="{_LEFT}" y="{_TOP}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {max(columns, 1)} {max(rows, 1)}" preserveAspectRatio="none" '
        f'shape-rendering="crispEdges"><rect class="ground" width="{columns}" height="{rows}"/>'
        f"{boxes}</svg>"
    )
    span = shown.span
    ticks = _ticks(span.q0, span.q1, height, False) + _ticks(span.k0, span.k1, width, True)
    edge = f'<rect class="edge" x="{_LEFT}" y="{_TOP}" width="{width:.0f}" height="{height:.0f}"/>'
    return _svg(_LEFT + width + 24, _TOP + height + 8, label, inner + edge + ticks)


def _strength(kind: int, share: float) -> str:
    strength = _FAINTEST + (1 - _FAINTEST) * share
    return "" if kind == 2 else f' fill-opacity="{strength:.3g}"'


def _ticks(first: int, end: int, length: float, across: bool) -> str:
    ticks = []
    for part in (0, 0.25, 0.5, 0.75):
        token, at = first + round(part * (end - first)), part * length
        if across:
            ticks.append(f'<text x="{_LEFT + at:.0f}" y="{_TOP - 6}">{token:,}</text>')
        else:
            place = f'x="{_LEFT - 6}" y="{_TOP + at + 10:.0f}" text-anchor="end"'
            ticks.append(f"<text {place}>{token:,}</text>")
    return "".join(ticks)


def _svg(width: float, height: float, label: str, inner: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"{inner}</svg>"
    )


# ------------------------------------------------------------------ lines over lengths

_WIDE, _HIGH, _LEGEND_WIDTH = 470, 300, 110


def growth_chart(
    series: Mapping[str, Mapping[int, float]], order: Sequence[str], unit: str, label: str,
    say: Callable[[float], str],
) -> str:  # fmt: skip
    """Lines over lengths, both axes logarithmic.

    Args:
        series: by name, values above 0 by length.
        order: all names there are; a name's place decides its colour.
        unit: of the values.
        label: what a screen reader says.
        say: a value as it stands at the axis.
    """
    points = {name: {n: v for n, v in at.items() if v > 0} for name, at in series.items()}
    points = {name: at for name, at in points.items() if at}
    lengths = sorted({n for at in points.values() for n in at})
    values = [v for at in points.values() for v in at.values()]
    if not values or len(lengths) < 2:
        return ""
    bottom, top = _decades(min(values), max(values))

    def x(n: float) -> float:
        return _LEFT + _WIDE * log(n / lengths[0]) / log(lengths[-1] / lengths[0])

    def y(v: float) -> float:
        return _TOP + _HIGH * (1 - log(v / bottom) / log(top / bottom))

    parts = [f'<rect class="edge" x="{_LEFT}" y="{_TOP}" width="{_WIDE}" height="{_HIGH}"/>']
    for n in lengths:
        place = f'x="{x(n):.1f}" y="{_TOP + _HIGH + 16}" text-anchor="middle"'
        parts.append(f"<text {place}>{n:,}</text>")
    level = bottom
    while level <= top * 1.001:
        place = f'x="{_LEFT - 6}" y="{y(level) + 4:.1f}" text-anchor="end"'
        parts.append(f"<text {place}>{escape(say(level))}</text>")
        parts.append(f'<path class="edge" d="M{_LEFT} {y(level):.1f}h{_WIDE}"/>')
        level *= 10
    parts.append(f'<text x="{_LEFT + _WIDE}" y="{_TOP + _HIGH + 32}" text-anchor="end">N</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 7}">{escape(unit)}</text>')
    ends = _apart({name: y(at[max(at)]) for name, at in points.items()})
    for name, at in points.items():
        color = order.index(name) % 7
        line = " ".join(f"{x(n):.1f},{y(at[n]):.1f}" for n in sorted(at))
        parts.append(f'<polyline class="l{color}" points="{line}"/>')
        parts += [
            f'<circle class="m{color}" cx="{x(n):.1f}" cy="{y(at[n]):.1f}" r="3.2"/>' for n in at
        ]
        place = f'x="{x(max(at)) + 9:.1f}" y="{ends[name] + 4:.1f}"'
        parts.append(f'<text class="m{color} name" {place}>{escape(name)}</text>')
    return _svg(_LEFT + _WIDE + _LEGEND_WIDTH, _TOP + _HIGH + 38, label, "".join(parts))


def _decades(least: float, most: float) -> tuple[float, float]:
    """Powers of ten around the values."""
    low, high = int(np.floor(np.log10(least))), int(np.ceil(np.log10(most)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _apart(places: Mapping[str, float], gap: float = 13) -> dict[str, float]:
    """These places from top to bottom, moved down where names would lie on each other."""
    heights: dict[str, float] = {}
    last = -gap
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        heights[name] = last = max(place, last + gap)
    return heights
