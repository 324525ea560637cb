"""The arrays of a step over pages, in NumPy; templates/common/lib/plan_pages.cuh makes the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_INT32 = np.iinfo(np.int32)


class StepSizes(NamedTuple):
    """Numbers of a step that the host knows."""

    sequences: int
    sequence_queries: int
    """Queries of every sequence; 0 where they differ, or may."""
    tokens: int
    """Rows of q."""
    block: int
    """Queries of a block."""
    blocks: int
    """Blocks for which there is room."""
    page_size: int
    n_kv: int
    """Keys of a block, a multiple of tiles."""
    max_kv: int
    """Tokens for which data have entries."""

    @property
    def whole(self) -> bool:
        """Whether a block is a sequence of the call, so that no query is moved."""
        return bool(self.sequence_queries) and self.block == self.sequence_queries


class TokenData(NamedTuple):
    """Data of the mask: an entry per token, [sequences, tokens] or [tokens]."""

    values: np.ndarray
    of_queries: bool
    """Whether a block has those of its queries, else of all keys."""


class PageLists(NamedTuple):
    """Page tables: all entries in a row, and where each sequence's begin and end."""

    entries: np.ndarray
    first: np.ndarray
    end: np.ndarray

    @classmethod
    def of_rows(cls, table: np.ndarray) -> PageLists:
        """Entries by row, [sequences, columns]."""
        sequences, columns = table.shape
        first = np.arange(sequences) * columns
        return cls(table.reshape(-1), first, first + columns)

    @classmethod
    def of_lists(cls, starts: np.ndarray, entries: np.ndarray) -> PageLists:
        """Entries of all sequences; `starts` [sequences + 1] says where each sequence's begin."""
        limits = starts.clip(0, len(entries))
        empty = limits[1:] <= limits[:-1]
        first = np.where(empty, 0, limits[:-1])
        return cls(entries, first, np.where(empty, 0, limits[1:]))


def step_arrays(
    sizes: StepSizes, starts: np.ndarray, lens_kv: np.ndarray, pages: PageLists,
    data: Sequence[TokenData] = (),
) -> dict[str, np.ndarray]:  # fmt: skip
    """Arrays of a step by the names of core/abi.STEP_FIELDS; `array0`, ... of the data.

    Args:
        starts: [sequences + 1], where the queries of each sequence begin.
        lens_kv: [sequences], keys of each, its queries among them.
    """
    count, block, blocks, size = sizes.sequences, sizes.block, sizes.blocks, sizes.page_size
    lens_q, lens_kv = np.diff(starts).clip(min=0), lens_kv.clip(min=0)
    taken = np.ones(count, int) if sizes.whole else -(-lens_q // block)
    firsts = np.concatenate([[0], np.cumsum(taken)])
    owner = np.searchsorted(firsts[1:], np.arange(blocks), side="right")
    inside = owner < count
    owner = owner.clip(max=max(0, count - 1))
    if not count:  # arrays of no sequence are read at 0
        lens_q, lens_kv, starts = np.zeros(1, int), np.zeros(1, int), np.zeros(2, int)
        pages = PageLists(pages.entries, np.zeros(1, int), np.zeros(1, int))
    local = (np.arange(blocks) - firsts[owner])[:, None] * block + np.arange(block)
    own_q, own_kv = lens_q[owner][:, None], lens_kv[owner][:, None]
    there = (local < own_q) & inside[:, None]
    position = own_kv - own_q + local
    room = (pages.end - pages.first) * size
    arrays = {
        "position": np.where(there, position, -1),
        "length": np.where(there, own_kv, 0),
        "queries": np.broadcast_to(np.where(inside[:, None], own_q, 0), local.shape),
        "key_count": np.where(there.any(1), np.minimum(lens_kv, room)[owner], 0),
        "first_page": np.where(inside, pages.first[owner], 0),
        "owner": np.where(inside, owner, 0),
        "used": lens_kv[:count],
        "spans": np.stack([pages.first[:count], pages.end[:count]], 1),
        "pages": pages.entries.clip(_INT32.min, _INT32.max),  # which are no pages, as wider ones
        "rows": np.where(
            inside[:, None], (starts[owner][:, None] + local).clip(0, max(0, sizes.tokens - 1)), 0
        ),
        **_of_tokens(sizes, starts, lens_q, lens_kv, firsts, pages),
    }
    for number, datum in enumerate(data):
        arrays[f"array{number}"] = _of_blocks(sizes, datum, owner, position, inside[:, None])
    return arrays


def _of_tokens(
    sizes: StepSizes, starts: np.ndarray, lens_q: np.ndarray, lens_kv: np.ndarray,
    firsts: np.ndarray, pages: PageLists,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Rows of q and their meaning."""
    token, size = np.arange(sizes.tokens), sizes.page_size
    of = np.searchsorted(starts[1:], token, side="right")
    real = (of < sizes.sequences) & (token >= starts[0])
    of = np.where(real, of, 0)
    local = token - starts[of]
    position = lens_kv[of] - lens_q[of] + local
    entry = pages.first[of] + position // size
    there = real & (position >= 0) & (entry < pages.end[of])
    entries = pages.entries if len(pages.entries) else np.zeros(1, int)
    page = entries[np.where(there, entry, 0)].astype(np.int64)
    place = firsts[of] * sizes.block + local
    fits = real & (place < sizes.blocks * sizes.block)
    return {
        "token_position": np.where(real, position, -1),
        "slots": np.where(there & (page >= 0), page * size + position % size, -1),
        "places": np.where(fits, place, 0),
        "is_real": fits,
    }


def _of_blocks(
    sizes: StepSizes, data: TokenData, owner: np.ndarray, at: np.ndarray, inside: np.ndarray
) -> np.ndarray:
    """Data for each block: [blocks, queries of a block], or [.., keys]; 0 in blocks of nobody."""
    values = data.values if data.values.size else np.zeros((1,) * data.values.ndim, int)
    if data.of_queries:
        at = at.clip(0, max(0, sizes.max_kv - 1))
        block_values = values[at] if values.ndim == 1 else values[owner[:, None], at]
        return np.where(inside, block_values, 0)
    values = data.values
    values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, sizes.n_kv - sizes.max_kv)])
    if values.ndim == 1:
        return values[None]
    return np.where(inside, values[owner], 0) if len(values) else np.zeros((len(owner), sizes.n_kv))
