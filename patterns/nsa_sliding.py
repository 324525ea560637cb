"""Native sparse attention, the sliding branch.

Jingyang Yuan et al., "Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse
Attention", 2025.
https://arxiv.org/abs/2502.11089

Definition: 0 <= p - k < window; the window counts the query itself. NSA computes three attentions
and adds them with gates, which is left to the caller; `nsa_selected` chooses blocks at run time.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def nsa_sliding(*, window: int = 512) -> mc.Mask:
    """The last `window` keys."""
    return mc.window.hf(window)


def main() -> None:
    nsa_sliding(window=32).show(256)


if __name__ == "__main__":
    main()
