"""Which rank holds which tokens: layouts as owners of consecutive chunks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from maskc.distributed.token_ranges import RangeSets, union

LAYOUTS = ("contiguous", "zigzag", "striped", "balanced")
"""Names of layouts, the simplest one first: of equals the first is taken."""

_CHUNKS = 8
"""Chunks a rank gets in the layouts `striped` and `balanced`, at most."""

_MOST_BLOCKS = 1 << 15
"""Blocks of a sequence, at most."""


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """The chunks of a sequence and who holds them."""

    name: str
    n: int
    ranks: int
    edges: np.ndarray
    """int64 [chunks + 1]: chunk i is edges[i] .. edges[i + 1] - 1; every chunk has a token."""
    owner: np.ndarray
    """int64 [chunks]: the rank that holds it."""

    @cached_property
    def own(self) -> RangeSets:
        """The tokens of each rank; a rank keeps them in this order."""
        return union(self.n, self.ranks, self.owner, self.edges[:-1], self.edges[1:])

    @cached_property
    def tokens(self) -> np.ndarray:
        """int64 [ranks]: how many tokens each rank has; some may have none."""
        return self.own.tokens

    def chunk(self, token: np.ndarray | int) -> np.ndarray:
        """The chunk in which each of these tokens is, of the shape of `token`."""
        return np.asarray(np.searchsorted(self.edges, token, side="right") - 1)

    def indices(self, rank: int) -> np.ndarray:
        """Return the tokens of a rank, in its order: int64 [tokens]."""
        parts = [np.arange(start, stop) for start, stop in self.own.of(rank)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @cached_property
    def order(self) -> np.ndarray:
        """int64 [n]: all tokens, those of rank 0 first."""
        return np.concatenate([self.indices(rank) for rank in range(self.ranks)])


def block_size(n: int, ranks: int, multiple: int = 1) -> int:
    """Tokens of the blocks that layouts are made of.

    128 where every rank gets several of them, as tiles of kernels have; less for short sequences,
    more for very long ones, and a multiple of what the mask's own blocks need.
    """
    size = 128
    while size > 1 and n < 8 * size * ranks:
        size //= 2
    while n > size * _MOST_BLOCKS:
        size *= 2
    return -(-size // multiple) * multiple


def make(name: str, n: int, ranks: int, block: int, cost: np.ndarray) -> TokenLayout:
    """One of the layouts.

    Args:
        name: one of LAYOUTS.
        n: tokens.
        ranks: number of ranks that share them.
        block: tokens per block; chunks consist of blocks.
        cost: float [blocks], cost of the queries of each block; only `balanced` reads it.
    """
    blocks = -(-n // block)
    if name == "contiguous":
        edges, owner = _even(blocks, ranks), np.arange(ranks)
    elif name == "zigzag":
        edges = _even(blocks, 2 * ranks)
        owner = np.concatenate([np.arange(ranks), np.arange(ranks)[::-1]])
    elif name == "striped":
        chunks = max(1, min(_CHUNKS, blocks // ranks))
        edges = _even(blocks, ranks * chunks)
        owner = np.tile(np.arange(ranks), chunks)
    else:
        edges, owner = _balanced(blocks, ranks, cost)
    edges = np.minimum(edges * block, n)
    some = np.diff(edges) > 0
    return TokenLayout(
        name, n, ranks, np.concatenate([edges[:-1][some], [n]]).astype(np.int64), owner[some]
    )


def _even(blocks: int, parts: int) -> np.ndarray:
    edges: np.ndarray = np.arange(parts + 1, dtype=np.int64) * blocks // parts
    return edges


def _balanced(blocks: int, ranks: int, cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The costliest chunk first, to the rank with the least so far that still has room.

    All ranks get as many chunks, as the layers between attentions take as long as their tokens are
    many. Of ranks with equal costs the one that holds a neighbour of the chunk takes it.
    """
    chunks = max(1, min(_CHUNKS, blocks // ranks))
    edges = _even(blocks, ranks * chunks)
    sums = np.concatenate([[0.0], np.cumsum(cost)])
    chunk = sums[edges[1:]] - sums[edges[:-1]]
    owner, room = [-1] * (ranks * chunks), [chunks] * ranks
    load = np.zeros(ranks)  # inf where there is no room
    for number in np.argsort(-chunk, kind="stable").tolist():
        rank = int(np.argmin(load))
        for neighbor in (number - 1, number + 1):
            near = owner[neighbor] if 0 <= neighbor < len(owner) else -1
            if near not in (-1, rank) and load[near] <= load[rank]:
                rank = near
                break
        owner[number] = rank
        room[rank] -= 1
        load[rank] = load[rank] + chunk[number] if room[rank] else np.inf
    return edges, np.array(owner)
