"""Which rank holds which tokens, and in which order: layouts as owners of consecutive chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np

from maskc.core.errors import LayoutPositions, MaskcError
from maskc.distributed.token_ranges import PlacedTokens, RangeSets, union
from maskc.layout import to_host

LAYOUTS = ("contiguous", "zigzag", "striped", "balanced")
"""Names of layouts, the simplest one first: of equals the first is taken."""

GIVEN = "given"
"""The name of a layout that the caller brings."""

_CHUNKS = 8
"""Chunks a rank gets in the layouts `striped` and `balanced`, at most."""

_MAX_BLOCKS = 1 << 15
"""Blocks of a sequence, at most."""

_MAX_GIVEN = 1 << 12
"""Blocks of a sequence, at most, where chunks that the caller brings are shorter than a block."""


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
    slot: np.ndarray = field(default=None)  # type: ignore[arg-type]
    """int64 [chunks]: where the first token of each chunk lies among the tokens of its rank. By
    default a rank keeps its tokens in the order of the sequence."""

    def __post_init__(self) -> None:
        if self.slot is None:
            object.__setattr__(self, "slot", self._ascending())

    def _ascending(self) -> np.ndarray:
        """The slots of ranks that keep their tokens in the order of the sequence."""
        order = np.argsort(self.owner, kind="stable")
        counts = np.diff(self.edges)[order]
        first = np.cumsum(counts) - counts
        begins = np.cumsum(self.tokens) - self.tokens
        slots = np.empty_like(first)
        slots[order] = first - begins[self.owner[order]]
        return slots

    @cached_property
    def own(self) -> RangeSets:
        """The tokens of each rank, in whatever order it keeps them."""
        return union(self.n, self.ranks, self.owner, self.edges[:-1], self.edges[1:])

    @cached_property
    def tokens(self) -> np.ndarray:
        """int64 [ranks]: how many tokens each rank has; some may have none."""
        return self.own.tokens

    @cached_property
    def stretches(self) -> tuple[RangeSets, np.ndarray]:
        """The ranges of each rank that lie in consecutive slots, which may touch, and int64
        [ranges], the slot of the first token of each."""
        order = np.argsort(self.owner, kind="stable")
        owner, start, stop = self.owner[order], self.edges[:-1][order], self.edges[1:][order]
        slot = self.slot[order]
        new = np.ones(len(order), bool)
        new[1:] = (owner[1:] != owner[:-1]) | (start[1:] != stop[:-1])
        new[1:] |= slot[1:] - slot[:-1] != (stop - start)[:-1]
        last = np.append(new[1:], True)[: len(order)]
        ptr = np.searchsorted(owner[new], np.arange(self.ranks + 1)).astype(np.int64)
        return RangeSets(self.n, ptr, start[new], stop[last]), slot[new]

    def held(self, rank: int) -> PlacedTokens:
        """Return the tokens of a rank, ascending, and their slots."""
        ranges, slots = self.stretches
        part = slice(int(ranges.ptr[rank]), int(ranges.ptr[rank + 1]))
        return PlacedTokens(ranges.start[part], ranges.stop[part], slots[part])

    @cached_property
    def is_scattered(self) -> bool:
        """Whether some rank holds so many stretches that a call for each costs too much."""
        ranges, _ = self.stretches
        return bool(np.diff(ranges.ptr).max(initial=0) > _CHUNKS)

    @cached_property
    def multiple(self) -> int:
        """The number that all chunks begin at multiples of; 0 for a single chunk."""
        return int(np.gcd.reduce(self.edges[:-1], initial=0))

    def chunk(self, token: np.ndarray | int) -> np.ndarray:
        """The chunk in which each of these tokens is, of the shape of `token`."""
        return np.asarray(np.searchsorted(self.edges, token, side="right") - 1)

    def indices(self, rank: int) -> np.ndarray:
        """Return the tokens of a rank, in its order: int64 [tokens]."""
        return self.held(rank).sequence

    @cached_property
    def order(self) -> np.ndarray:
        """int64 [n]: all tokens, those of rank 0 first."""
        return np.concatenate([self.indices(rank) for rank in range(self.ranks)])


def block_size(n: int, ranks: int, multiple: int = 1) -> int:
    """Tokens of the blocks that layouts are made of.

    It is 128, as for kernel tiles, if every rank gets several blocks; less for short sequences and
    more for very long ones. It is a multiple of the blocks of the mask.
    """
    size = 128
    while size > 1 and n < 8 * size * ranks:
        size //= 2
    while n > size * _MAX_BLOCKS:
        size *= 2
    return -(-size // multiple) * multiple


def block_within(layout: TokenLayout, size: int) -> int:
    """Tokens of the blocks of queries that count together in a layout that the caller brings.

    Chunks consist of whole blocks, unless that makes too many of them. A block of several ranks
    counts for all of these: keys that some of its queries see travel to each.
    """
    size = gcd(size, layout.multiple)
    while layout.n > size * _MAX_GIVEN and layout.multiple % (2 * size):
        size *= 2
    return size


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


# ------------------------------------------------------------------ layouts that the caller brings


def of_positions(given: Any, n: int, ranks: int, name: str = "layout") -> TokenLayout:
    """Make a layout from the tokens in the slots of each rank.

    Args:
        given: integers [ranks, tokens]; or [n] or [1, n], cut into equal parts; or a list of one
            array [tokens] for each rank, which may differ in length.
        n: tokens of the sequence.
        ranks: number of ranks.
        name: the argument, for errors.

    Raises:
        LayoutPositions: it has another form, or does not contain every token exactly once (MC710).
    """
    parts = _slots_of_ranks(given, n, ranks, name)
    held = np.array([len(part) for part in parts], np.int64)
    tokens = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    owner = np.repeat(np.arange(ranks), held)
    slot = np.arange(len(tokens)) - np.repeat(np.cumsum(held) - held, held)
    outside = np.flatnonzero((tokens < 0) | (tokens >= n))
    if len(outside):
        at = int(outside[0])
        fault = f"token {tokens[at]} in slot {slot[at]} of rank {owner[at]}"
        raise LayoutPositions(f"{fault} is none of 0..{n - 1}", _EACH_ONCE, at=name)
    count = np.bincount(tokens, minlength=n)
    if (count > 1).any():
        token = int(np.argmax(count > 1))
        first, second = np.flatnonzero(tokens == token)[:2].tolist()
        fault = (f"token {token} lies in slot {slot[first]} of rank {owner[first]} and in slot "
                 f"{slot[second]} of rank {owner[second]}")  # fmt: skip
        raise LayoutPositions(fault, _EACH_ONCE, at=name)
    if len(tokens) < n:
        fault = f"{n - len(tokens)} of {n} tokens lie on no rank, the first is {np.argmin(count)}"
        raise LayoutPositions(fault, _EACH_ONCE, at=name)
    owner_of, slot_of = np.empty((2, n), np.int64)
    owner_of[tokens], slot_of[tokens] = owner, slot
    new = np.ones(n, bool)
    new[1:] = (owner_of[1:] != owner_of[:-1]) | (slot_of[1:] != slot_of[:-1] + 1)
    first = np.flatnonzero(new)
    return TokenLayout(GIVEN, n, ranks, np.append(first, n), owner_of[first], slot_of[first])


_EACH_ONCE = "give every token of the sequence once: which one lies in each slot of each rank"


def _slots_of_ranks(given: Any, n: int, ranks: int, name: str) -> list[np.ndarray]:
    """The tokens of each rank in its order, int64 [tokens] each."""
    parts = _ragged(given, ranks, name)
    if parts is not None:
        return parts
    array = _integers(given, name)
    if array.size == n and array.shape in ((n,), (1, n)) and n % ranks == 0:
        return list(array.reshape(ranks, n // ranks))
    if array.ndim == 2 and len(array) == ranks:
        return list(array)
    if array.shape in ((n,), (1, n)):
        fault = f"{n} tokens cannot be cut into {ranks} equal parts"
        raise LayoutPositions(fault, "give a list of one array for each rank", at=name)
    fault = f"it has shape {list(array.shape)}, for {n} tokens on {ranks} ranks"
    hint = f"give integers [{ranks}, tokens], [{n}], or a list of {ranks} arrays [tokens]"
    raise LayoutPositions(fault, hint, at=name)


def _ragged(given: Any, ranks: int, name: str) -> list[np.ndarray] | None:
    """The arrays of a list of one for each rank; None if it is an array or a list of integers."""
    if not isinstance(given, (list, tuple)) or not any(_has_items(part) for part in given):
        return None
    if len(given) != ranks:
        fault = f"it has tokens of {len(given)} ranks, and the plan is for {ranks}"
        raise LayoutPositions(fault, "give one array of tokens for each rank", at=name)
    parts = [_integers(part, name) for part in given]
    for rank, part in enumerate(parts):
        if part.ndim != 1:
            fault = f"the tokens of rank {rank} have shape {list(part.shape)}"
            raise LayoutPositions(fault, "give one array [tokens] for each rank", at=name)
    return parts


def _has_items(part: Any) -> bool:
    return isinstance(part, Sequence) or bool(getattr(part, "shape", ()))


def _integers(given: Any, name: str) -> np.ndarray:
    """An array of integers as int64, of the same shape."""
    try:
        array = to_host(given, name)
    except MaskcError:
        array = None
    if array is None or (array.size and array.dtype.kind not in "iu"):
        what = type(given).__name__ if array is None else f"an array of {array.dtype}"
        hint = f"use auto, {', '.join(LAYOUTS)}, or integers: which token lies in each slot"
        raise LayoutPositions(f"it is {what}", hint, at=name)
    return array.astype(np.int64)


def zigzag(cu_seqlens: Any, ranks: int) -> list[np.ndarray]:
    """Return the zigzag layout of each document of a packed sequence, as Megatron-LM has it.

    Every document is cut into 2 * ranks chunks, and rank r holds chunks r and 2 * ranks - 1 - r of
    each, documents one after another. Use the result as `layout=` of `plan`.

    Args:
        cu_seqlens: integers [documents + 1], ascending from 0: where documents begin and end;
            [0, n] is one document. If 2 * ranks divides all lengths, chunks of a document are
            equally long, as Megatron-LM requires. Otherwise they differ by at most one token.
        ranks: number of ranks.

    Returns:
        int64 [tokens] for each rank: the tokens in its slots.

    Raises:
        LayoutPositions: cu_seqlens is not a vector of integers that ascend from 0, or ranks is not
            at least 1 (MC710).
    """
    edges = _integers(cu_seqlens, "cu_seqlens")
    if edges.ndim != 1 or not len(edges) or edges[0] or (np.diff(edges) < 0).any():
        fault = f"it has shape {list(edges.shape)}" if edges.ndim != 1 else f"it is {_shown(edges)}"
        hint = "give the edges of the documents, such as [0, 1024, 4096]"
        raise LayoutPositions(fault, hint, at="cu_seqlens")
    if not isinstance(ranks, (int, np.integer)) or ranks < 1:
        raise LayoutPositions(f"it is {ranks!r}", "give the number of ranks", at="ranks")
    chunks = 2 * ranks
    starts, lengths = edges[:-1, None], np.diff(edges)[:, None]
    cuts = starts + np.arange(chunks + 1) * lengths // chunks  # [documents, chunks + 1]
    return [
        np.concatenate([
            np.zeros(0, np.int64),
            *(np.arange(row[at], row[at + 1]) for row in cuts for at in (rank, chunks - 1 - rank)),
        ])
        for rank in range(ranks)
    ]  # fmt: skip


def _shown(array: np.ndarray) -> str:
    first = ", ".join(map(str, array[:6].tolist()))
    return f"[{first}{', ...' if len(array) > 6 else ''}]"
