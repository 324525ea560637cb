"""Keys that all sequences have in the same pages: a system prompt, read once by a launch of its
own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core.errors import BadPages
from maskc.ir.placed import LENGTH, POSITION, QUERIES
from maskc.layout.paged_step import PageLists, StepSizes
from maskc.paging.plan_memory import PlanMemory, check_shape

if TYPE_CHECKING:
    from maskc.paging.paged_attention import PagedAttention

FIRST, END = "paged_first_key", "paged_end_key"
"""Parameters of masks between two keys."""
STATE = {POSITION: "position", LENGTH: "length", QUERIES: "queries"}
"""Arrays of a step that masks read, by the names of core/abi.STEP_FIELDS."""
_ROUNDED = 128
"""Keys to whose multiple the longest sequence is rounded up, so that steps share launches."""


def rounded(keys: int) -> int:
    """Round keys up to what launches are planned for."""
    return -(-keys // _ROUNDED) * _ROUNDED


def count_shared(page_table: Any, seq_lens_kv: Any, page_size: int) -> int:
    """Count the first keys that all sequences have in the same pages; see
    `PagedAttention.shared_keys`."""
    parts = page_table if isinstance(page_table, tuple) else (page_table,)
    for name, x in (("page_table", parts[0]), ("seq_lens_kv", seq_lens_kv)):
        device = getattr(x, "device", "cpu")
        if getattr(device, "type", device) != "cpu":
            raise BadPages(name, "on the host, which reads it", f"one on {device}", at=name)
    tables, lens = [np.asarray(x) for x in parts], np.asarray(seq_lens_kv)
    if [x.ndim for x in tables] not in ([2], [1, 1]):
        shapes = [list(x.shape) for x in tables]
        raise BadPages("page_table", "[S, W], or a pair of vectors", shapes, at="page_table")
    pages = PageLists.of_lists(*tables) if len(tables) > 1 else PageLists.of_rows(*tables)
    check_shape(lens, pages.first.shape, "seq_lens_kv")
    for name, x in (("page_table", tables[-1]), ("seq_lens_kv", lens)):
        if x.dtype.kind not in "iu":
            raise BadPages(name, "integers", x.dtype, at=name)
    room = (pages.end - pages.first) * page_size
    if (lens < 0).any() or (lens > room).any():
        wanted = f"from 0 on and at most {room.tolist()}, which the pages hold"
        raise BadPages("seq_lens_kv", wanted, lens.tolist(), at="seq_lens_kv")
    counts = np.minimum(-(-lens // page_size), pages.end - pages.first)
    width = int(np.sort(counts)[-2]) if len(counts) > 1 else 0
    if width <= 0:
        return 0
    entry = np.arange(width)
    is_own = entry < counts[:, None]
    page = pages.entries[np.where(is_own, pages.first[:, None] + entry, 0)]
    differs = (is_own & (page != page[counts.argmax()])).any(0)
    return page_size * int(differs.argmax() if differs.any() else width)


def checked_shared(keys: int, paged: PagedAttention, most: int) -> int:
    """Return the number of shared keys, at most the keys of a sequence.

    Raises:
        BadPages: it does not fit the pages, or the mask has data.
    """
    size = paged.page_size
    if type(keys) is not int or not 0 <= keys <= most or keys % size:
        wanted = f"a multiple of page_size={size} from 0 to {most}"
        raise BadPages("shared_keys", wanted, repr(keys), at="shared_keys")
    if keys and paged.placed.arrays:
        name = paged.placed.arrays[0].decl.name
        raise BadPages("shared_keys", f"0, as the mask reads {name!r}", keys, at="shared_keys")
    return keys


class SharedStep:
    """The arrays of blocks of queries of any sequences, over the shared keys."""

    def __init__(
        self, paged: PagedAttention, memory: PlanMemory, sizes: StepSizes, keys: int,
        step: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Allocate the arrays.

        Args:
            sizes: of the step.
            keys: number of shared keys.
            step: the arrays of the step, by name.
        """
        tokens = sizes.tokens
        block = max(1, tokens)
        if paged.cuts_queries:
            block = min(paged.queries_of_tile, 1 << max(0, tokens - 1).bit_length())
        blocks = -(-tokens // block)
        self.sizes = StepSizes(1, 0, tokens, block, blocks, paged.page_size, rounded(keys), keys)
        self.in_order = blocks * block == tokens
        """Whether blocks are all rows of q, one after another."""
        self._reads = (*paged.placed.reads, POSITION)
        self._memory, self._of_step, self._whole = memory, step, sizes.whole
        shapes: dict[str, tuple[int, ...]] = {STATE[name]: (blocks, block) for name in self._reads}
        shapes |= {"rows": (blocks, block), "key_count": (blocks,), "first_page": (blocks,)}
        shapes["places"] = (tokens,)
        self.state = {name: memory.empty(math.prod(shape), np.int32).reshape(shape)
                      for name, shape in shapes.items()}  # fmt: skip
        """By name, as those of a step."""
        self.state["is_real"] = memory.empty(tokens, np.bool_)
        self.state["pages"] = step["pages"]
        if tokens:
            row = np.arange(blocks * block).clip(max=tokens - 1).reshape(blocks, block)
            for name, values in (("rows", row), ("places", np.arange(tokens))):
                self.state[name][...] = memory.copied(values.astype(np.int32))

    def fill(self) -> None:
        """Make the arrays of those of the step."""
        tokens, (torch, _) = self.sizes.tokens, self._memory
        if not tokens:
            return
        step, state, where = self._of_step, self.state, np.where if torch is None else torch.where
        positions, rows = step["token_position"], state["rows"]
        real = positions >= 0 if self._whole else step["is_real"]
        row = np.arange(rows.size if torch is None else rows.numel())
        inside = self._memory.copied((row < tokens).reshape(tuple(rows.shape)))
        for name in self._reads:
            key = STATE[name]
            of_token, nothing = step[key].reshape(-1), 0
            if name == POSITION:
                of_token, nothing = positions, -1
            elif not self._whole:
                of_token = of_token[step["places"]]
            state[key][...] = where(inside & real[rows], of_token[rows], nothing)
        state["is_real"][...] = real
        state["key_count"][...] = self.sizes.max_kv
        used, spans = step["used"], step["spans"]  # the longest sequence has entries for all
        if torch is None:
            state["first_page"][...] = spans[used.argmax(), 0]
        else:
            state["first_page"][...] = spans[:, 0].index_select(0, used.argmax(0, keepdim=True))
