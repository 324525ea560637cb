"""Landmark attention at inference: a query's own block and the blocks whose landmarks score best.

Amirkeivan Mohtashami, Martin Jaggi, "Landmark Attention: Random-Access Infinite Context Length for
Transformers", 2023.
https://arxiv.org/abs/2305.16300

Definition: with I = p // block and J = k // block, (J == I and k <= p) or J in the `top` best of
the blocks J < I by their scores for the query; ties go to the lower block. Every head selects
independently. The pattern defines the pairs only. The paper also groups the softmax by block, which
is left to the caller.

Data: `scores` [B, H, n_q, key blocks], the query's product with the landmark of each block.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def landmark_selection(*, block: int = 64, top: int = 4) -> mc.Mask:
    """The current block, causal, and the `top` past blocks whose landmarks score best."""
    past = mc.n_kv - mc.n_q
    earlier = mc.where(lambda q, k: k // block < (q + past) // block)
    return mc.chunked(block) | mc.topk(top, of=earlier, score="given", block=block)


def main() -> None:
    landmark_selection(block=16, top=2).show(256)


if __name__ == "__main__":
    main()
