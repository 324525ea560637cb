"""Attention of sequences whose keys and values lie in pages of a pool: `mc.paged`.

A plan says where the tokens of one step stand and in which pages their keys lie; all layers of the
step share it. It is made by array operations on the device that holds the page table, so that
nothing waits. Kernels work on *blocks* of queries: the queries of a sequence are cut into blocks of
one size. Blocks are the sequences of a launch, and each brings its positions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core.data import DataKind
from maskc.core.dtypes import DType
from maskc.core.errors import BadPages, BadPageTable, DataMissing, NotPaged
from maskc.core.problem import Placed
from maskc.core.tensors import torch_of
from maskc.core.unknown import unknown_keyword
from maskc.dispatch.options import Pages
from maskc.dsl.mask import Mask
from maskc.dsl.score_tracer import Score
from maskc.ir.placed import LENGTH, POSITION, QUERIES, TokenArray, placed
from maskc.runtime.paged import BLOCK, TABLES, PageTables

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

_LAYOUTS = ("NHD", "HND")
_ROWS = 128
"""Rows of a tile of queries, which the heads of a key/value head share."""
_ROUNDED = 128
"""Keys to whose multiple the longest sequence is rounded up, so that steps share launches."""


def paged(
    mask: Mask, *, page_size: int, head_dim: int, n_heads: int, n_kv_heads: int | None = None,
    head_dim_v: int | None = None, dtype: object = None, layout: str = "NHD",
    score: Score | None = None, target: str | None = None,
) -> PagedAttention:  # fmt: skip
    """Compile a mask for keys and values that lie in pages of a pool.

    The mask is read in each sequence's own positions, from 0 on; the queries of a call are the
    sequence's last tokens. On Hopper kernels load the rows of a tile from the pages where they lie.
    Other targets copy the pages of a call first, which takes time and memory.

    Args:
        mask: documents, flags, intervals, positions and trees have an entry per token of a
            sequence. Selections at run time, tables and captured arrays are refused.
        page_size: tokens of a page. Multiples of 8 are loaded as boxes, others row by row.
        head_dim: elements of a row of q and k.
        n_heads: query heads.
        n_kv_heads: key/value heads, a divisor of n_heads; n_heads when None.
        head_dim_v: elements of a row of v; head_dim when None.
        dtype: of q, k and v, of two or four bytes; None: that of each call.
        layout: of pools: "NHD" is [pages, page_size, n_kv_heads, D], "HND" is [pages, n_kv_heads,
            page_size, D].
        score: a score formula, see `mc.score`; its q and k are positions in a sequence.
        target: as of Mask.compile.

    Returns:
        What makes plans and runs them.

    Raises:
        BadPages: an argument is out of range (MC464).
        NotPaged: the mask or the formula cannot be read in positions (MC466).
        MaskcError: as Mask.compile.
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    counts = {"page_size": page_size, "n_heads": n_heads, "n_kv_heads": n_kv_heads}
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise BadPages(name, "a positive integer", repr(count), at=name)
    if n_heads % n_kv_heads:
        raise BadPages("n_kv_heads", f"a divisor of n_heads={n_heads}", n_kv_heads, at="n_kv_heads")
    if layout not in _LAYOUTS:
        raise BadPages("layout", "'NHD' or 'HND'", repr(layout), at="layout")
    if dtype is not None and DType.parse(dtype).itemsize == 1:
        raise BadPages("dtype", "one of two or four bytes an element", str(dtype), at="dtype")
    if score is not None:
        if score.mask is not None:
            mask, score = mask & score.mask, Score(score.inputs)
        read = {x.name for x in E.walk(score.formula.logit) if isinstance(x, E.Sym)}
        for name in sorted(read & {"n_q", "n_kv", "b"}):
            raise NotPaged(f"has a score formula that reads {name}", at="score")
    options = {
        "head_dim": head_dim, "head_dim_v": head_dim_v, "dtype": dtype, "score": score,
        "target": target,
    }  # fmt: skip
    return PagedAttention(mask, page_size, (n_heads, n_kv_heads), layout, options)


class PagedAttention:
    """A mask compiled for pages: `plan` takes the tables of a step, `run` the tensors of a layer.

    `mc.paged` makes one.
    """

    def __init__(
        self, mask: Mask, page_size: int, heads: tuple[int, int], layout: str,
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Compile the mask.

        Args:
            mask, page_size, layout: as of `mc.paged`.
            heads: query heads, and key/value heads.
            options: of Mask.compile.
        """
        from maskc.driver import compile as compiled

        self.mask, self.page_size, self.heads, self.layout = mask, page_size, heads, layout
        self.placed = placed(mask, heads[0])
        self.attn: CompiledMask = compiled(
            self.placed.mask, n_heads=heads[0], placed=Placed(POSITION, page_size), **options
        )
        """The compiled mask over blocks of queries."""

    def __repr__(self) -> str:
        """The mask, and how its keys lie."""
        return f"PagedAttention({self.mask!r}, pages of {self.page_size}, {self.layout})"

    @property
    def loads_pages(self) -> bool:
        """Whether kernels load pages where they lie; otherwise calls copy them first."""
        return self.attn.bundle.problem.page_size > 0

    def plan(
        self, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any, *, cu_seqlens_q: Any = None,
        total_q: int | None = None, max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None, **data: Any,
    ) -> PagedPlan:  # fmt: skip
        """Say where the tokens of a step stand, and in which pages their keys lie.

        All arrays lie on the device of the page table, and nothing is read from a GPU. Numbers that
        the host cannot know without waiting are arguments.

        Args:
            page_table: integers [S, W]: the pages of each sequence, in the order of its tokens; or
                (kv_indptr [S + 1], kv_indices): where each sequence's entries begin, and all
                entries. Entries behind a sequence's last key are not read.
            seq_lens_q: queries of each sequence, [S], or one integer for all. None with
                cu_seqlens_q.
            seq_lens_kv: keys of each sequence, [S], those of its queries among them.
            cu_seqlens_q: in place of seq_lens_q: [S + 1], where each sequence's queries begin.
            total_q: rows of q. Needed where seq_lens_q lies on a GPU; rows behind the last
                sequence's are 0 in the result.
            max_seqlen_q: the most queries of a sequence, likewise.
            max_seqlen_kv: the most keys of a sequence, now and after updates; W * page_size when
                None. Needed with kv_indptr on a GPU.
            **data: data of the mask, [S, max_seqlen_kv] or [max_seqlen_kv]: an entry per token;
                and parameters, as integers.

        Raises:
            BadPages: an argument does not fit the others (MC464).
            BadPageTable: with MASKC_CHECK=1, a table names what is no page (MC465).
            DataMissing, DataUnknown: data are missing, or of another mask (MC301, MC302).
        """
        return PagedPlan(
            self, page_table, seq_lens_q, seq_lens_kv, cu_seqlens_q,
            (total_q, max_seqlen_q, max_seqlen_kv), data,
        )  # fmt: skip

    def run(
        self, q: Any, k_pool: Any, v_pool: Any, plan: PagedPlan, *, scale: float | None = None,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        **tables: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Attention of one layer.

        Args:
            q: the queries of all sequences, one after another, [tokens, n_heads, D].
            k_pool, v_pool: pools in the layout of `mc.paged`, with any strides between rows.
            plan: of this step.
            scale, softcap, alibi_slopes, sink_logits: as of CompiledMask.
            **tables: tables and parameters of the score formula.

        Returns:
            out [tokens, n_heads, Dv] in the dtype of q, and lse fp32 [tokens, n_heads], natural
            log. A query without a key has out 0 and lse -inf, or its sink logit.

        Raises:
            BadPages: a tensor has another shape than the plan says (MC464).
            MaskcError: as CompiledMask.
        """
        heads, kv_heads = self.heads
        if len(q.shape) != 3 or q.shape[0] != plan.tokens or q.shape[1] != heads:
            wanted = f"of shape [{plan.tokens}, {heads}, head_dim]"
            raise BadPages("q", wanted, list(q.shape), at="q")
        for name, pool in (("k_pool", k_pool), ("v_pool", v_pool)):
            rows = (self.page_size, kv_heads)[:: 1 if self.layout == "NHD" else -1]
            if len(pool.shape) != 4 or tuple(pool.shape[1:3]) != rows:
                wanted = f"of shape [pages, {rows[0]}, {rows[1]}, head_dim]"
                raise BadPages(name, wanted, list(pool.shape), at=name)
        if k_pool.shape[0] != v_pool.shape[0]:
            wanted = f"a pool of {k_pool.shape[0]} pages, as k_pool is"
            raise BadPages("v_pool", wanted, v_pool.shape[0], at="v_pool")
        attn = self.attn.serving(q)
        if os.environ.get("MASKC_CHECK") == "1":
            plan.check(k_pool.shape[0])
        given = {**plan.data, **tables}
        if self.layout == "NHD":
            k_pool, v_pool = (x.swapaxes(1, 2) for x in (k_pool, v_pool))
        blocks = plan.block_queries(q)
        if attn.bundle.problem.page_size:
            k, v, given[TABLES] = plan.in_pages(k_pool, v_pool)
        else:
            k, v = plan.copied(k_pool), plan.copied(v_pool)
        options = {"softcap": softcap, "alibi_slopes": alibi_slopes, "sink_logits": sink_logits}
        shown = {name: x for name, x in options.items() if x is not None}
        out, lse = attn(blocks, k, v, scale=scale, return_lse=True, **shown, **given)
        return plan.rows(out, lse)


class _Ops(NamedTuple):
    """Array operations of one library on one device."""

    torch: Any
    """None: NumPy."""
    device: Any

    def array(self, x: Any, name: str, rank: int) -> Any:
        """Integers of so many dimensions, int32 and contiguous, on the device.

        Raises:
            BadPages: no integers, another rank, or another device.
        """
        if self.torch is None:
            found = np.ascontiguousarray(x)
            whole = found.dtype.kind in "biu"
            found = found.astype(np.int32, copy=False) if whole else found
        else:
            found = x if isinstance(x, self.torch.Tensor) else self.torch.as_tensor(np.asarray(x))
            whole = not (found.is_floating_point() or found.is_complex())
            if isinstance(x, self.torch.Tensor) and x.device != self.device:
                raise BadPages(name, f"on {self.device}, as the page table", x.device, at=name)
            found = found.to(self.device, self.torch.int32).contiguous()
        if not whole or len(found.shape) != rank:
            wanted = f"integers of {rank} dimension{'s' * (rank != 1)}"
            raise BadPages(name, wanted, f"{x.dtype if hasattr(x, 'dtype') else type(x).__name__} "
                           f"of shape {list(found.shape)}", at=name)  # fmt: skip
        return found

    def span(self, count: int) -> Any:
        """0, 1, ..."""
        if self.torch is None:
            return np.arange(count, dtype=np.int32)
        return self.torch.arange(count, dtype=self.torch.int32, device=self.device)

    def sums(self, x: Any) -> Any:
        """Where each begins if they follow each other, and the end: one entry more than x."""
        if self.torch is None:
            return np.concatenate([np.zeros(1, np.int32), np.cumsum(x, dtype=np.int32)])
        total = self.torch.cumsum(x, 0, dtype=self.torch.int32)
        return self.torch.nn.functional.pad(total, (1, 0))

    def owner(self, starts: Any, places: Any) -> Any:
        """Which of the runs that begin at `starts` each place lies in, and how many runs there are
        for a place behind all of them."""
        if self.torch is None:
            return np.searchsorted(starts[1:], places, side="right").astype(np.int32)
        return self.torch.searchsorted(starts[1:].contiguous(), places, right=True, out_int32=True)

    def where(self, condition: Any, x: Any, other: Any) -> Any:
        """x where a condition holds, else the other, a number or an array."""
        return (np if self.torch is None else self.torch).where(condition, x, other)

    def on_host(self) -> bool:
        """Whether the host can read arrays without waiting."""
        return self.torch is None or self.device.type == "cpu"


class _Lengths(NamedTuple):
    """Facts about the queries of a step that the host knows."""

    sequences: int
    each: int
    """Queries of every sequence; 0 where they differ, or may."""
    total: int
    most: int


class PagedPlan:
    """The tokens of one step, and the pages of their keys; `PagedAttention.plan` makes it.

    A CUDA graph may hold `update` and the runs behind it: it then reads what the arrays of the
    update hold whenever it is replayed.
    """

    def __init__(
        self, paged: PagedAttention, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any,
        cu_seqlens_q: Any, known: tuple[int | None, int | None, int | None],
        data: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Arguments as of `PagedAttention.plan`; `known`: total_q, max_seqlen_q, max_seqlen_kv."""
        self._paged = paged
        first = page_table[0] if isinstance(page_table, tuple) else page_table
        torch = torch_of(first)
        self._ops = ops = _Ops(torch, None if torch is None else first.device)
        lens_kv = ops.array(seq_lens_kv, "seq_lens_kv", 1)
        sequences = lens_kv.shape[0]
        self._lengths = _known_lengths(ops, seq_lens_q, cu_seqlens_q, sequences, known[0], known[1])
        self.tokens = self._lengths.total
        """Rows of q."""
        self.max_seqlen_kv = self._most_keys(page_table, known[2])
        """The most keys that a sequence of this plan may have."""
        self.n_kv = -(-self.max_seqlen_kv // _ROUNDED) * _ROUNDED
        self._block, self._blocks = self._cut()
        self._params = _parameters(paged, data)
        self._state: dict[str, Any] = {}
        self._fill(page_table, seq_lens_q, lens_kv, cu_seqlens_q, data)

    def update(
        self, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any, *, cu_seqlens_q: Any = None,
        **data: Any,
    ) -> None:  # fmt: skip
        """Take the tables of another step, of the same shapes and within the same maxima.

        Arrays of the plan keep their places. Nothing is read from a GPU, so that a CUDA graph may
        hold it.

        Args:
            page_table, seq_lens_q, seq_lens_kv, cu_seqlens_q, data: as of `plan`.

        Raises:
            BadPages: an array has another shape (MC464).
        """
        each = self._lengths.each
        if each and not (type(seq_lens_q) is int and seq_lens_q == each):
            wanted = f"{each}, the queries of every sequence of this plan"
            raise BadPages("seq_lens_q", wanted, seq_lens_q, at="seq_lens_q")
        lens_kv = self._ops.array(seq_lens_kv, "seq_lens_kv", 1)
        self._fill(page_table, seq_lens_q, lens_kv, cu_seqlens_q, data)

    # -------------------------------------------------------------- what a step is

    def _most_keys(self, page_table: Any, most: int | None) -> int:
        size = self._paged.page_size
        if most is not None:
            if type(most) is not int or most < 0:
                raise BadPages("max_seqlen_kv", "an integer from 0 on", most, at="max_seqlen_kv")
            return most
        if not isinstance(page_table, tuple):
            table = self._ops.array(page_table, "page_table", 2)
            return int(table.shape[1]) * size
        if not self._ops.on_host():
            wanted = "given with kv_indptr on a GPU, which the host does not read"
            raise BadPages("max_seqlen_kv", wanted, None, at="max_seqlen_kv")
        ends = self._ops.array(page_table[0], "kv_indptr", 1)
        return int((ends[1:] - ends[:-1]).max()) * size if len(ends) > 1 else 0

    def _cut(self) -> tuple[int, int]:
        """Queries of a block, and how many blocks there are at most.

        Blocks fit their heads into one tile of rows, which then reads keys once. Where pages are
        copied, a sequence is one block: each block gets a copy.
        """
        lengths, group = self._lengths, self._paged.heads[0] // self._paged.heads[1]
        fitting = max(1, _ROWS // group)
        if lengths.each and (lengths.each <= fitting or not self._paged.loads_pages):
            return lengths.each, lengths.sequences
        if not self._paged.loads_pages:
            return max(1, lengths.most), lengths.sequences
        block = min(fitting, 1 << max(0, lengths.most - 1).bit_length())
        return block, lengths.sequences + lengths.total // block

    @property
    def _whole(self) -> bool:
        """Whether a block is a sequence of the call, so that no query is moved."""
        return bool(self._lengths.each) and self._block == self._lengths.each

    def _fill(
        self, page_table: Any, seq_lens_q: Any, lens_kv: Any, cu_seqlens_q: Any,
        data: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Make all arrays of the step, in the places of those that there are."""
        ops, count = self._ops, self._lengths.sequences
        _has(lens_kv, (count,), "seq_lens_kv")
        starts = self._starts(seq_lens_q, cu_seqlens_q)
        lens_q = starts[1:] - starts[:-1]
        if self._whole:
            owner = ops.span(count)
            local = ops.span(self._block)[None]
        else:
            firsts = ops.sums((lens_q + (self._block - 1)) // self._block)
            owner = ops.owner(firsts, ops.span(self._blocks))
            owner = owner.clip(max=max(0, count - 1))
            local = (ops.span(self._blocks) - firsts[owner])[:, None] * self._block
            local = local + ops.span(self._block)[None]
            self._take_rows(starts, firsts, owner, local, lens_q)
        own_q, own_kv = lens_q[owner][:, None], lens_kv[owner][:, None]
        there = local < own_q
        position = own_kv - own_q + local
        keys = ops.where(there, own_kv, 0)
        self._put(POSITION, ops.where(there, position, -1))
        self._put(LENGTH, keys)
        if QUERIES in self._paged.placed.reads:
            self._put(QUERIES, own_q + 0 * local)
        self._put("key_count", keys.max(1) if ops.torch is None else keys.amax(1))
        self._put("used", lens_kv)
        entries, firsts_of = self._entries(page_table)
        self._put("pages", entries)
        self._put("first_page", firsts_of[owner])
        for array in self._paged.placed.arrays:
            self._put(array.name, self._data_array(array, data, owner, position))

    def _starts(self, seq_lens_q: Any, cu_seqlens_q: Any) -> Any:
        """Where each sequence's queries begin, [S + 1]."""
        ops, count = self._ops, self._lengths.sequences
        if cu_seqlens_q is not None:
            starts = ops.array(cu_seqlens_q, "cu_seqlens_q", 1)
            _has(starts, (count + 1,), "cu_seqlens_q")
            return starts
        if type(seq_lens_q) is int:
            return ops.span(count + 1) * seq_lens_q
        lens = ops.array(seq_lens_q, "seq_lens_q", 1)
        _has(lens, (count,), "seq_lens_q")
        return ops.sums(lens)

    def _take_rows(self, starts: Any, firsts: Any, owner: Any, local: Any, lens_q: Any) -> None:
        """Return the rows of q of each block, and the place of each row's results."""
        ops, last = self._ops, max(0, self.tokens - 1)
        rows = (starts[owner][:, None] + local).clip(min=0, max=last)
        self._put("rows", rows)
        token = ops.span(self.tokens)
        of = ops.owner(starts, token)
        real = of < self._lengths.sequences
        of = of.clip(max=max(0, self._lengths.sequences - 1))
        place = firsts[of] * self._block + (token - starts[of])
        self._put("places", ops.where(real, place, 0))
        self._put("real", real)

    def _entries(self, page_table: Any) -> tuple[Any, Any]:
        """All entries in a row, and where each sequence's begin."""
        ops, count = self._ops, self._lengths.sequences
        if isinstance(page_table, tuple):
            ends = ops.array(page_table[0], "kv_indptr", 1)
            _has(ends, (count + 1,), "kv_indptr")
            return ops.array(page_table[1], "kv_indices", 1), ends[:-1]
        table = ops.array(page_table, "page_table", 2)
        _has(table, (count, table.shape[1]), "page_table")
        wanted = -(-self.max_seqlen_kv // self._paged.page_size)
        if table.shape[1] < wanted:
            name = f"of {wanted} columns at least, for max_seqlen_kv={self.max_seqlen_kv}"
            raise BadPages("page_table", name, table.shape[1], at="page_table")
        return table.reshape(-1), ops.span(count) * int(table.shape[1])

    def _data_array(self, array: TokenArray, data: Mapping[str, Any], owner: Any, at: Any) -> Any:
        """An array of the mask for each block: [blocks, queries of a block], or [.., keys]."""
        ops, name, kind = self._ops, array.decl.name, array.decl.kind
        given = data[name]
        if kind in (DataKind.intervals, DataKind.tree):
            if not isinstance(given, (tuple, list)) or len(given) != 2:
                raise BadPages(name, "a pair of arrays", type(given).__name__, at=name)
            given = given[array.part % 2]
        if not hasattr(given, "shape"):
            given = np.asarray(given)
        found = ops.array(given, name, len(given.shape))
        shape = (self._lengths.sequences, self.max_seqlen_kv)
        if tuple(found.shape) not in (shape, shape[1:]):
            raise BadPages(name, f"of shape {list(shape)} or {list(shape[1:])}: an entry per token",
                           list(found.shape), at=name)  # fmt: skip
        if kind is DataKind.flags:
            found = ops.where(found != 0, 1, 0)
        if array.of_queries:
            at = at.clip(min=0, max=max(0, shape[1] - 1))
            return found[at] if len(found.shape) == 1 else found[owner[:, None], at]
        more = self.n_kv - shape[1]
        if ops.torch is None:
            found = np.pad(found, [(0, 0)] * (len(found.shape) - 1) + [(0, more)])
        else:
            found = ops.torch.nn.functional.pad(found, (0, more))
        return found[None] if len(found.shape) == 1 else found[owner]

    def _put(self, name: str, values: Any) -> None:
        """Keep an array, in the place of the one that there is.

        Raises:
            BadPages: it has another shape.
        """
        ops, known = self._ops, self._state.get(name)
        kind = bool if name == "real" else np.int32
        if known is None:
            if ops.torch is None:
                self._state[name] = np.array(values, kind, order="C")
            else:
                kind = ops.torch.bool if name == "real" else ops.torch.int32
                self._state[name] = values.to(kind).contiguous().clone()
        elif tuple(known.shape) != tuple(values.shape):
            raise BadPages(name, f"of shape {list(known.shape)}, as before", list(values.shape),
                           at=name)  # fmt: skip
        elif ops.torch is None:
            known[...] = values
        else:
            known.copy_(values)

    # -------------------------------------------------------------- what calls are given

    @property
    def data(self) -> dict[str, Any]:
        """The data of the compiled mask, by name."""
        names = {*self._paged.placed.reads, *(x.name for x in self._paged.placed.arrays), POSITION}
        return {**{name: self._state[name] for name in sorted(names)}, **self._params}

    def block_queries(self, q: Any) -> Any:
        """The queries [blocks, heads, queries of a block, D] of a call."""
        blocks, block = self._blocks, self._block
        if not self._whole:
            q = q[self._state["rows"].reshape(-1)]
        q = q.reshape(blocks, block, *q.shape[1:]).swapaxes(1, 2)
        if block == 1:
            return q
        return np.ascontiguousarray(q) if self._ops.torch is None else q.contiguous()

    def rows(self, out: Any, lse: Any) -> tuple[Any, Any]:
        """The results of a call for each row of q: out [tokens, heads, D], lse [tokens, heads]."""
        out, lse = out.swapaxes(1, 2), lse.swapaxes(1, 2)
        out, lse = out.reshape(-1, *out.shape[2:]), lse.reshape(-1, lse.shape[2])
        if self._whole:
            return out, lse
        places, real = self._state["places"], self._state["real"][:, None]
        zero, none = out.dtype.type(0) if self._ops.torch is None else 0, np.float32(-np.inf)
        out = self._ops.where(real[..., None], out[places], zero)
        return out, self._ops.where(real, lse[places], float(none))

    def in_pages(self, k_pool: Any, v_pool: Any) -> tuple[Any, Any, PageTables]:
        """k and v [blocks, heads, keys, D] without places, and where their pages are.

        Args:
            k_pool, v_pool: [pages, heads, page_size, D].
        """
        state, torch = self._state, self._ops.torch
        found, steps = [], []
        for pool in (k_pool, v_pool):
            page, head, token, dim = pool.stride()
            shape = (self._blocks, pool.shape[1], self.n_kv, pool.shape[3])
            found.append(torch.as_strided(pool, shape, (0, head, 0, dim)))
            steps.append((page, head, token))
        held = tuple(state[name] for name in ("pages", "first_page", "key_count"))
        block = BLOCK.pack(*(x.data_ptr() for x in held), k_pool.shape[0])
        return found[0], found[1], PageTables(Pages(k_pool.shape[0], *steps), block, held)

    def copied(self, pool: Any) -> Any:
        """The rows of a pool [pages, heads, page_size, D] one after another for each sequence:
        [blocks, heads, keys, D], with zeros where a sequence has no key."""
        ops, size, state = self._ops, self._paged.page_size, self._state
        key = ops.span(self.n_kv)
        there = key[None] < state["key_count"][:, None]
        entry = state["first_page"][:, None] + key[None] // size
        entries = state["pages"]
        there = there & (entry < entries.shape[0])
        if not entries.shape[0] or not pool.shape[0]:
            entries, there = ops.span(1), there & False
        page = entries[ops.where(there, entry, 0)]
        there = there & (page >= 0) & (page < pool.shape[0])
        if not pool.shape[0]:
            page_pool = pool.reshape(1, pool.shape[1], size, pool.shape[3])
        else:
            page_pool = pool
        rows = page_pool.swapaxes(1, 2)[ops.where(there, page, 0), (key % size)[None]]
        zero = rows.dtype.type(0) if ops.torch is None else 0
        return ops.where(there[..., None, None], rows, zero).swapaxes(1, 2)

    def check(self, pages: int) -> None:
        """Read the tables, and wait for them.

        Raises:
            BadPageTable: an entry that is read is no page, or two entries of a sequence are one
                page, or a sequence has more keys than the plan allows (MC465).
        """
        entries, first, count, owner_first = (
            _numpy(self._state[name]) for name in ("pages", "first_page", "key_count", "used")
        )
        if owner_first.size and owner_first.max() > self.max_seqlen_kv:
            sequence = int(owner_first.argmax())
            found = f"{owner_first.max()} keys, and max_seqlen_kv is {self.max_seqlen_kv}"
            raise BadPageTable(sequence, found, at="seq_lens_kv")
        for block, (start, keys) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
            own = entries[start : start + -(-keys // self._paged.page_size)]
            wrong = own[(own < 0) | (own >= pages)]
            if wrong.size:
                found = f"its page {wrong[0]} is none of the {pages} pages of the pool"
                raise BadPageTable(block, found, at="page_table")
            if len(np.unique(own)) < len(own):
                raise BadPageTable(block, "one page holds two runs of its keys", at="page_table")


def _has(x: Any, shape: tuple[int, ...], name: str) -> None:
    if tuple(x.shape) != shape:
        raise BadPages(name, f"of shape {list(shape)}", list(x.shape), at=name)


def _numpy(x: Any) -> np.ndarray:
    found: np.ndarray = x.cpu().numpy() if hasattr(x, "cpu") else x
    return found


def _known_lengths(
    ops: _Ops, seq_lens_q: Any, cu_seqlens_q: Any, sequences: int, total: int | None,
    most: int | None,
) -> _Lengths:  # fmt: skip
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
        return _Lengths(sequences, seq_lens_q, sequences * seq_lens_q, seq_lens_q)
    if total is None or most is None:
        given = seq_lens_q if cu_seqlens_q is None else cu_seqlens_q
        if not ops.on_host() and getattr(getattr(given, "device", None), "type", "cpu") != "cpu":
            name = "total_q" if total is None else "max_seqlen_q"
            wanted = "given with lengths on a GPU, which the host does not read"
            raise BadPages(name, wanted, None, at=name)
        lens = np.asarray(given)
        lens = lens if cu_seqlens_q is None else np.diff(lens)
        total = int(lens.sum()) if total is None else total
        most = int(lens.max(initial=0)) if most is None else most
    return _Lengths(sequences, 0, total, most)


def _parameters(paged: PagedAttention, data: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters among the data of a plan.

    Raises:
        DataMissing, DataUnknown.
    """
    arrays = {each.decl.name: each.decl for each in paged.placed.arrays}
    params = {name for name, _ in paged.attn.bundle.params}
    for name in data:
        if name not in arrays and name not in params:
            raise unknown_keyword(name, [*arrays, *params], ())
    for name, decl in arrays.items():
        if name not in data:
            raise DataMissing(name, f"{decl.kind.value} of each token", at=name)
    return {name: x for name, x in data.items() if name in params}
