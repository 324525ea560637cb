"""Causal windows whose dilation doubles from level to level.

The dilations of Aaron van den Oord et al., "WaveNet: A Generative Model for Raw Audio", 2016, all
levels in one attention instead of one per layer.
https://arxiv.org/abs/1609.03499

Definition: the union over level i < levels of 0 <= p - k < window * 2^i and (p - k) mod 2^i == 0:
at level i, `window` keys 2^i apart.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def exponential_dilation(*, window: int = 256, levels: int = 4) -> mc.Mask:
    """`window` keys at each of the distances 1, 2, 4, ... 2^(levels - 1)."""
    mask = mc.window.hf(window)
    for level in range(1, levels):
        mask = mask | mc.dilated(window - 1, stride=2**level)
    return mask


def main() -> None:
    exponential_dilation(window=16, levels=4).show(256)


if __name__ == "__main__":
    main()
