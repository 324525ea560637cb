"""Native sparse attention, the selected branch.

Jingyang Yuan et al., "Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse
Attention", 2025.
https://arxiv.org/abs/2502.11089

Definition: with I = p // block and J = k // block, k <= p and (J < initial or I - J < local or J in
the top - initial - local best of the other earlier blocks); `top` includes the fixed blocks. The
caller derives importance scores from the compressed branch. The query heads of a key/value head
select together, by the sum of their scores; ties go to the lower block. NSA computes three
attentions and adds them with gates, which is left to the caller.

Data: `scores` [B, H, n_q, key blocks], the importance of each block for each query and head.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def nsa_selected(
    *, block: int = 64, top: int = 16, initial: int = 1, local: int = 2
) -> mc.Mask:  # fmt: skip
    """The first and the last blocks, and the best blocks between them."""
    past = mc.n_kv - mc.n_q
    near = mc.where(lambda q, k: (q + past) // block - k // block < local)
    fixed = mc.causal() & (mc.prefix(initial * block) | near)
    rest = mc.topk(
        max(0, top - initial - local), of=mc.causal() - fixed, score="given", block=block,
        share="group",
    )  # fmt: skip
    return fixed | rest


def main() -> None:
    nsa_selected(block=8, top=6).show(256)


if __name__ == "__main__":
    main()
