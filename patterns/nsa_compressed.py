"""Native sparse attention, the compressed branch.

Jingyang Yuan et al., "Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse
Attention", 2025.
https://arxiv.org/abs/2502.11089

Definition: key k stands for the tokens k * stride .. k * stride + length - 1, and query q sees it
if none of them is later than q: k * stride + length - 1 <= q. There are (n - length) // stride + 1
keys for n tokens, so there are fewer keys than queries, and q counts tokens from the start of the
sequence. NSA computes three attentions and adds them with gates, which is left to the caller;
`nsa_selected` chooses blocks at run time.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def nsa_compressed(*, length: int = 32, stride: int = 16) -> mc.Mask:
    """The compressed keys whose tokens all lie in the past."""
    return mc.where(lambda q, k: k * stride + length - 1 <= q)


def main() -> None:
    nsa_compressed(length=8, stride=4).show(256, 63)


if __name__ == "__main__":
    main()
