"""Draws docs/gallery.png: a panel for each published mask that needs no data."""

from __future__ import annotations

from pathlib import Path

import maskc as mc
from maskc.viz.figure import gallery

ROOT = Path(__file__).parent.parent

# Defaults are the papers' sizes; at 256 tokens smaller ones show the shape.
SMALL = {
    "axial": {"width": 16},
    "bigbird_itc": {"block": 16},
    "block_diagonal": {"size": 32},
    "chunked": {"size": 64},
    "dilated_longformer": {"window": 12, "dilation": 3, "n_global": 6},
    "exponential_dilation": {"window": 12},
    "landmark": {"window": 24, "block": 16},
    "longformer": {"window": 16, "n_global": 8},
    "natten_1d": {"kernel": 41},
    "prefix_lm": {"n_prefix": 96},
    "sliding_window": {"window": 48},
    "sparse_transformer_fixed": {"length": 32, "summary": 6},
    "sparse_transformer_strided": {"stride": 24},
    "streaming": {"n_sinks": 8, "window": 40},
    "swin": {"width": 16, "window": 4, "shift": 2},
    "tri_shape": {"n_sinks": 8, "window": 40, "last": 24},
}
DRAWN = [
    "causal", "sliding_window", "streaming", "tri_shape", "block_diagonal", "chunked",
    "prefix_lm", "longformer", "dilated_longformer", "bigbird_itc", "sparse_transformer_strided",
    "sparse_transformer_fixed", "exponential_dilation", "logsparse", "landmark", "natten_1d",
    "swin", "axial",
]  # fmt: skip


def main() -> None:
    masks = {}
    for name in DRAWN:
        pattern = mc.load(ROOT / "patterns" / f"{name}.py")[name]
        masks[name] = pattern(**SMALL.get(name, {}))
    gallery(masks, ROOT / "docs" / "gallery.png", columns=6)


if __name__ == "__main__":
    main()
