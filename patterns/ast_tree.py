"""Attention over a syntax tree: ancestors, descendants and siblings.

Ze Tang et al., "AST-Trans: Code Summarization with Efficient Tree-Structured Attention", 2022: the
union of its ancestor-descendant and sibling relations, without the limit on distance.
https://doi.org/10.1145/3510003.3510224

Definition: k is q, an ancestor of q, a descendant of q, or a child of q's parent; roots are
siblings of each other. Tokens are the nodes in depth-first order.

Data: `tree`, a pair (tin, tout) or mc.parents; `below`, a pair (lo, hi): the node itself and the
end of its subtree; `parent`, the parent of each node, -1 for roots.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def ast_tree() -> mc.Mask:
    """Each node sees its ancestors, its descendants and its siblings."""
    return mc.tree("tree") | mc.intervals("below") | mc.documents("parent")


def main() -> None:
    import numpy as np

    parent, size = np.array([-1, 0, 1, 1, 0, 4, 5, 5, 5, 4, 4, 0]), np.ones(12, dtype=int)
    for node in range(11, 0, -1):
        size[parent[node]] += size[node]
    start = np.arange(12)
    walk = start, start + size
    ast_tree().show(12, tree=walk, below=walk, parent=parent)


if __name__ == "__main__":
    main()
