"""Longformer: a window on both sides and a few global tokens.

Iz Beltagy, Matthew E. Peters, Arman Cohan, "Longformer: The Long-Document Transformer", 2020.
https://arxiv.org/abs/2004.05150

Definition: |p - k| <= window or G[p] or G[k], where G holds the first `n_global` tokens. In the
paper's code attention_window = 2 * window.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def longformer(*, window: int = 256, n_global: int = 64) -> mc.Mask:
    """`window` keys on each side, and the first `n_global` tokens with everyone."""
    return mc.window(window, window) | mc.global_tokens(n_global)


def main() -> None:
    longformer(window=16, n_global=8).show(256)


if __name__ == "__main__":
    main()
