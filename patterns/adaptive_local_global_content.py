"""Adaptive Local-Global by content: sinks, a local window, and the blocks nearest to the query.

After Chaojun Xiao et al., "InfLLM: Training-Free Long-Context Extrapolation for LLMs with an
Efficient Context Memory", 2024. InfLLM represents a block by some of its keys, this pattern by the
mean of all of them.
https://arxiv.org/abs/2402.04617

Definition: with near = (k < n_sinks or p - k < window) and J = k // block, k <= p and (near or J in
the `top` best blocks by q . mean of the block's keys); a block whose keys k <= p are all near is
not a candidate; ties go to the lower block. Every head selects independently. If block <= window,
no ranked mean contains a key after the query.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def adaptive_local_global_content(
    *, n_sinks: int = 4, window: int = 256, block: int = 64, top: int = 8
) -> mc.Mask:
    """The first tokens, the last `window` keys, and the `top` nearest earlier blocks."""
    local = mc.causal() & (mc.sinks(n_sinks) | mc.window.hf(window))
    return local | mc.topk(top, of=mc.causal() - local, score="block_mean", block=block)


def main() -> None:
    adaptive_local_global_content(window=24, block=16, top=3).show(256)


if __name__ == "__main__":
    main()
