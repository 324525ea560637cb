"""Causal attention.

Ashish Vaswani et al., "Attention Is All You Need", 2017: the decoder.
https://arxiv.org/abs/1706.03762

Definition: k <= p.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def causal() -> mc.Mask:
    """Each query sees itself and all earlier keys."""
    return mc.causal()


def main() -> None:
    causal().show(256)


if __name__ == "__main__":
    main()
