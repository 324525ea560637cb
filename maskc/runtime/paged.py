"""Attention over paged keys and values: every call gets a page table.

Tensors have the shapes of contiguous sequences. The memory layout of pools is an option of the
call, and page tables are in a block behind `struct Attention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from maskc.core.abi import PAGE_FIELDS, POOL_FIELDS, packer
from maskc.core.attention_call import AttentionCall
from maskc.dispatch.options import Pages
from maskc.runtime.launch.prepared import OpenedCall

BLOCK, _POOL_BLOCK = packer(PAGE_FIELDS), packer(POOL_FIELDS)
TABLES = "page tables"
"""Under this name calls pass PageTables among the data; no mask reads it."""


class PageTables(NamedTuple):
    """Arguments of a call about its pages."""

    pages: Pages
    block: bytes
    held: object
    """Keeps the arrays alive that the block points to."""


class PoolFactor(NamedTuple):
    """Factors of the numbers of an E4M3 pool: a number, or an array on the device."""

    number: float
    pointer: int = 0
    """Address of fp32 numbers; 0 for a number."""
    sequence_step: int = 0
    head_step: int = 0
    """Elements from one sequence, or head, to the next; 0 if they share a factor."""
    held: Any = None
    """The array."""


class PoolScales(NamedTuple):
    """The scales of the pools of a layer."""

    k: Any
    v: Any
    """Numbers or arrays as given; 1.0 when left out."""
    block: bytes = b""
    """Members behind BLOCK, for kernels that convert pools."""
    held: tuple[PoolFactor, PoolFactor] | None = None
    """The factors as kernels read them; they keep the arrays alive that the block points to."""
    lasting: bool = True
    """Whether the block points to the arrays that were given, and not to copies."""

    def lies_at(self, k: Any, v: Any) -> bool:
        """Whether these objects are the arrays that were given, in the same memory."""
        if self.held is None:
            return False
        of_k, of_v = self.held
        if of_k.held is not k or of_v.held is not v or k is None or v is None:
            return False
        return bool(k.data_ptr() == of_k.pointer and v.data_ptr() == of_v.pointer)


def pool_block(k: PoolFactor, v: PoolFactor, owner: int) -> bytes:
    """Return core/abi.POOL_FIELDS; `owner`: address of each block's sequence, 0: its own number."""
    return _POOL_BLOCK.pack(
        k.pointer, v.pointer, k.sequence_step, k.head_step, v.sequence_step, v.head_step, owner,
        k.number, v.number,
    )  # fmt: skip


class PageBlock:
    """Gives kernels that load pages the page tables, which are among the data of a call."""

    def opened(self, call: AttentionCall) -> OpenedCall:
        """See `CallBlock`."""
        rest = dict(call.data)
        tables: PageTables = rest.pop(TABLES)
        return OpenedCall(call.with_data(rest), tables.block, tables.held, pages=tables.pages)
