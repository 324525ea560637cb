"""Block-diagonal attention.

Jiezhong Qiu et al., "Blockwise Self-Attention for Long Document Understanding", 2019: the heads
whose permutation of blocks is the identity.
https://arxiv.org/abs/1911.02972

Definition: p // size == k // size.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def block_diagonal(*, size: int = 128) -> mc.Mask:
    """Each block of `size` tokens sees itself."""
    return mc.block_diagonal(size)


def main() -> None:
    block_diagonal(size=32).show(256)


if __name__ == "__main__":
    main()
