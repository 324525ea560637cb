"""Mixture of block attention: a query's own block and the past blocks nearest to it on average.

Enzhe Lu et al., "MoBA: Mixture of Block Attention for Long-Context LLMs", 2025.
https://arxiv.org/abs/2502.13189

Definition: with I = p // block and J = k // block, (J == I and k <= p) or J in the top - 1 best of
the blocks J < I by q . mean of the keys of J; ties go to the lower block. `top` counts the query's
own block. Every head selects independently. With packed=True a row holds several documents, and
each document sees and selects as it would alone.

Data if packed: `doc`, ids of the documents [N] or [B, N], or mc.cu_seqlens(x); `q_position` and
`k_position`, the position of each token in its document, [N] or [B, N].
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def moba(*, block: int = 512, top: int = 3, packed: bool = False) -> mc.Mask:
    """The current block, causal, and the best `top` - 1 before it."""
    if packed:
        at, same = mc.positions(q="q_position", k="k_position"), mc.documents("doc")
        own = mc.chunked(block, at=at)
        before = same & (mc.causal(at=at) - own)
        best = mc.topk(top - 1, of=before, score="block_mean", block=block, at=at)
        return (same & own) | best
    past = mc.n_kv - mc.n_q
    earlier = mc.where(lambda q, k: k // block < (q + past) // block)
    return mc.chunked(block) | mc.topk(top - 1, of=earlier, score="block_mean", block=block)


def main() -> None:
    moba(block=16).show(256)


if __name__ == "__main__":
    main()
