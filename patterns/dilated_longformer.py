"""Longformer with a dilated window.

Iz Beltagy, Matthew E. Peters, Arman Cohan, "Longformer: The Long-Document Transformer", 2020:
the dilated heads of the upper layers.
https://arxiv.org/abs/2004.05150

Definition: |p - k| <= window * dilation and (p - k) mod dilation == 0, or G[p] or G[k], where G
holds the first `n_global` tokens.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def dilated_longformer(*, window: int = 256, dilation: int = 2, n_global: int = 64) -> mc.Mask:
    """`window` keys on each side, `dilation` apart, and global tokens."""
    return mc.dilated(window, window, stride=dilation) | mc.global_tokens(n_global)


def main() -> None:
    dilated_longformer(window=8, dilation=8, n_global=8).show(256)


if __name__ == "__main__":
    main()
