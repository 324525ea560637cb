"""Packed documents that do not see each other.

Mario Michael Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021.
https://arxiv.org/abs/2107.02027

Definition: doc[q] == doc[k], and k <= p if `causal`.

Data: `doc`, one id per token (or mc.cu_seqlens of the packed lengths).
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def documents(*, causal: bool = True) -> mc.Mask:
    """Each document sees itself only."""
    same = mc.documents("doc")
    return mc.causal() & same if causal else same


def main() -> None:
    documents().show(256, doc=mc.cu_seqlens([0, 40, 130, 150, 256]))


if __name__ == "__main__":
    main()
