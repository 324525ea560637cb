"""The arrays of a step over pages, and their memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core.data import DataKind
from maskc.core.errors import BadPages
from maskc.core.tensors import torch_of
from maskc.ir.placed import POSITION, QUERIES
from maskc.layout.paged_step import PageLists, StepSizes, TokenData, step_arrays
from maskc.paging.parts import QueryPart
from maskc.paging.plan_memory import PlanMemory, is_checking, on_host, place_of
from maskc.paging.pools import PlanScales
from maskc.paging.shared import END, FIRST, STATE, SharedStep, checked_shared, rounded
from maskc.paging.step_checks import StepChecks, check_slots
from maskc.paging.step_tables import (
    GivenTables,
    QueryLengths,
    TableReader,
    first_of,
    known_lengths,
    parameters,
)
from maskc.runtime.arrays.known import Library
from maskc.runtime.paged_launch import STEP, ArgumentBlock, Integers, RowMover
from maskc.runtime.query_blocks import QueryBlocks

if TYPE_CHECKING:
    from maskc.paging.paged_attention import PagedAttention

_ALIGNED = 32
"""int32 entries to which every array of a step is rounded up in memory."""


class PagedPlan:
    """The tokens of one step, and the pages of their keys; `PagedAttention.plan` returns one.

    A CUDA graph may contain `update` and the runs after it. Each replay then reads the current
    content of the arrays passed to `update`.
    """

    def __init__(
        self, paged: PagedAttention, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any,
        cu_seqlens_q: Any, known: tuple[int | None, int | None, int | None], shared_keys: int,
        data: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Arguments as of `PagedAttention.plan`; `known`: total_q, max_seqlen_q, max_seqlen_kv."""
        self.paged = paged
        """The compiled mask that made the plan."""
        first = first_of(page_table)
        torch = torch_of(first)
        self.torch = torch
        """The library of the page table; None for NumPy."""
        self._memory = memory = PlanMemory(torch, None if torch is None else first.device)
        self._kernels = paged.kernels_on(first, "page_table")
        self._reader = reader = TableReader(memory, self._kernels is not None)
        lens_kv = reader.take(seq_lens_kv, "seq_lens_kv", 1)
        count = int(lens_kv.shape[0])
        lengths = known_lengths(memory.on_host, seq_lens_q, cu_seqlens_q, count, known[0], known[1])
        self.tokens = lengths.total
        """Rows of q."""
        self.max_seqlen_kv = reader.most_keys(page_table, known[2], paged.page_size)
        """The most keys that a sequence of this plan may have."""
        block, blocks = self._cut(lengths)
        self._sizes = StepSizes(
            count, lengths.sequence_queries, lengths.total, block, blocks, paged.page_size,
            rounded(self.max_seqlen_kv), self.max_seqlen_kv,
        )  # fmt: skip
        self._params = parameters(paged, data)
        self._sequence_queries = lengths.sequence_queries if type(seq_lens_q) is int else None
        arrays = paged.placed.arrays
        given = reader.tables(page_table, seq_lens_q, lens_kv, cu_seqlens_q, data, self._sizes,
                              arrays)  # fmt: skip
        self._shapes = given.shapes()
        self._block = ArgumentBlock(STEP)
        in_one = not (shared_keys or paged.scored)
        self.repeats = self._kernels is not None and paged.loads_pages and in_one
        """Whether layers repeat the launch of the first one."""
        self._buffers: tuple[Any, ...] = ()
        self._state = self._allocated(given)
        self._blocks = self._blocks_of(self._sizes, self._state)
        self._shared_keys = checked_shared(shared_keys, paged, self.max_seqlen_kv)
        self._checks = StepChecks(self._sizes, arrays, self._shared_keys)
        self._shared: SharedStep | None = None
        if shared_keys:
            self._shared = SharedStep(paged, memory, self._sizes, shared_keys, self._state)
            self._buffers += tuple(self._shared.state.values())
        self.scales = PlanScales(
            paged.pools, memory, paged.in_e4m3 and paged.loads_pages,
            None if shared_keys else count, self._state.get("owner"),
        )  # fmt: skip
        """The scales of all layers."""
        self._filled: object = None
        """Where and how the arrays lie that the argument block points to; None if unknown."""
        self._fill(given)
        self._filled = self._places(page_table, seq_lens_q, seq_lens_kv, cu_seqlens_q, data)

    def update(
        self, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any, *, cu_seqlens_q: Any = None,
        **data: Any,
    ) -> None:  # fmt: skip
        """Replace the tables by those of another step, of the same shapes and within the maxima.

        Arrays of the plan keep their addresses. On a GPU this is one launch and the host reads
        nothing back, so a CUDA graph may contain it.

        Args:
            page_table, seq_lens_q, seq_lens_kv, cu_seqlens_q, data: as in `PagedAttention.plan`.
                Parameters that are left out keep their values. A CUDA graph keeps those of its
                capture.

        Raises:
            BadPages: an array has another shape (MC464).
            BadPageTable: as in `PagedAttention.plan` (MC465).
        """
        places = self._places(page_table, seq_lens_q, seq_lens_kv, cu_seqlens_q, data)
        if places is not None and places == self._filled and not is_checking():
            self._fill(None)
            return
        params = parameters(self.paged, data)
        lengths = self._sequence_queries
        if lengths is not None and not (type(seq_lens_q) is int and seq_lens_q == lengths):
            wanted = f"{lengths}, the queries of every sequence of this plan"
            raise BadPages("seq_lens_q", wanted, seq_lens_q, at="seq_lens_q")
        lens_kv = self._reader.take(seq_lens_kv, "seq_lens_kv", 1)
        given = self._reader.tables(page_table, seq_lens_q, lens_kv, cu_seqlens_q, data,
                                    self._sizes, self.paged.placed.arrays)  # fmt: skip
        for name, shape in given.shapes().items():
            if shape != self._shapes[name]:
                wanted = f"of shape {_text(self._shapes[name])}, as before"
                raise BadPages(name, wanted, _text(shape), at=name)
        self._filled = None
        self._fill(given)
        self._filled = places
        if params and params != self._params:
            self._params = self._params | params
            vars(self).pop("parts", None)

    # -------------------------------------------------------------- what a step is

    @property
    def n_kv(self) -> int:
        """Keys of a block, a multiple of tiles."""
        return self._sizes.n_kv

    @property
    def slots(self) -> Any:
        """The slot of each row's key: page * page_size + token in the page, int64 [tokens]; -1 for
        rows without a sequence."""
        return self._state["slots"]

    @property
    def positions(self) -> Any:
        """The position of each row of q in its sequence, int32 [tokens]; -1 for rows without a
        sequence."""
        return self._state["token_position"]

    def _cut(self, lengths: QueryLengths) -> tuple[int, int]:
        """Queries of a block, and how many blocks there are at most.

        Blocks fit their heads into one tile of rows, which then reads keys once. On CPUs, and if
        pages are copied for each block, a sequence is one block.
        """
        fitting = self.paged.queries_of_tile
        if lengths.sequence_queries and (
            lengths.sequence_queries <= fitting or not self.paged.cuts_queries
        ):
            return lengths.sequence_queries, lengths.sequences
        if not self.paged.cuts_queries:
            return max(1, lengths.most), lengths.sequences
        block = min(fitting, 1 << max(0, lengths.most - 1).bit_length())
        return block, lengths.sequences + lengths.total // block

    # -------------------------------------------------------------- arrays of the step

    def _allocated(self, given: GivenTables) -> dict[str, Any]:
        """PlanMemory for all arrays of the step, by name; those of the mask's data by theirs."""
        sizes = self._sizes
        rows, blocks = (sizes.blocks, sizes.block), (sizes.blocks,)
        shapes: dict[str, tuple[int, ...]] = {
            "position": rows, "length": rows, "key_count": blocks, "first_page": blocks,
            "used": (sizes.sequences,), "spans": (sizes.sequences, 2),
            "pages": (math.prod(given.table.shape),), "token_position": (sizes.tokens,),
        }  # fmt: skip
        if QUERIES in self.paged.placed.reads:
            shapes["queries"] = rows
        if not sizes.whole:
            shapes |= {"rows": rows, "places": (sizes.tokens,)}
            if self.paged.in_e4m3:  # whose blocks ask for the scale of their sequence
                shapes["owner"] = blocks
        arrays = zip(self.paged.placed.arrays, given.data, strict=True)
        for number, (array, values) in enumerate(arrays):
            of_keys = (1 if len(values.shape) == 1 else sizes.blocks, sizes.n_kv)
            shapes[f"array{number}"] = rows if array.of_queries else of_keys
        starts = [0]
        for shape in shapes.values():
            starts.append(-(-(starts[-1] + math.prod(shape)) // _ALIGNED) * _ALIGNED)
        buffer = self._memory.empty(starts[-1], np.int32)
        state = {
            name: buffer[start : start + math.prod(shape)].reshape(shape)
            for (name, shape), start in zip(shapes.items(), starts, strict=False)
        }
        state["slots"] = self._memory.empty(sizes.tokens, np.int64)
        if not sizes.whole:
            state["is_real"] = self._memory.empty(sizes.tokens, np.bool_)
        self._buffers = buffer, *(state[name] for name in ("slots", "is_real") if name in state)
        return state

    def _blocks_of(
        self, sizes: StepSizes, state: dict[str, Any], in_order: bool = False
    ) -> QueryBlocks:
        mover = None
        if self._kernels is not None:
            mover = RowMover(self._kernels, sizes, state, self.paged.heads[0])
        return QueryBlocks(sizes, state, self.torch, in_order, mover)

    def _places(
        self, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any, cu_seqlens_q: Any,
        data: Mapping[str, Any],
    ) -> object:  # fmt: skip
        """Where and how all arrays of a step lie; None if kernels do not read them there."""
        if self._kernels is None:
            return None
        tables = page_table if type(page_table) is tuple else (page_table,)
        given = (*tables, seq_lens_q, seq_lens_kv, cu_seqlens_q, *data.values())
        places = tuple(map(place_of, given))
        return None if None in places else (len(tables), tuple(data), places)

    def _fill(self, given: GivenTables | None) -> None:
        """Make all arrays of the step, in their places.

        Args:
            given: the tables; None if they lie where the earlier ones did.
        """
        if self._kernels is not None:
            if given is not None:
                if is_checking():
                    self._checks.check(given, self._checks.read(given))
                self._fill_block(given, self._kernels.library)
            self._kernels.plan(self._block)
        elif given is not None:
            self._fill_on_host(given)
        if self._shared is not None:
            self._shared.fill()
        if "parts" in vars(self):
            for part in self.parts:
                part.renew()
        if self.torch is not None:
            self.torch.autograd.graph.increment_version(self._buffers)

    def _fill_on_host(self, given: GivenTables) -> None:
        sizes = self._sizes
        tables = self._checks.read(given)
        self._checks.check(given, tables)
        arrays = self.paged.placed.arrays
        data = [
            TokenData(x != 0 if array.decl.kind is DataKind.flags else x, array.of_queries)
            for array, x in zip(arrays, given.data, strict=True)
        ]
        made = step_arrays(sizes, *tables, data)
        for name, to in self._state.items():
            to = to if self.torch is None else to.numpy()
            to[...] = made[name]

    def _fill_block(self, given: GivenTables, library: Library) -> None:
        """Set the arguments of the launch."""
        block, sizes = self._block.members, self._sizes
        arrays = self.paged.placed.arrays
        if not block.page_size:  # the launch is new
            for name, to in self._state.items():
                if hasattr(block, name):
                    setattr(block, name, to.data_ptr())
            for slot, array in enumerate(arrays):
                block.array[slot] = self._state[f"array{slot}"].data_ptr()
                block.flags[slot] = array.decl.kind is DataKind.flags
                block.of_queries[slot] = array.of_queries
            block.arrays, block.sequence_queries, block.whole = (
                len(arrays),
                sizes.sequence_queries,
                sizes.whole,
            )
            block.sequences, block.tokens, block.block = sizes.sequences, sizes.tokens, sizes.block
            block.blocks, block.page_size = sizes.blocks, sizes.page_size
            block.n_kv, block.max_kv = sizes.n_kv, sizes.max_kv
            block.entries, block.columns = math.prod(given.table.shape), given.table.shape[-1]
        for name in ("lens_q", "lens_kv", "starts"):
            if (values := getattr(given, name)) is not None:
                x = self._integers(values, library, name)
                setattr(block, name, x.pointer)
                setattr(block, f"{name}_code", x.code)
                setattr(block, f"{name}_step", x.strides[0])
        block.cumulative = given.cumulative
        x = self._integers(given.table, library, "page_table")
        block.table, block.table_code = x.pointer, x.code
        block.table_step[:] = (*(0,) * (2 - len(x.strides)), *x.strides)
        for slot, values in enumerate(given.data):
            x = self._integers(values, library, arrays[slot].decl.name)
            block.source[slot], block.source_code[slot] = x.pointer, x.code
            block.source_sequence[slot] = x.strides[0] if len(x.strides) == 2 else 0
            block.source_token[slot], block.shared[slot] = x.strides[-1], len(x.shape) == 1

    @staticmethod
    def _integers(values: Any, library: Library, name: str) -> Integers:
        array = Integers.of(values, library, name)
        if array is None:
            raise BadPages(name, "integers of 8 to 64 bits, signed", values.dtype, at=name)
        return array

    # -------------------------------------------------------------- what calls are given

    @property
    def data(self) -> dict[str, Any]:
        """The data of the compiled mask, by name."""
        placed, state = self.paged.placed, self._state
        arrays = {name: state[STATE[name]] for name in (*placed.reads, POSITION)}
        arrays |= {array.name: state[f"array{i}"] for i, array in enumerate(placed.arrays)}
        return arrays | self._params

    def check_library(self, tensors: Mapping[str, Any]) -> None:
        """Check that a layer's arrays belong to the library of the page table.

        Raises:
            BadPages: an array belongs to another library (MC464).
        """
        kind: type = np.ndarray if self.torch is None else self.torch.Tensor
        for name, x in tensors.items():
            if not isinstance(x, kind):
                library = "an array of NumPy" if self.torch is None else "a torch tensor"
                wanted = f"{library}, as the page table"
                error = BadPages(name, wanted, type(x).__name__, at=name)
                error.hint = "torch tensors need attn.plan(torch.as_tensor(page_table), ...)"
                raise error

    @cached_property
    def parts(self) -> tuple[QueryPart, ...]:
        """The launches of a run: one, or one for shared keys and one for all others."""
        paged, shared = self.paged, self._shared
        if shared is None:
            return (QueryPart(paged.attn, self._blocks, self.data),)
        placed, attn = paged.between_keys
        names = (*placed.reads, POSITION)
        keys = {FIRST: 0, END: self._shared_keys}, {FIRST: self._shared_keys, END: self.n_kv}
        of_shared = self._blocks_of(shared.sizes, shared.state, shared.in_order)
        return tuple(
            QueryPart(
                attn, part, {name: part.state[STATE[name]] for name in names} | self._params | ends
            )
            for part, ends in zip((of_shared, self._blocks), keys, strict=True)
        )

    def check(self, pages: int, freed: Any = ()) -> None:
        """Read the tables on the host, which waits for the GPU, and check them.

        Args:
            pages: number of pages in the pool.
            freed: pages that belong to no sequence, integers.

        Raises:
            BadPageTable: a sequence has more keys than the plan allows (MC465).
            PageOutOfPool, PageTwice, PageFreed: an entry that is read is not a page of the pool,
                two entries of a sequence are one page, or one is free (MC660, MC661, MC662).
            PageNotShared: shared keys of a sequence lie in other pages (MC667).
        """
        entries, spans, used = (on_host(self._state[x]) for x in ("pages", "spans", "used"))
        lists = PageLists(entries, spans[:, 0], spans[:, 1])
        self._checks.check_pages(used, lists, pages, freed)

    def check_positions(self, count: int) -> None:
        """Check that tables of a rotary embedding have so many positions; positions on a GPU are
        read with MASKC_CHECK=1 only.

        Raises:
            BadPages: they have fewer (MC464).
        """
        if self._kernels is not None and not is_checking():
            return
        last = int(on_host(self.positions).max(initial=-1))
        if last >= count:
            wanted = f"tables of at least {last + 1} positions, as the plan has them"
            raise BadPages("rotary", wanted, count, at="rotary")

    def check_slots(self) -> None:
        """Read the slots of new rows on the host, which waits for the GPU, and check them.

        Raises:
            SlotTwice: two rows go to one slot (MC663).
        """
        check_slots(self.slots, self.paged.page_size)


def _text(shape: tuple[int, ...] | None) -> str:
    return "None" if shape is None else str(list(shape))
