"""Vertical-slash: chosen columns and chosen diagonals.

Huiqiang Jiang et al., "MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic
Sparse Attention", 2024. MInference estimates the lines of each head from the last queries; here
they are parameters.
https://arxiv.org/abs/2407.02490

Definition: k <= p and (k in columns or p - k in slashes).
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def vertical_slash(
    *,
    columns: tuple[int, ...] = (0, 1, 2, 3),
    slashes: tuple[int, ...] = (0, 1, 2, 3, 256, 512),
) -> mc.Mask:
    """The keys in `columns`, and the keys at the distances in `slashes`."""
    return mc.causal() & (mc.global_tokens(columns).columns | mc.offsets(slashes))


def main() -> None:
    vertical_slash(columns=(0, 1, 2, 3, 80, 81), slashes=tuple(range(16)) + (96, 97)).show(256)


if __name__ == "__main__":
    main()
