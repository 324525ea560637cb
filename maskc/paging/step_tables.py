"""The tables of a step, as a caller passes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskc.core.data import DataKind, Parents
from maskc.core.errors import BadPages, DataMissing
from maskc.core.tensors import refuse_masked
from maskc.core.unknown import unknown_keyword
from maskc.layout.inputs.call_data import times_of_parents
from maskc.paging.plan_memory import PlanMemory, check_shape, checked_count

if TYPE_CHECKING:
    from maskc.ir.placed import TokenArray
    from maskc.layout.paged_step import StepSizes
    from maskc.paging.paged_attention import PagedAttention


class QueryLengths(NamedTuple):
    """Facts about the queries of a step that the host knows."""

    sequences: int
    sequence_queries: int
    """Queries of every sequence; 0 where they differ, or may."""
    total: int
    most: int


class GivenTables(NamedTuple):
    """The tables of a step, checked."""

    lens_q: Any
    """[S], or cumulative [S + 1]; None if all sequences have as many queries."""
    cumulative: bool
    lens_kv: Any
    starts: Any
    """kv_indptr; None with a table of rows."""
    table: Any
    data: tuple[Any, ...]
    """One per array of the mask."""

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Return the shapes of the arrays, by the names of arguments; None for missing ones."""
        tables = {
            "seq_lens_q": self.lens_q if not self.cumulative else None,
            "cu_seqlens_q": self.lens_q if self.cumulative else None,
            "kv_indptr": self.starts,
            "page_table" if self.starts is None else "kv_indices": self.table,
        }
        tables |= {f"data {number}": x for number, x in enumerate(self.data)}
        return {name: None if x is None else tuple(x.shape) for name, x in tables.items()}


class TableReader:
    """Reads tables where a plan is made."""

    def __init__(self, memory: PlanMemory, by_kernels: bool) -> None:
        """`by_kernels`: kernels read the arrays; otherwise NumPy does."""
        self._memory, self._by_kernels = memory, by_kernels

    def take(self, x: Any, name: str, rank: int, flags: bool = False) -> Any:
        """Integers of so many dimensions where the plan is made: a tensor on the GPU, or int64 of
        NumPy; with `flags` also booleans.

        Raises:
            BadPages: no integers, another rank, or another device.
            MaskedValues: a masked array of NumPy with masked entries.
        """
        refuse_masked(x, name)
        torch, device = self._memory
        tensor = torch is not None and isinstance(x, torch.Tensor)
        if tensor and x.device != device:
            raise BadPages(name, f"on {device}, as the page table", x.device, at=name)
        if not self._by_kernels:
            taken: Any = x.numpy() if tensor else np.asarray(x)
            whole = taken.dtype.kind in ("biu" if flags else "iu")
        else:
            taken = x if tensor else torch.as_tensor(np.asarray(x)).to(device)
            whole = not (taken.is_floating_point() or taken.is_complex())
            whole = whole and (flags or taken.dtype != torch.bool)
        if not whole or len(taken.shape) != rank:
            wanted = f"integers of {rank} dimension{'s' * (rank != 1)}"
            raise BadPages(name, wanted, f"{x.dtype if hasattr(x, 'dtype') else type(x).__name__} "
                           f"of shape {list(taken.shape)}", at=name)  # fmt: skip
        return taken if self._by_kernels else taken.astype(np.int64, copy=False)

    def tables(
        self, page_table: Any, seq_lens_q: Any, lens_kv: Any, cu_seqlens_q: Any,
        data: Mapping[str, Any], sizes: StepSizes, arrays: tuple[TokenArray, ...],
    ) -> GivenTables:  # fmt: skip
        """Return the arrays of a step.

        Raises:
            BadPages: their shapes do not fit each other.
        """
        count = sizes.sequences
        check_shape(lens_kv, (count,), "seq_lens_kv")
        lens_q = None
        if cu_seqlens_q is not None:
            lens_q = self.take(cu_seqlens_q, "cu_seqlens_q", 1)
            check_shape(lens_q, (count + 1,), "cu_seqlens_q")
        elif type(seq_lens_q) is not int:
            lens_q = self.take(seq_lens_q, "seq_lens_q", 1)
            check_shape(lens_q, (count,), "seq_lens_q")
        starts = None
        if isinstance(page_table, tuple):
            starts = self.take(page_table[0], "kv_indptr", 1)
            check_shape(starts, (count + 1,), "kv_indptr")
            table = self.take(page_table[1], "kv_indices", 1)
        else:
            table = self.take(page_table, "page_table", 2)
            check_shape(table, (count, table.shape[1]), "page_table")
            wanted = -(-sizes.max_kv // sizes.page_size)
            if table.shape[1] < wanted:
                columns = f"of {wanted} columns at least, for max_seqlen_kv={sizes.max_kv}"
                raise BadPages("page_table", columns, table.shape[1], at="page_table")
        data = {
            name: times_of_parents(name, x, sizes.max_kv) if isinstance(x, Parents) else x
            for name, x in data.items()
        }
        values = tuple(self._datum(array, data, sizes) for array in arrays)
        return GivenTables(lens_q, cu_seqlens_q is not None, lens_kv, starts, table, values)

    def _datum(self, array: TokenArray, data: Mapping[str, Any], sizes: StepSizes) -> Any:
        """An array of the mask: an entry per token, of each sequence or for all."""
        name, kind = array.decl.name, array.decl.kind
        given = data.get(name)
        if given is None:
            raise DataMissing(name, f"{kind.value} of each token", at=name)
        if kind in (DataKind.intervals, DataKind.tree):
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise BadPages(name, "a pair of arrays", type(given).__name__, at=name)
            given = given[array.part % 2]
        if not hasattr(given, "shape"):
            given = np.asarray(given)
        values = self.take(given, name, len(given.shape), flags=True)
        shape = (sizes.sequences, sizes.max_kv)
        if tuple(values.shape) not in (shape, shape[1:]):
            raise BadPages(name, f"of shape {list(shape)} or {list(shape[1:])}: an entry per token",
                           list(values.shape), at=name)  # fmt: skip
        return values

    def most_keys(self, page_table: Any, most: int | None, page_size: int) -> int:
        """Return the most keys that a sequence may have: what the caller says, or what pages hold.

        Raises:
            BadPages: the host would have to read kv_indptr from a GPU.
        """
        if most is not None:
            return checked_count(most, "max_seqlen_kv")
        if not isinstance(page_table, tuple):
            return int(self.take(page_table, "page_table", 2).shape[1]) * page_size
        if not self._memory.on_host:
            wanted = "given with kv_indptr on a GPU, which the host does not read"
            raise BadPages("max_seqlen_kv", wanted, None, at="max_seqlen_kv")
        ends = self.take(page_table[0], "kv_indptr", 1)
        return int((ends[1:] - ends[:-1]).max()) * page_size if len(ends) > 1 else 0


def first_of(page_table: Any) -> Any:
    """The array of a page table that says where plans are made.

    Raises:
        BadPages: there are not as many arrays as a table has.
    """
    wanted = "an array [S, W], or a tuple (kv_indptr, kv_indices)"
    if isinstance(page_table, list) and any(hasattr(x, "shape") for x in page_table):
        raise BadPages("page_table", wanted, "a list of arrays", at="page_table")
    if not isinstance(page_table, tuple):
        return page_table
    if len(page_table) != 2:
        raise BadPages("page_table", wanted, f"{len(page_table)} arrays", at="page_table")
    return page_table[0]


def known_lengths(
    on_host: bool, seq_lens_q: Any, cu_seqlens_q: Any, sequences: int, total: int | None,
    most: int | None,
) -> QueryLengths:  # fmt: skip
    """Return the facts about queries that the host knows without waiting.

    Raises:
        BadPages: neither lengths nor cumulative lengths are given, or both, or lengths that lie on
            a GPU without total_q and max_seqlen_q.
    """
    if (seq_lens_q is None) == (cu_seqlens_q is None):
        wanted = "given where cu_seqlens_q is not, and only there"
        raise BadPages("seq_lens_q", wanted, type(seq_lens_q).__name__, at="seq_lens_q")
    if type(seq_lens_q) is int:
        if seq_lens_q < 0:
            raise BadPages("seq_lens_q", "an integer from 0 on", seq_lens_q, at="seq_lens_q")
        return QueryLengths(sequences, seq_lens_q, sequences * seq_lens_q, seq_lens_q)
    total = None if total is None else checked_count(total, "total_q")
    most = None if most is None else checked_count(most, "max_seqlen_q")
    if total is None or most is None:
        given = seq_lens_q if cu_seqlens_q is None else cu_seqlens_q
        if not on_host and getattr(getattr(given, "device", None), "type", "cpu") != "cpu":
            name = "total_q" if total is None else "max_seqlen_q"
            wanted = "given with lengths on a GPU, which the host does not read"
            raise BadPages(name, wanted, None, at=name)
        lens = np.asarray(given)
        lens = lens if cu_seqlens_q is None else np.diff(lens)
        total = int(lens.sum()) if total is None else total
        most = int(lens.max(initial=0)) if most is None else most
    return QueryLengths(sequences, 0, total, most)


def parameters(paged: PagedAttention, data: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters among the data of a plan.

    Raises:
        DataMissing, DataUnknown.
    """
    arrays = {array.decl.name: array.decl for array in paged.placed.arrays}
    params = {name for name, _ in paged.attn.bundle.params}
    for name in data:
        if name not in arrays and name not in params:
            raise unknown_keyword(name, [*arrays, *params], ())
    for name, decl in arrays.items():
        if name not in data:
            raise DataMissing(name, f"{decl.kind.value} of each token", at=name)
    return {name: x for name, x in data.items() if name in params}
