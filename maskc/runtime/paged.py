"""Attention over paged keys and values: every call gets a page table.

Tensors have the shapes of contiguous sequences. The memory layout of pools is an option of the
call, and page tables are in a block behind `struct Attention`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from maskc.core.attention_call import AttentionCall
from maskc.dispatch.options import Pages
from maskc.runtime.launch.prepared import OpenedCall

BLOCK = struct.Struct("PPPi4x")
"""core/abi.PAGE_FIELDS."""
TABLES = "page tables"
"""Under this name calls pass PageTables among the data; no mask reads it."""


class PageTables(NamedTuple):
    """Arguments of a call about its pages."""

    pages: Pages
    block: bytes
    held: object
    """Keeps the arrays alive that the block points to."""


class PageBlock:
    """Gives kernels that load pages the page tables, which are among the data of a call."""

    def opened(self, call: AttentionCall) -> OpenedCall:
        """See `CallBlock`."""
        rest = dict(call.data)
        tables: PageTables = rest.pop(TABLES)
        return OpenedCall(call.with_data(rest), tables.block, tables.held, pages=tables.pages)
