"""Several continuations of one prefix, packed behind it.

Jordan Juravsky et al., "Hydragen: High-Throughput LLM Inference with Shared Prefixes", 2024.
https://arxiv.org/abs/2402.05099

Definition: k <= p and (k < n_prefix or doc[q] == doc[k]).

Data: `doc`, one id per token; the prefix may have any id of its own.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def shared_prefix(*, n_prefix: int = 512) -> mc.Mask:
    """Each continuation sees the prefix and itself, causally."""
    return mc.causal() & (mc.prefix(n_prefix) | mc.documents("doc"))


def main() -> None:
    shared_prefix(n_prefix=64).show(256, doc=mc.cu_seqlens([0, 64, 128, 192, 256]))


if __name__ == "__main__":
    main()
