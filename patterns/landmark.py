"""Landmark tokens: a window and the last token of every block.

Amirkeivan Mohtashami, Martin Jaggi, "Landmark Attention: Random-Access Infinite Context Length for
Transformers", 2023.
https://arxiv.org/abs/2305.16300

Definition: k <= p and (p - k < window or k mod block == block - 1). This is the static part;
`landmark_selection` opens the blocks whose landmarks score best.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def landmark(*, window: int = 256, block: int = 64) -> mc.Mask:
    """The last `window` keys, and the landmark that ends each block."""
    return mc.causal() & (mc.window.hf(window) | mc.strided(block, block - 1))


def main() -> None:
    landmark(window=32, block=16).show(256)


if __name__ == "__main__":
    main()
