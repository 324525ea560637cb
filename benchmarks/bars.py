"""Horizontal grouped bars: one panel per title, one group of bars per name, values from zero."""

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
_BAR, _GAP = 0.09, 0.14
"""Inches of a bar, and between groups."""
_NAMES, _PANEL, _SPACE = 1.95, 4.6, 0.5
_TOP, _BOTTOM = 0.78, 0.5


@dataclass(frozen=True)
class Group:
    """The bars of one name."""

    name: str
    values: Mapping[str, float]
    """The value of each series; a missing one leaves no bar."""
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
    rows = _rows(panels, order)
    shown = [series for series in order if any(series in present for present in rows.values())]
    colors = dict(zip(shown, _COLORS, strict=False))
    height = sum(len(present) * _BAR + _GAP for present in rows.values())
    values = [x for groups in panels.values() for g in groups for x in g.values.values()]
    longest = max(values, default=1.0)
    with style():
        page = Page.blank(_NAMES + len(panels) * (_PANEL + _SPACE), _TOP + height + _BOTTOM)
        page.text(0.15, 0.28, title, fontsize=10, color=INK)
        _legend(page, colors)
        for number, (head, groups) in enumerate(panels.items()):
            left = _NAMES + number * (_PANEL + _SPACE)
            axes = page.axes(left, _TOP, _PANEL, height)
            middles = _panel(axes, {g.name: g for g in groups}, rows, colors)
            axes.set_title(head, fontsize=9, color=INK, loc="left", pad=4)
            axes.set_xlabel(unit, fontsize=8)
            axes.set_yticks(middles, list(rows) if number == 0 else [""] * len(rows))
            axes.set_ylim(height, 0)
            axes.set_xlim(0, 1.1 * longest)
        page.save(path, kind)


def _rows(panels: Mapping[str, Sequence[Group]], order: Sequence[str]) -> dict[str, list[str]]:
    """The series that each name has in any panel, in order."""
    found: dict[str, set[str]] = {}
    for groups in panels.values():
        for group in groups:
            found.setdefault(group.name, set()).update(group.values)
    return {name: [s for s in order if s in present] for name, present in found.items()}


def _legend(page: Page, colors: Mapping[str, str]) -> None:
    left = 0.15
    for series, color in colors.items():
        page.swatch(left, 0.52, color)
        page.text(left + 0.19, 0.52, series, fontsize=8, color=QUIET)
        left += 0.42 + 0.075 * len(series)


def _panel(
    axes: Axes, groups: Mapping[str, Group], rows: Mapping[str, Sequence[str]],
    colors: Mapping[str, str],
) -> list[float]:  # fmt: skip
    """Draw one panel, in inches from its top; returns the middles of the groups."""
    middles, top = [], _GAP / 2
    for name, present in rows.items():
        group = groups.get(name, Group(name, {}))
        for number, series in enumerate(present):
            value, y = group.values.get(series), top + (number + 0.5) * _BAR
            if value is None:
                continue
            axes.barh(y, value, 0.92 * _BAR, color=colors[series])
            if number == 0 and group.label:
                axes.annotate(
                    group.label, (value, y), (3, 0), textcoords="offset points", va="center",
                    fontsize=6.5, color=INK,
                )  # fmt: skip
        middles.append(top + len(present) * _BAR / 2)
        top += len(present) * _BAR + _GAP
    axes.tick_params(labelsize=7.5, length=0)
    axes.grid(axis="x", color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    return middles
