"""Writes docs/patterns.md, the gallery of published masks, and draws its pictures for the site."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import maskc as mc
from maskc import patterns
from maskc.core.data import ranking_of
from maskc.core.svg import panel
from maskc.ir.heads import differs_by_head
from maskc.verify.samples import sample_data
from maskc.viz.notebook import heads_of
from maskc.viz.picture import picture

PAGE = Path(__file__).with_name("patterns.md")
LENGTHS = (4096, 65_536)
TOKENS = 256
"""Of a picture."""

HEAD = """\
# Patterns

The library of published masks: each is a file of a screen or less, with its paper and its definition.
`mc.patterns.longformer(window=128)` makes the mask in Python, `maskc visualize longformer` draws it, and
`maskc explain longformer` says what it costs on a machine. A pattern of your own begins with `maskc init`.

The price is the number of keys that a query reads, on average, with the parameters as they are: exact
counts, not samples. A mask whose price grows with the length costs time that grows with its square.
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
"""Parameters of pictures: the papers' sizes would fill 256 tokens."""
