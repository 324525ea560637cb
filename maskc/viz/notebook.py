"""A mask as HTML with SVG, for notebooks; nothing but NumPy is needed to draw it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from maskc.core.svg import MAX_CELLS, page, panel
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import data_of_calls
from maskc.ir.heads import written_heads as written_heads
from maskc.viz import words
from maskc.viz.picture import Picture, picture
from maskc.viz.shown_lengths import showing

_PANELS = 8
"""Sets of heads that are drawn, at most."""
_LONGEST = 400
"""Characters of a mask's text in a title."""


def html(mask: Mask) -> str:
    """The mask at the lengths at which it has its shape.

    A mask that reads data shows its text and the names of the data.
    """
    text = words.cut(repr(mask), _LONGEST)
    if wanted := data_of_calls(mask):
        given = ", ".join(f"{decl.name}=..." for decl in wanted)
        return page(text, [f"reads data: mask.show(n, {given}) draws it"], [])
    n_q, n_kv = showing(mask, written_heads(mask))
    return html_of(picture(mask, n_q, n_kv, n_heads=written_heads(mask)))


def html_of(shown: Picture) -> str:
    """A picture as HTML."""
    panels = []
    for shown_panel in shown.panels[:_PANELS]:
        cells = shown_panel.raster.fit(MAX_CELLS, MAX_CELLS)
        n_q, n_kv = shown.span.shape
        caption = f"{words.percent(shown_panel.numbers.live_share)} live"
        if shown_panel.heads:
            caption = f"{words.heads(shown_panel.heads)}: {caption}"
        panels.append((caption, panel(cells.classes, cells.share, max(n_q, 1) / max(n_kv, 1))))
    more = len(shown.panels) - len(panels)
    notes = [f"and {more} more sets of heads"] if more > 0 else []
    first = shown.panels[0].numbers
    notes.append(
        f"{words.lengths(shown)}; {words.tiles(shown, first)}: {first.full:,} full, "
        f"{first.partial:,} partial, {first.empty:,} empty"
    )
    return page(shown.formula, notes, panels)


def show(
    mask: Mask, n_q: int | None, n_kv: int | None, n_heads: int | None, data: Mapping[str, object]
) -> None:
    """See Mask.show."""
    from maskc.viz.terminal import render

    heads = n_heads or written_heads(mask)
    if n_q is None:
        n_q, n_kv = showing(mask, heads)
    shown = picture(mask, n_q, n_kv, n_heads=heads, data=data)
    display = _display()
    if display is None:
        print(render(shown), end="")
    else:
        display({"text/html": html_of(shown), "text/plain": render(shown)}, raw=True)


def _display() -> Callable[..., object] | None:
    """Return IPython's display function; None outside a notebook."""
    import sys

    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    shown: Callable[..., object] = import_module("IPython.display").display
    return shown
