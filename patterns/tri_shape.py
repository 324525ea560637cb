"""Tri-shape: streaming attention whose last queries see everything.

Yucheng Li, Huiqiang Jiang et al., "SCBench: A KV Cache-Centric Analysis of Long-Context Methods",
2024.
https://arxiv.org/abs/2412.10319

Definition: k <= p and (k < n_sinks or p - k < window or q >= n_q - last).
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def tri_shape(*, n_sinks: int = 128, window: int = 4096, last: int = 128) -> mc.Mask:
    """Sinks, a window, and a dense triangle for the last queries."""
    final = mc.where(lambda q, k: q >= mc.n_q - last)
    return mc.causal() & (mc.sinks(n_sinks) | mc.window.hf(window) | final)


def main() -> None:
    tri_shape(n_sinks=16, window=48, last=32).show(256)


if __name__ == "__main__":
    main()
