"""BigBird with an internal global block at each end.

Manzil Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020: internal transformer
construction, with the global and window blocks of the published code.
https://arxiv.org/abs/2007.14062

Definition, over blocks I = p // block and J = k // block, with nb = ceil(n / block) blocks:
I in {0, nb - 1} or J in {0, nb - 1} or |I - J| <= 1 or J in R(I), where R(I) holds the `n_random`
block columns with the smallest splitmix64(seed, I, J). The paper draws R(I) from the blocks that
the other terms do not keep; here it is drawn from all blocks.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def bigbird_itc(*, block: int = 64, n_random: int = 3, seed: int = 0) -> mc.Mask:
    """Global end blocks, a window of three blocks and `n_random` random ones."""

    def ends_and_window(q, k):
        last = (mc.n_kv - 1) // block
        i, j = (q + mc.n_kv - mc.n_q) // block, k // block
        ends = (i == 0) | (i == last) | (j == 0) | (j == last)
        return ends | (abs(i - j) <= 1)

    return mc.where(ends_and_window) | mc.random_blocks(block, n_random, seed)


def main() -> None:
    bigbird_itc(block=8, n_random=2).show(256)


if __name__ == "__main__":
    main()
