"""The elements of every figure: colours, a page measured in inches, a panel, a legend."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core.errors import UsageMistake, not_imported
from maskc.viz import words
from maskc.viz.picture import PairCells, Panel, Picture, Raster

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FULL, PARTIAL, EMPTY = "#1f5f99", "#f0a830", "#eff1f4"
"""Blue, amber and near white: distinguishable with any kind of colour vision, and in grey."""
INK, QUIET, LINE = "#1b1f24", "#5b6470", "#b9c0ca"
MONO = "DejaVu Sans Mono"

DPI = 100
_LINED = 8
"""Pixels a tile needs to be parted from its neighbours by thin lines."""
_FAINTEST = 0.45
"""Strength of the amber of a cell with almost no live pair."""

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": LINE,
    "axes.linewidth": 0.72,
    "axes.labelcolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
    "text.parse_math": False,
    "svg.hashsalt": "maskc",
    "svg.fonttype": "path",
}


def style() -> AbstractContextManager[None]:
    """matplotlib's settings while a figure is made.

    Raises:
        ExtraMissing: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise not_imported(error, "drawing PNG and SVG", "matplotlib", "figures") from error
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
    context: AbstractContextManager[None] = matplotlib.rc_context(settings)
    return context


def format_of(path: str | Path) -> str:
    """`png` or `svg`, by the suffix.

    Raises:
        UsageMistake: another suffix.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in ("png", "svg"):
        hint = "the suffix says which kind of picture to write"
        raise UsageMistake(f"{str(path)!r} is neither *.png nor *.svg", hint, at="path")
    return suffix


@dataclass(frozen=True, eq=False)
class Page:
    """A figure measured in inches from its top left corner; boxes lie on whole pixels."""

    figure: Figure
    width: float
    height: float

    @staticmethod
    def blank(width: float, height: float) -> Page:
        """A white page."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        width, height = round(width * DPI) / DPI, round(height * DPI) / DPI
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        return Page(figure, width, height)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes in a box, its corner moved to a whole pixel."""
        left, top = round(left * DPI) / DPI, round(top * DPI) / DPI
        bottom = self.height - top - height
        box = (
            left / self.width, bottom / self.height, width / self.width, height / self.height,
        )  # fmt: skip
        return self.figure.add_axes(box)

    def text(self, left: float, top: float, text: str, **look: Any) -> None:
        """Text whose baseline starts at a point."""
        self.figure.text(left / self.width, 1 - top / self.height, text, **look)

    def swatch(self, left: float, base: float, color: str, side: float = 0.13) -> None:
        """A small filled square that stands on a line of text."""
        from matplotlib.patches import Rectangle

        corner = left / self.width, 1 - (base + 0.02) / self.height
        self.figure.add_artist(
            Rectangle(
                corner, side / self.width, side / self.height,
                transform=self.figure.transFigure, facecolor=color, edgecolor=LINE, linewidth=0.6,
            )
        )  # fmt: skip

    def legend(
        self, left: float, base: float, entries: Iterable[tuple[str, str]], fontsize: float = 9
    ) -> None:
        """Swatches and words in a line of text."""
        for color, label in entries:
            self.swatch(left, base, color, side=0.0145 * fontsize)
            self.text(left + 0.022 * fontsize, base, label, fontsize=fontsize, color=QUIET)
            left += (0.055 + 0.0085 * len(label)) * fontsize

    def save(self, path: str | Path, kind: str) -> None:
        """Write the file, without a date."""
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        self.figure.savefig(path, format=kind, metadata=metadata)


def classes(raster: Raster) -> tuple[tuple[str, str], ...]:
    """(colour, meaning) of a raster's cells."""
    if raster.elements:
        return (FULL, "the query sees the key"), (EMPTY, "it does not")
    return (FULL, "full tile"), (PARTIAL, "partial tile"), (EMPTY, "empty tile")


@dataclass(frozen=True, eq=False)
class Drawn:
    """A raster shrunk and then sized so that every cell is a whole number of pixels."""

    shown: Picture
    panel: Panel
    cells: PairCells
    width: float
    height: float
    """The drawing's width and height in inches."""

    @property
    def pixels(self) -> float:
        """The shorter side of a cell."""
        rows, columns = self.cells.classes.shape
        inches: float = min(self.width / max(columns, 1), self.height / max(rows, 1))
        return inches * DPI


def sized(shown: Picture, panel: Panel, longest: float) -> Drawn:
    """The panel with about `longest` inches on its longer side; thin masks are widened a little."""
    n_q, n_kv = shown.span.shape
    ratio = max(n_q, 1) / max(n_kv, 1)
    width, height = longest * max(min(1, 1 / ratio), 0.2), longest * max(min(1, ratio), 0.2)
    cells = panel.raster.fit(int(height * DPI), int(width * DPI))
    rows, columns = (max(1, size) for size in cells.classes.shape)
    return Drawn(shown, panel, cells, _whole(width, columns), _whole(height, rows))


def _whole(inches: float, cells: int) -> float:
    return cells * max(1, round(inches * DPI / cells)) / DPI


def paint(page: Page, drawn: Drawn, left: float, top: float) -> Axes:
    """The cells in token coordinates, queries down, keys right."""
    axes = page.axes(left, top, drawn.width, drawn.height)
    span, unit, cells = drawn.shown.span, drawn.panel.raster.unit, drawn.cells
    rows, columns = cells.classes.shape
    down, right = (n * size for n, size in zip(cells.covers, unit, strict=True))
    if drawn.panel.numbers.pairs:
        # A last cell that reaches past the lengths is drawn whole, so axes end with it.
        box = (span.k0, span.k0 + columns * right, span.q0 + rows * down, span.q0)
        look: dict[str, Any] = {"interpolation": "none", "aspect": "auto", "zorder": 0}
        axes.imshow(_image(cells, drawn.panel.raster.elements), extent=box, **look)
        if drawn.pixels >= _LINED and not drawn.panel.raster.elements:
            look = {"colors": "white", "linewidth": 0.7, "zorder": 1}
            axes.vlines(range(box[0] + right, box[1], right), box[3], box[2], **look)
            axes.hlines(range(box[3] + down, box[2], down), box[0], box[1], **look)
    axes.set_xlim(span.k0, span.k0 + max(1, columns * right))
    axes.set_ylim(span.q0 + max(1, rows * down), span.q0)
    axes.set_xticks([])
    axes.set_yticks([])
    for name, edge in axes.spines.items():  # one pixel around the cells, none of them under it
        edge.set_position(("outward", 0.42 if name in ("left", "top") else 0.3))
    return axes


def scales(axes: Axes, drawn: Drawn, per_inch: float, names: bool = True) -> None:
    """Ticks in tokens, keys above and queries at the left, about `per_inch` of them an inch."""
    span = drawn.shown.span
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    longest = 0.085 * len(str(span.k1)) + 0.15
    across = max(2, int(drawn.width * min(per_inch, 1 / longest)))
    axes.set_xticks(words.ticks(span.k0, span.k1, across))
    axes.set_yticks(words.ticks(span.q0, span.q1, max(2, int(drawn.height * per_inch))))
    axes.ticklabel_format(style="plain", useOffset=False)
    axes.tick_params(length=3, width=0.8, labelsize=8, pad=2)
    if names:
        axes.set_xlabel("keys", fontsize=9, labelpad=5)
        axes.set_ylabel("queries", fontsize=9, labelpad=4)


def _image(cells: PairCells, elements: bool) -> np.ndarray:
    """float [rows, columns, 3]: the cells' colours; a share that is live is a strength."""
    empty, partial, full = map(rgb, (EMPTY, PARTIAL, FULL))
    share = cells.share[..., None]
    image: np.ndarray
    if elements:
        image = empty + share * (full - empty)
        return image
    image = empty + (_FAINTEST + (1 - _FAINTEST) * share) * (partial - empty)
    image[cells.classes == 0] = empty
    image[cells.classes == 2] = full
    return image


def rgb(name: str) -> np.ndarray:
    """A colour like #5b6470 as three numbers from 0 to 1."""
    return np.array([int(name[at : at + 2], 16) / 255 for at in (1, 3, 5)])
