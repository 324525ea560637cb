"""Full attention.

Ashish Vaswani et al., "Attention Is All You Need", 2017: the encoder.
https://arxiv.org/abs/1706.03762

Definition: every query sees every key.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def full() -> mc.Mask:
    """Every pair."""
    return mc.full()


def main() -> None:
    full().show(256)


if __name__ == "__main__":
    main()
