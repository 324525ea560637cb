"""Attention sinks with a sliding window (StreamingLLM).

Guangxuan Xiao, Yuandong Tian, Beidi Chen, Song Han, Mike Lewis, "Efficient Streaming Language
Models with Attention Sinks", 2023.
https://arxiv.org/abs/2309.17453

Definition: k <= p and (k < n_sinks or p - k < window); the window counts the query itself.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def streaming(*, n_sinks: int = 4, window: int = 1024) -> mc.Mask:
    """The first `n_sinks` keys and the last `window`."""
    return mc.causal() & (mc.sinks(n_sinks) | mc.window.hf(window))


def main() -> None:
    streaming(n_sinks=8, window=32).show(256)


if __name__ == "__main__":
    main()
