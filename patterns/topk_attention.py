"""Top-k attention: each query sees the keys with the highest q . k.

Ankit Gupta et al., "Memory-efficient Transformers via Top-k Attention", 2021.
https://arxiv.org/abs/2106.06899

Definition: the `top` keys k <= p (all keys if not `causal`) with the highest q . k; ties go to the
lower k. Every head selects independently.
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
