"""Time and memory over lengths as log-log plots, one row a mask. matplotlib is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskc.viz.canvas import FULL, INK, LINE, QUIET, Page, format_of, style
from maskc.viz.words import scaled

LOOKS = {
    "maskc": (FULL, "o"), "dense": ("#f0a830", "s"), "sdpa_masked": ("#8a8f98", "^"),
    "flex": ("#3f9e8f", "D"), "unfused": ("#b5557f", "v"), "sparse": ("#7a5fb0", "P"),
    "cudnn_flex": ("#6b7f2a", "X"),
}  # fmt: skip
"""Colours by implementation, with maskc first; shapes for readers who cannot distinguish
colours."""
_LEFT, _TOP, _WIDE, _HIGH = 0.75, 0.75, 3.1, 2.3
_ACROSS, _DOWN = 0.8, 0.95
_MEASURES = (("ms", "ms"), ("peak_bytes", "peak memory"))


def growth_plot(rows: Sequence[dict[str, Any]], path: str | Path, *, title: str) -> None:
    """Draw a sweep into a PNG or SVG file; the same rows give the same bytes.

    Args:
        rows: of `verify.sweep`; wrong results are left out.
        path: *.png or *.svg.
        title: above all panels.

    Raises:
        UsageMistake: another suffix.
        ExtraMissing: matplotlib is not installed.
    """
    kind = format_of(path)
    right = [row for row in rows if row["ok"]]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    directions = list(dict.fromkeys(row["direction"] for row in rows))
    columns = [(direction, *measure) for direction in directions for measure in _MEASURES]
    with style():
        page = Page.blank(
            _LEFT + len(columns) * (_WIDE + _ACROSS), _TOP + len(cases) * (_HIGH + _DOWN)
        )
        page.text(0.15, 0.25, title, fontsize=10, color=INK)
        for down, case in enumerate(cases):
            for across, (direction, name, unit) in enumerate(columns):
                left, top = _LEFT + across * (_WIDE + _ACROSS), _TOP + down * (_HIGH + _DOWN)
                axes = page.axes(left, top, _WIDE, _HIGH)
                curve = [r for r in right if (r["case"], r["direction"]) == (case, direction)]
                _panel(axes, curve, name)
                axes.set_title(f"{case} {direction}: {unit}", fontsize=8, color=INK, loc="left")
                axes.set_xlabel("N", fontsize=8)
                if not across and axes.lines:
                    axes.legend(fontsize=7, frameon=False)
        page.save(path, kind)


def _panel(axes: Any, rows: Sequence[dict[str, Any]], name: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lengths = sorted({row["n_q"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for impl, (color, marker) in LOOKS.items():
        at = {r["n_q"]: r[name] for r in rows if r["impl"] == impl and r[name]}
        if at:
            axes.plot(
                sorted(at), [at[n] for n in sorted(at)], color=color, marker=marker,
                markersize=4, linewidth=2 if impl == "maskc" else 1.2, label=impl,
            )  # fmt: skip
    axes.grid(visible=True, which="major", color=LINE, linewidth=0.4)
    axes.tick_params(which="both", labelsize=7, colors=QUIET)
    axes.set_xticks(lengths, [_short(n) for n in lengths])
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    say = (lambda y, _: scaled(y, "B")) if name == "peak_bytes" else (lambda y, _: f"{y:g}")
    axes.yaxis.set_major_formatter(FuncFormatter(say))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _short(n: int) -> str:
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n)
