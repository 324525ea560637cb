"""Attention over keys and values in pages of pools: page tables join every call.

Tensors say how long sequences are, as they would if their keys lay one after another; how pools lie
in memory is an option of the call, and page tables stand in a block behind `struct Attention`.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from maskc.dispatch.options import CallOptions, Pages, over_pages
from maskc.runtime.arrays.known import Library
from maskc.runtime.compiled import CompiledMask
from maskc.runtime.launch.prepared import BlockLaunch, Runnable
from maskc.runtime.scored import ScoredMask

BLOCK = struct.Struct("PPPi4x")
"""core/abi.PAGE_FIELDS."""
TABLES = "page tables"
"""Under this name calls give PageTables among the data; no mask reads it."""


class PageTables(NamedTuple):
    """What a call says of its pages."""

    pages: Pages
    block: bytes
    held: object
    """Keeps the arrays alive that the block points to."""


class _OverPages(CompiledMask):
    """Gives page tables to every launch."""

    def _begin(
        self, options: CallOptions, given: list[Any], data: Any
    ) -> tuple[Runnable, Library, tuple[int, ...]]:
        tables: PageTables = data.pop(TABLES)
        options = over_pages(options, tables.pages)
        plan, lib, places = super()._begin(options, given, data)
        return BlockLaunch(plan, tables.block, tables.held), lib, places


class PagedMask(_OverPages):
    """A compiled mask whose keys lie in pages."""


class PagedScore(_OverPages, ScoredMask):
    """A compiled mask with a formula of the score whose keys lie in pages."""
