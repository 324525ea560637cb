"""Causal sliding window.

Albert Q. Jiang et al., "Mistral 7B", 2023.
https://arxiv.org/abs/2310.06825

Definition: 0 <= p - k < window, so that a query sees `window` keys, itself included.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def sliding_window(*, window: int = 4096) -> mc.Mask:
    """The last `window` keys."""
    return mc.window.hf(window)


def main() -> None:
    sliding_window(window=32).show(256)


if __name__ == "__main__":
    main()
