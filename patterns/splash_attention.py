"""SplashAttention: alpha-entmax over the keys nearest to a query.

After "SplashAttention" (github.com/mvideet/Adaptive-Splash-Attention); the normaliser is that of
Ben Peters, Vlad Niculae and Andre F. T. Martins, "Sparse Sequence-to-Sequence Models", 2019.
https://arxiv.org/abs/1905.05702

Definition: the `top` keys k <= p with the highest q . k; ties go to the lower k. Every head selects
independently. The weights are alpha-entmax of the scores; the call says so:
`attn(q, k, v, normalizer="entmax", alpha=1.5)`. If entmax over all k <= p gives weight to at most
`top` keys, the selection does not change the result.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def splash_attention(*, top: int = 32) -> mc.Mask:
    """The `top` causal keys nearest to the query; call it with normalizer="entmax"."""
    return mc.topk(top, of=mc.causal())


def main() -> None:
    splash_attention(top=24).show(256)


if __name__ == "__main__":
    main()
