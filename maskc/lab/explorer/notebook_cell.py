"""The explorer in a notebook: a widget where anywidget is installed, else a frame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from html import escape
from typing import Any

from maskc import driver
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.ir.heads import written_heads
from maskc.lab.explorer.model import Plain
from maskc.lab.explorer.page import html, joined, source, text_of
from maskc.lab.explorer.page_model import Shown, page_model
from maskc.lab.explorer.sliders import movable_mask
from maskc.viz.shown_lengths import showing


def show(
    mask: Mask, /, n: int | None = None, n_kv: int | None = None, *, other: Mask | None = None,
    n_heads: int | None = None, target: str | None = None, height: int = 640, **data: Any,
) -> Any:  # fmt: skip
    """Show the explorer in a notebook: each pair of a mask, why it is live, its source and cost.

    It is the page of `maskc explore` in a notebook cell; `mask.show(n)` draws a static picture.

    Args:
        mask: any mask; its widths and counts become sliders.
        n: queries to begin with; long enough to show the shape of the mask when None.
        n_kv: keys; n when None.
        other: a mask to compare with.
        n_heads: query heads, as in `Mask.dense`; 8 if needed but not given.
        target: the target of the kernel and its predicted cost; sm_90a when None.
        height: height of the cell in pixels.
        data: the arrays and parameters that the masks name.

    Returns:
        A widget if anywidget is installed (`pip install 'maskc[notebook]'`), otherwise an object
        that shows the same page in an iframe. Notebooks display both.

    Raises:
        ExplorerTooLarge: the arrays are too large for a page (MC720).
        MaskcError: as `Mask.layout`.
    """
    for one in (mask, other):
        if one is not None and not isinstance(one, Mask):
            raise not_a_mask("mc.show", one, "mask")
    heads = n_heads or written_heads(mask)
    if n is None:
        n, n_kv = showing(mask, heads)
    first = _shown("mask", mask, data, frozenset())
    second = None
    if other is not None:
        second = _shown("other", other, data, frozenset(first.labels))
    model = page_model(
        first, n, n if n_kv is None else n_kv,
        problem=driver.problem(128, None, heads, "bfloat16"),
        target=Target.named(target or "sm_90a"), other=second, embedded=True,
    )  # fmt: skip
    widget = _widget_class()
    if widget is None:
        return Frame(model, height)
    return widget(page=text_of(model), height=height)


def _shown(name: str, mask: Mask, data: Mapping[str, object], taken: frozenset[str]) -> Shown:
    made = movable_mask(mask, taken)
    return Shown(name, made.mask, expression=str(mask), data=data, labels=made.labels, plain=mask)


class Frame:
    """The page in a frame that can reach nothing around it."""

    def __init__(self, model: Plain, height: int) -> None:
        self._model, self._height = model, height

    def _repr_html_(self) -> str:
        page = escape(html(self._model), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{page}" '
            f'style="width:100%;height:{int(self._height)}px;border:0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<the explorer of {self._model['mask']['formula']}; a notebook shows it>"


@cache
def _widget_class() -> Any:
    """The class of widgets; None if anywidget is not installed."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        return None

    class ExplorerWidget(anywidget.AnyWidget):  # type: ignore[misc,unused-ignore]
        """The page as a widget; what it shows is in `page`, as JSON."""

        _esm = joined("widget.js")
        _css = source("style.css")
        page = traitlets.Unicode("").tag(sync=True)
        height = traitlets.Int(640).tag(sync=True)

    return ExplorerWidget
