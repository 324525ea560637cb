"""Sparse Transformer, fixed.

Rewon Child, Scott Gray, Alec Radford, Ilya Sutskever, "Generating Long Sequences with Sparse
Transformers", 2019.
https://arxiv.org/abs/1904.10509

Definition: k <= p and (p // length == k // length or k mod length >= length - summary).
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def sparse_transformer_fixed(*, length: int = 128, summary: int = 8) -> mc.Mask:
    """The query's own block, and the last `summary` keys of every earlier one."""
    summaries = mc.where(lambda q, k: k % length >= length - summary)
    return mc.chunked(length) | (mc.causal() & summaries)


def main() -> None:
    sparse_transformer_fixed(length=32, summary=4).show(256)


if __name__ == "__main__":
    main()
