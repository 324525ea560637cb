"""Grouped bars, lying: one panel per title, one group of bars per name, values from zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from maskc.viz.canvas import FULL, INK, LINE, QUIET, Page, format_of, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = (FULL, "#f0a830", "#8a8f98", "#3f9e8f", "#b5557f", "#7a5fb0", "#6b7f2a", "#a06a43")
"""The first is the one to look at."""
_BAR, _GAP = 0.085, 0.12
"""Inches of a bar, and between groups."""
_NAMES, _PANEL, _SPACE = 1.95, 4.6, 0.5
_TOP, _BOTTOM = 0.78, 0.5


@dataclass(frozen=True)
class Group:
    """The bars of one name."""

    name: str
    values: Mapping[str, float]
    """By series; a missing one leaves no bar."""
    label: str = ""
    """Written behind the first bar."""


def bars(
    panels: Mapping[str, Sequence[Group]], path: str | Path, *, unit: str, title: str,
    order: Sequence[str],
) -> None:  # fmt: skip
    """Draw panels side by side into a PNG or SVG file; the same values give the same bytes.

    Args:
        panels: groups by the panel's title; panels share the names of the first.
        unit: of all values, below the axis.
        order: names of the series, top to bottom; those without any value are left out.

    Raises:
        UsageMistake: another suffix.
        ExtraMissing: matplotlib is not installed.
    """
    kind = format_of(path)
    present = {series for groups in panels.values() for g in groups for series in g.values}
    shown = [series for series in order if series in present]
    names = list(dict.fromkeys(g.name for groups in panels.values() for g in groups))
    height = len(names) * (max(len(shown), 1) * _BAR + _GAP)
    width = _NAMES + len(panels) * (_PANEL + _SPACE)
    with style():
        page = Page.blank(width, _TOP + height + _BOTTOM)
        page.text(0.15, 0.28, title, fontsize=10, color=INK)
        _legend(page, shown)
        for number, (head, groups) in enumerate(panels.items()):
            left = _NAMES + number * (_PANEL + _SPACE)
            axes = page.axes(left, _TOP, _PANEL, height)
            _panel(axes, {g.name: g for g in groups}, names, shown)
            axes.set_title(head, fontsize=9, color=INK, loc="left", pad=4)
            axes.set_xlabel(unit, fontsize=8)
            axes.set_yticks(range(len(names)), names if number == 0 else [""] * len(names))
        page.save(path, kind)


def _legend(page: Page, shown: Sequence[str]) -> None:
    left = 0.15
    for color, series in zip(_COLORS, shown, strict=False):
        page.swatch(left, 0.52, color)
        page.text(left + 0.19, 0.52, series, fontsize=8, color=QUIET)
        left += 0.42 + 0.075 * len(series)


def _panel(
    axes: Axes, groups: Mapping[str, Group], names: Sequence[str], shown: Sequence[str]
) -> None:
    """Bars of one panel: a group is one unit high, its bars and a gap."""
    thick = _BAR / (max(len(shown), 1) * _BAR + _GAP)
    for number, series in enumerate(shown):
        offset = (number - (len(shown) - 1) / 2) * thick
        places = [
            (row + offset, groups[name].values[series])
            for row, name in enumerate(names)
            if name in groups and series in groups[name].values
        ]
        color = _COLORS[number % len(_COLORS)]
        axes.barh([y for y, _ in places], [x for _, x in places], 0.92 * thick, color=color)
    first = -(len(shown) - 1) / 2 * thick
    for row, name in enumerate(names):
        group = groups.get(name)
        if group is not None and group.label and shown and shown[0] in group.values:
            x = group.values[shown[0]]
            axes.annotate(
                group.label, (x, row + first), (3, 0), textcoords="offset points", va="center",
                fontsize=6.5, color=INK,
            )  # fmt: skip
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.margins(x=0.1)
    axes.tick_params(labelsize=7.5, length=0)
    axes.grid(axis="x", color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
