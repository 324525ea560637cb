"""Block diffusion, training: a noised copy followed by the clean text.

Marianne Arriola et al., "Block Diffusion: Interpolating Between Autoregressive and Diffusion
Language Models", 2025.
https://arxiv.org/abs/2503.09573

Definition: there are 2 S tokens, and the first S are noised. With qn = q < S,
qb = (q mod S) // block, and the same for k: (qb == kb and qn == kn) or (qb > kb and qn and not kn)
or (qb >= kb and not qn and not kn). A noised block sees itself and the clean blocks before it. A
clean block sees the clean blocks up to itself. There are as many queries as keys, and their number
is even.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def block_diffusion(*, block: int = 16) -> mc.Mask:
    """Diffusion inside blocks of `block` tokens, autoregression between them."""

    def keep(q, k):
        half = mc.n_q // 2
        of_clean_q, of_clean_k = (q - half) // block, (k - half) // block
        noised = (q < half) & (k < half) & (q // block == k // block)
        across = (q < half) & (k >= half) & (q // block > of_clean_k)
        return noised | across | ((q >= half) & (k >= half) & (of_clean_q >= of_clean_k))

    return mc.where(keep)


def main() -> None:
    block_diffusion(block=16).show(256)


if __name__ == "__main__":
    main()
