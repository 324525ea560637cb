"""Sparse Transformer, strided.

Rewon Child, Scott Gray, Alec Radford, Ilya Sutskever, "Generating Long Sequences with Sparse
Transformers", 2019.
https://arxiv.org/abs/1904.10509

Definition: 0 <= p - k < stride, or k <= p and (p - k) mod stride == 0. This is the union of the
paper's two heads. Its window has stride + 1 keys in the paper's text and stride keys in its code;
this pattern follows the code.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def sparse_transformer_strided(*, stride: int = 128) -> mc.Mask:
    """The last `stride` keys, and every `stride`-th key before them."""
    return mc.window.hf(stride) | mc.dilated(mc.n_kv, stride=stride)


def main() -> None:
    sparse_transformer_strided(stride=16).show(256)


if __name__ == "__main__":
    main()
