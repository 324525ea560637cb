"""Residue classes of tokens: which tokens each has, as views."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Classes:
    """Consecutive residue classes of equal sizes.

    Class i of them, 0 <= i < count, has keys first + i, first + i + stride, ... and queries
    first_query + i, first_query + i + stride, ...: all tokens whose position is first + i modulo
    stride.
    """

    first: int
    """The first class's residue of positions: its first key, where it has keys."""
    count: int
    """The number of classes."""
    first_query: int
    """The first query of the first class; 0 if these classes have no queries."""
    n_q: int
    """Queries of each class."""
    n_kv: int
    """Keys of each class."""


def classes(stride: int, n_q: int, n_kv: int) -> tuple[Classes, ...]:
    """The residue classes modulo stride >= 1 that have tokens, ascending: at most three runs.

    Every query and every key is in exactly one class; classes may have queries and no keys, or
    keys and no queries. With queries, n_kv - n_q of a class is the quotient of its first query's
    position by the stride: the class is aligned at its end, as the whole is.
    """
    offset = n_kv - n_q
    starts = sorted({0, offset % stride, n_kv % stride})  # where first_query wraps, n_kv shrinks
    groups: list[Classes] = []
    for first, end in zip(starts, [*starts[1:], stride], strict=True):
        first_query = (first - offset) % stride
        queries, keys = len(range(first_query, n_q, stride)), len(range(first, n_kv, stride))
        if queries or keys:
            first_query = first_query if queries else 0
            groups.append(Classes(first, end - first, first_query, queries, keys))
    return tuple(groups)


def views(stride: int, keys: int | None, n_q: int, n_kv: int) -> tuple[Classes, ...]:
    """Return the tokens that a part runs over: `classes`, or all queries and the keys of one
    residue."""
    if keys is None:
        return classes(stride, n_q, n_kv)
    return (Classes(keys, 1, 0, n_q, len(range(keys, n_kv, stride))),)
