"""Write docs/patterns.md, the gallery of published masks, and draw its pictures for the site."""

from __future__ import annotations

from pathlib import Path

from maskc import patterns
from maskc.core.errors import MaskcError
from maskc.core.svg import panel
from maskc.dsl.mask import Mask
from maskc.ir.heads import written_heads
from maskc.verify.samples import sample_data
from maskc.viz.picture import picture

PAGE = Path(__file__).with_name("patterns.md")
LENGTH = 4096
"""Sequence length of the price."""
TOKENS = 256
"""Sequence length of the pictures."""
CELLS = 64
"""Width of a picture in cells: the page holds many pictures."""

HEAD = """\
# Patterns

Use a published mask by name. Each is one short file with its paper and definition.
`mc.patterns.longformer(window=128)` creates the mask in Python, `maskc visualize longformer` draws
it, and `maskc explain longformer` predicts its cost. To write your own pattern, start with
`maskc init`.

The last column shows the sparsity: the mean number of keys per query at 4,096 tokens, with default
parameters. It is an exact count. "By the data" means that the data of a call determine it.

| pattern | what it is | paper | keys a query |
|---|---|---|---:|
"""

SMALL = {
    "axial": {"width": 16},
    "bigbird_etc": {"block": 16, "n_global": 8},
    "bigbird_itc": {"block": 16},
    "block_diagonal": {"size": 32},
    "block_diffusion": {"block": 32},
    "chunked": {"size": 64},
    "dilated_longformer": {"window": 12, "dilation": 3, "n_global": 6},
    "exponential_dilation": {"window": 12},
    "landmark": {"window": 24, "block": 16},
    "longformer": {"window": 16, "n_global": 8},
    "natten_1d": {"kernel": 41},
    "natten_2d": {"width": 16, "kernel": (5, 5)},
    "nsa_sliding": {"window": 48},
    "prefix_lm": {"n_prefix": 96},
    "sliding_window": {"window": 48},
    "sparse_transformer_fixed": {"length": 32, "summary": 6},
    "sparse_transformer_strided": {"stride": 24},
    "streaming": {"n_sinks": 8, "window": 40},
    "swin": {"width": 16, "window": 4, "shift": 2},
    "tri_shape": {"n_sinks": 8, "window": 40, "last": 24},
}
"""Small parameters for the pictures: the papers' sizes would fill 256 tokens."""


def price(mask: Mask) -> str:
    """Return the mean number of keys per query."""
    heads = written_heads(mask)
    try:
        pairs = mask.count(LENGTH, n_heads=heads)
    except MaskcError:
        return "by the data"
    return f"{pairs / LENGTH / (heads or 1):,.0f}"


def row(name: str) -> str:
    """Return a line of the table."""
    about = patterns.about(name)
    link = f"[`{name}`](../patterns/{name}.py)"
    return f"| {link} | {about.title} | {about.paper} | {price(getattr(patterns, name)())} |\n"


def page() -> str:
    """Return the text of docs/patterns.md."""
    return HEAD + "".join(map(row, patterns.names()))


def drawings() -> str:
    """Return a picture of every pattern as HTML, which the site shows below the table."""
    shown = []
    for name in patterns.names():
        mask = getattr(patterns, name)(**SMALL.get(name, {}))
        try:
            drawn = picture(
                mask, TOKENS, n_heads=written_heads(mask), data=sample_data(mask, TOKENS)
            ).panels[0]
        except MaskcError:  # its sizes fit no 256 tokens
            continue
        cells = drawn.raster.fit(CELLS, CELLS)
        drawing = panel(cells.classes, cells.share, 1)
        caption = f"<figcaption><code>{name}</code></figcaption>"
        shown.append(f'<figure style="margin:0">{drawing}{caption}</figure>')
    style = "display:flex;flex-wrap:wrap;gap:1rem"
    return f'<div style="{style}">{"".join(shown)}</div>'


if __name__ == "__main__":
    PAGE.write_text(page())
