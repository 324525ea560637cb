"""LogSparse: keys at distances that are powers of two.

Shiyang Li et al., "Enhancing the Locality and Breaking the Memory Bottleneck of Transformer on Time
Series Forecasting", 2019.
https://arxiv.org/abs/1907.00235

Definition: (k == p, or p - k is a power of two, or 0 <= p - k < local) and
p // restart == k // restart. `local` is the paper's local attention and counts the query itself;
`restart` is its restart attention. 0 turns either term off. Powers up to 2^30 cover every length.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def logsparse(*, local: int = 0, restart: int = 0) -> mc.Mask:
    """The query itself and keys 1, 2, 4, 8, ... before it."""
    mask = mc.offsets([0, *(2**i for i in range(31))])
    if local:
        mask = mask | mc.window.hf(local)
    return mask & mc.block_diagonal(restart) if restart else mask


def main() -> None:
    logsparse(local=8).show(256)


if __name__ == "__main__":
    main()
