"""BigBird with extra global tokens in front.

Manzil Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020: extended transformer
construction, after Joshua Ainslie et al., "ETC: Encoding Long and Structured Inputs in
Transformers", 2020.
https://arxiv.org/abs/2007.14062

Definition: BigBird-ITC (see bigbird_itc.py), or p < n_global or k < n_global: the caller prepends
`n_global` tokens. Blocks are counted from the first global token, over the whole sequence.
"""

from __future__ import annotations

from bigbird_itc import bigbird_itc

import maskc as mc


@mc.pattern
def bigbird_etc(
    *, block: int = 64, n_random: int = 3, seed: int = 0, n_global: int = 64
) -> mc.Mask:
    """BigBird-ITC and `n_global` global tokens in front."""
    itc = bigbird_itc(block=block, n_random=n_random, seed=seed)
    return itc | mc.global_tokens(n_global)


def main() -> None:
    bigbird_etc(block=8, n_random=2, n_global=16).show(256)


if __name__ == "__main__":
    main()
