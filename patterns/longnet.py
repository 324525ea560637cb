"""LongNet: dilated segments, sparser as they grow longer.

Jiayu Ding et al., "LongNet: Scaling Transformers to 1,000,000,000 Tokens", 2023.
https://arxiv.org/abs/2307.02486

Definition: the union over (w, r) of p // w == k // w and p mod r == k mod r == h mod r, and k <= p
if `causal`. Positions mod r count from the start of the sequence. This equals the paper's count
from the start of the segment if r divides w. The paper computes one softmax for each (w, r) and
weighs the results by their denominators. The union is one softmax, in which a pair counts once.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def longnet(
    *,
    segments: tuple[int, ...] = (2048, 4096, 8192, 16384, 32768),
    rates: tuple[int, ...] = (1, 2, 4, 6, 12),
    causal: bool = True,
) -> mc.Mask:
    """Segments of each length, dilated by its rate, shifted by head."""

    def level(w, r):
        def same_phase(h, q, k):
            p = q + mc.n_kv - mc.n_q
            return (p % r == h % r) & (k % r == h % r)

        return mc.block_diagonal(w) & mc.where(same_phase) if r > 1 else mc.block_diagonal(w)

    mask = level(segments[0], rates[0])
    for w, r in zip(segments[1:], rates[1:], strict=True):
        mask = mask | level(w, r)
    return mc.causal() & mask if causal else mask


def main() -> None:
    longnet(segments=(16, 64, 256), rates=(1, 4, 16)).show(256, n_heads=2)


if __name__ == "__main__":
    main()
