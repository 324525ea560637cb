"""Checks of lengths, pages and slots on the host; of arrays on a GPU with MASKC_CHECK=1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskc.core.data import DataKind
from maskc.core.errors import (
    BadPages,
    BadPageTable,
    PageFreed,
    PageNotShared,
    PageOutOfPool,
    PageTwice,
    SlotTwice,
)
from maskc.layout.inputs.host import check_int32
from maskc.layout.paged_step import PageLists, StepSizes
from maskc.paging.plan_memory import on_host

if TYPE_CHECKING:
    from maskc.ir.placed import TokenArray
    from maskc.paging.step_tables import GivenTables


class HostTables(NamedTuple):
    """The tables of a step on the host."""

    query_starts: np.ndarray
    """Where the queries of each sequence begin, and the total."""
    lens_kv: np.ndarray
    pages: PageLists


class StepChecks(NamedTuple):
    """The checks of a plan."""

    sizes: StepSizes
    arrays: tuple[TokenArray, ...]
    """Data of the mask."""
    shared_keys: int

    def read(self, given: GivenTables) -> HostTables:
        """Read the tables, which waits for a GPU."""
        table = on_host(given.table)
        if given.lens_q is None:
            starts = np.arange(self.sizes.sequences + 1) * self.sizes.sequence_queries
        elif given.cumulative:
            starts = on_host(given.lens_q)
        else:
            starts = np.concatenate([[0], np.cumsum(on_host(given.lens_q))])
        if given.starts is None:
            pages = PageLists.of_rows(table)
        else:
            pages = PageLists.of_lists(on_host(given.starts), table)
        return HostTables(starts, on_host(given.lens_kv), pages)

    def check(self, given: GivenTables, tables: HostTables) -> None:
        """Check the numbers of a step.

        Raises:
            BadPages, BadPageTable: lengths do not fit each other, the plan or the pages (MC464,
                MC465).
            DataRange: data leave 32 bits (MC305).
            PageNotShared: shared keys lie in other pages (MC667).
        """
        sizes, (starts, lens_kv, pages) = self.sizes, tables
        lens_q = np.diff(starts)
        name = "cu_seqlens_q" if given.cumulative else "seq_lens_q"
        if lens_q.min(initial=0) < 0 or starts[0] < 0:
            wanted = "ascending" if given.cumulative else "integers from 0 on"
            raise BadPages(name, wanted, on_host(given.lens_q).tolist(), at=name)
        if starts[-1] > sizes.tokens:
            wanted = f"at least {starts[-1]}, where {name} ends"
            raise BadPages("total_q", wanted, sizes.tokens, at="total_q")
        if not sizes.whole and int((-(-lens_q // sizes.block)).sum()) > sizes.blocks:
            wanted = f"at least {lens_q.max()}, the longest of {name}"
            raise BadPages("max_seqlen_q", wanted, sizes.block, at="max_seqlen_q")
        ends = np.zeros(1, int) if given.starts is None else on_host(given.starts)
        most = len(pages.entries)
        if np.diff(ends).min(initial=0) < 0 or ends[0] < 0 or ends[-1] > most:
            wanted = f"ascending, from 0 on, to {most} at most, the entries"
            raise BadPages("kv_indptr", wanted, ends.tolist(), at="kv_indptr")
        if lens_kv.min(initial=0) < 0:
            raise BadPages("seq_lens_kv", "integers from 0 on", lens_kv.tolist(), at="seq_lens_kv")
        self._check_room(lens_kv, pages)
        short = np.flatnonzero((lens_q > lens_kv) & (lens_kv > 0))
        if len(short):
            queries, keys = lens_q[short[0]], lens_kv[short[0]]
            finding = f"{queries} queries and {keys} keys, among which are those of its queries"
            raise BadPageTable(short[0], finding, at="seq_lens_kv")
        for array, values in zip(self.arrays, given.data, strict=True):
            if array.decl.kind is not DataKind.flags:
                host = on_host(values)
                used = np.arange(host.shape[-1]) < lens_kv[:, None]
                check_int32(array.decl.name, host[used if host.ndim > 1 else used.any(0)])
        self._check_shared(lens_kv, pages)

    def check_pages(self, lens_kv: np.ndarray, lists: PageLists, count: int, freed: Any) -> None:
        """Check the entries that a step reads; arguments as those of `PagedPlan.check`.

        Raises:
            BadPageTable, PageOutOfPool, PageTwice, PageFreed, PageNotShared: see there.
        """
        free = set(np.asarray(on_host(freed)).reshape(-1).tolist())
        self._check_room(lens_kv, lists)
        self._check_shared(lens_kv, lists)
        places = zip(lists.first.tolist(), lens_kv.tolist(), strict=True)
        for sequence, (first, keys) in enumerate(places):
            held = -(-keys // self.sizes.page_size)
            seen: dict[int, int] = {}
            for index, page in enumerate(lists.entries[first : first + held].tolist()):
                if not 0 <= page < count:
                    raise PageOutOfPool(sequence, index, page, count - 1, at="page_table")
                if page in seen:
                    raise PageTwice(sequence, seen[page], index, page, at="page_table")
                if page in free:
                    raise PageFreed(sequence, index, page, at="page_table")
                seen[page] = index

    def _check_room(self, lens_kv: np.ndarray, lists: PageLists) -> None:
        """Raise BadPageTable for a sequence with more keys than the plan or its pages hold."""
        pages, most = lists.end - lists.first, self.sizes.max_kv
        room = np.minimum(most, pages * self.sizes.page_size)
        for sequence in np.flatnonzero(lens_kv > room)[:1].tolist():
            finding = f"{lens_kv[sequence]} keys, and max_seqlen_kv is {most}"
            if room[sequence] < most:
                held = f"its {pages[sequence]} pages hold {room[sequence]}"
                finding = f"{lens_kv[sequence]} keys, and {held}"
            raise BadPageTable(sequence, finding, at="seq_lens_kv")

    def _check_shared(self, lens_kv: np.ndarray, pages: PageLists) -> None:
        """Raise PageNotShared for a sequence with shared keys in other pages than the longest."""
        size = self.sizes.page_size
        entry = np.arange(self.shared_keys // size)
        if not len(entry) or not len(lens_kv):
            return
        held = entry < -(-lens_kv // size)[:, None]
        page = pages.entries[np.where(held, pages.first[:, None] + entry, 0)]
        first = pages.first[lens_kv.argmax()]
        shared = pages.entries[np.minimum(first + entry, len(pages.entries) - 1)]
        for sequence, index in np.argwhere(held & (page != shared))[:1].tolist():
            pair = int(page[sequence, index]), int(shared[index])
            raise PageNotShared(sequence, index, *pair, at="page_table")


def check_slots(slots: Any, page_size: int) -> None:
    """Raise SlotTwice for two rows that go to one slot; the host waits for a GPU."""
    seen: dict[int, int] = {}
    for row, slot in enumerate(on_host(slots).tolist()):
        if slot >= 0 and slot in seen:
            raise SlotTwice(seen[slot], row, *divmod(slot, page_size), at="page_table")
        seen[slot] = row
