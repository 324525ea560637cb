"""A tree of draft tokens, verified at once.

Xupeng Miao et al., "SpecInfer: Accelerating Large Language Model Serving with Tree-based
Speculative Inference and Verification", 2023.
https://arxiv.org/abs/2305.09781

Definition: k is q or an ancestor of q: tin[k] <= tin[q] < tout[k], with the entry and exit times of
a depth-first walk.

Data: `tree`, a pair (tin, tout) or mc.parents of every token's parent. The context is part of the
tree, a chain above the first draft tokens. With a key/value cache, n_kv keys for n_q draft queries,
the arrays have n_kv entries and query q is token q + n_kv - n_q: the keys of the draft follow the
cached ones.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def speculative_tree() -> mc.Mask:
    """Each draft token sees itself and its ancestors."""
    return mc.tree("tree")


def main() -> None:
    context = list(range(-1, 63))
    draft = [63 if token < 3 else 64 + (token - 3) // 3 for token in range(64)]
    speculative_tree().show(128, tree=mc.parents(context + draft))


if __name__ == "__main__":
    main()
