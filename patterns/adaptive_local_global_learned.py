"""Adaptive Local-Global by learning: sinks, a local window, and the blocks that a gate opens.

The gate of Yizhao Gao et al., "SeerAttention: Learning Intrinsic Sparse Attention in Your LLMs",
2024, with a local window.
https://arxiv.org/abs/2410.13276

Definition: with near = (k < n_sinks or p - k < window), I = q // q_block and J = k // block, k <= p
and (near or J in the `top` best blocks by the gate's score for I); a block is a candidate only if a
query of I has a causal key in it that is not near; ties go to the lower block. Every head selects
independently.

Data: `scores` [B, H, query blocks, key blocks], the trained gate's score of each pair of blocks.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def adaptive_local_global_learned(
    *, n_sinks: int = 4, window: int = 256, block: int = 64, q_block: int = 64, top: int = 8
) -> mc.Mask:
    """The first tokens, the last `window` keys, and the `top` blocks that the gate opens."""
    local = mc.causal() & (mc.sinks(n_sinks) | mc.window.hf(window))
    return local | mc.topk(
        top, of=mc.causal() - local, score="given", block=block, q_block=q_block
    )  # fmt: skip


def main() -> None:
    adaptive_local_global_learned(window=24, block=16, q_block=16, top=3).show(256)


if __name__ == "__main__":
    main()
