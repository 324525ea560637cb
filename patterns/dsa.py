"""DeepSeek sparse attention: the keys that a lightning indexer scores best.

DeepSeek-AI, "DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse Attention",
2025.
https://github.com/deepseek-ai/DeepSeek-V3.2-Exp

Definition: the min(top, n) keys k <= p with the highest s(q, k) = sum over index heads j of
w[q, j] * relu(qi[q, j] . ki[k]); ties go to the lower k. All heads share the selection.

Data: `index_q` [B, J, n_q, Di], `index_k` [B, n_kv, Di], `index_w` [B, J, n_q]. The model uses
E4M3: multiply the scales of queries into `index_w`, and pass the scales of keys [B, n_kv] as
`index_k=(keys, scales)`.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def dsa(*, top: int = 2048) -> mc.Mask:
    """The `top` best keys up to the query, by the indexer."""
    return mc.topk(top, of=mc.causal(), score="indexer", share="all")


def main() -> None:
    dsa(top=24).show(256)


if __name__ == "__main__":
    main()
