"""Top-k attention: each query sees the keys with which its product is largest.

Ankit Gupta et al., "Memory-efficient Transformers via Top-k Attention", 2021.
https://arxiv.org/abs/2106.06899

Definition: of the keys k <= p (of all keys where not `causal`) the `top` best by q . k; equal
scores: the lower k. Every head selects for itself.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def topk_attention(*, top: int = 64, causal: bool = True) -> mc.Mask:
    """The `top` keys nearest to the query."""
    return mc.topk(top, of=mc.causal() if causal else mc.full())


def main() -> None:
    topk_attention(top=24).show(256)


if __name__ == "__main__":
    main()
