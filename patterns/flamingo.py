"""Text that sees the latest image only (cross-attention).

Jean-Baptiste Alayrac et al., "Flamingo: a Visual Language Model for Few-Shot Learning", 2022.
https://arxiv.org/abs/2204.14198

Definition: image[q] == image[k], where image[q] is the number of the last image before text token q
(-1 if there is none; such a query sees nothing) and image[k] is the image of visual token k.

Data: `image`, a pair (for the text, for the visual tokens).
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def flamingo() -> mc.Mask:
    """Each text token sees the visual tokens of the image before it."""
    return mc.documents("image")


def main() -> None:
    import numpy as np

    text = np.repeat([-1, 0, 1, 2], [16, 80, 100, 60])
    flamingo().show(256, 192, image=(text, np.repeat([0, 1, 2], 64)))


if __name__ == "__main__":
    main()
