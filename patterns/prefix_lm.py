"""Prefix language model.

Colin Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", 2019.
https://arxiv.org/abs/1910.10683

Definition: k <= p or k < n_prefix.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def prefix_lm(*, n_prefix: int = 256) -> mc.Mask:
    """Causal, with a prefix that every query sees completely."""
    return mc.causal() | mc.prefix(n_prefix)


def main() -> None:
    prefix_lm(n_prefix=64).show(256)


if __name__ == "__main__":
    main()
