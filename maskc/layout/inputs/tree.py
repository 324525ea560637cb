"""Parent arrays as the entry and exit times of a depth-first walk."""

from __future__ import annotations

import numpy as np

from maskc.core.errors import DataRange

_HINT = "parents are token indices; -1 marks a root"


def walk_times(name: str, parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(tin, tout), int64 [N] each: the tokens below k, and k, enter at tin[k] .. tout[k] - 1.

    Roots and children are visited in the order of their indices.

    Args:
        name: what an error calls the array.
        parents: integers [N], -1 for a root; a parent may come after its child.

    Raises:
        DataRange: an index outside the array, or tokens that hang from a cycle.
    """
    count = len(parents)
    wrong = (parents < -1) | (parents >= count)  # as given: in 64 signed bits 2^64 - 1 is a root
    if wrong.any():
        at = int(np.argmax(wrong))
        found = f"the parent of token {at} is {parents[at]}, not in -1..{count - 1}"
        raise DataRange(name, found, _HINT, at=name)
    parents = parents.astype(np.int64)
    children = np.argsort(parents, kind="stable")
    starts = np.searchsorted(parents[children], np.arange(-1, count + 1)).tolist()
    order = children.tolist()
    visited: list[int] = []
    stack = order[: starts[1]][::-1]
    while stack:
        token = stack.pop()
        visited.append(token)
        stack.extend(reversed(order[starts[token + 1] : starts[token + 2]]))
    if len(visited) < count:
        lost = int(np.setdiff1d(np.arange(count), visited)[0])
        raise DataRange(name, f"token {lost} hangs from a cycle of parents", _HINT, at=name)
    above, sizes = parents.tolist(), [1] * count
    for token in reversed(visited):
        if above[token] >= 0:
            sizes[above[token]] += sizes[token]
    tin = np.empty(count, dtype=np.int64)
    tin[visited] = np.arange(count)
    return tin, tin + np.array(sizes, dtype=np.int64)
