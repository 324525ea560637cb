"""DeepSeek sparse attention: the keys that a lightning indexer scores best.

DeepSeek-AI, "DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse Attention",
2025.
https://github.com/deepseek-ai/DeepSeek-V3.2-Exp

Definition: of the keys k <= p the min(top, n) best by s(q, k) = sum over index heads j of
w[q, j] * relu(qi[q, j] . ki[k]); equal scores: the lower k. All heads share the selection.

Data: `index_q` [B, J, n_q, Di], `index_k` [B, n_kv, Di], `index_w` [B, J, n_q]. In E4M3, as the
model has them, scales of queries belong into `index_w`, and those of keys beside these:
`index_k=(keys, scales)`, [B, n_kv].
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def dsa(*, top: int = 2048) -> mc.Mask:
    """The `top` best past keys by the indexer."""
    return mc.topk(top, of=mc.causal(), score="indexer", share="all")


def main() -> None:
    dsa(top=24).show(256)


if __name__ == "__main__":
    main()
