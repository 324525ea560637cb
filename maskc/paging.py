"""Attention of sequences whose keys and values lie in pages of a pool: `mc.paged`.

A plan holds the positions of the tokens of one step, and the pages of their keys; all layers of the
step share it. One launch makes it on the GPU that holds the page table, NumPy makes it on a CPU.
Kernels work on *blocks* of queries: the queries of a sequence are divided into blocks of one size.
In a launch, blocks are the sequences, each with its own positions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.data import DataKind, Parents
from maskc.core.dtypes import E4M3, DType
from maskc.core.errors import (
    BadPages,
    BadPageTable,
    DataMissing,
    NotPaged,
    PageFreed,
    PageNotShared,
    PageOutOfPool,
    PageTwice,
    SlotTwice,
    TargetNotBuilt,
)
from maskc.core.problem import Placed
from maskc.core.tensors import refuse_masked, torch_of
from maskc.core.unknown import unknown_keyword
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import structure
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.parameters import param
from maskc.dsl.score_tracer import Score, as_score
from maskc.dsl.tracer import where
from maskc.ir.placed import LENGTH, POSITION, QUERIES, PlacedMask, TokenArray, placed
from maskc.layout.inputs.call_data import times_of_parents
from maskc.layout.inputs.host import check_int32
from maskc.layout.paged_step import PageLists, StepSizes, TokenData, step_arrays
from maskc.runtime.arrays.known import Library
from maskc.runtime.autograd import has_modes, is_compiling, needs_torch
from maskc.runtime.merge import merge
from maskc.runtime.new_rows import NewRows
from maskc.runtime.paged import BLOCK, TABLES, PoolFactor, PoolScales, pool_block
from maskc.runtime.paged_launch import (
    FLOAT_CODES,
    STEP,
    ArgumentBlock,
    Integers,
    PageKernels,
    RowMover,
    page_kernels,
)
from maskc.runtime.paged_rows import Rotary, dtype_of, is_e4m3
from maskc.runtime.query_blocks import QueryBlocks, address, steps_of
from maskc.runtime.repeated import RepeatedPass

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

_LAYOUTS = ("NHD", "HND")
_POOL_DTYPES = (E4M3, DType.float8_e4m3fn.short, str(DType.float8_e4m3fn))
_ROWS = 128
"""Rows of a tile of queries, which the heads of a key/value head share."""
_VECTOR = 16
"""Bytes to whose multiple kernels align rows of results."""
_ALIGNED = 32
"""int32 entries to which every array of a step is rounded up in memory."""
_STATE = {POSITION: "position", LENGTH: "length", QUERIES: "queries"}
"""Arrays of a step that masks read, by the names of core/abi.STEP_FIELDS."""
FIRST, END = "paged_first_key", "paged_end_key"
"""Parameters of masks between two keys."""
_RUN = (
    "scale", "softcap", "alibi_slopes", "sink_logits", "k_scale", "v_scale", "deterministic", "out",
)  # fmt: skip
"""Options of a run."""
_MOST_SCALES = 512
"""Entries for pairs of scales that a plan remembers, up to two for a pair."""
_MOST_KINDS = 16
"""Kinds of layers whose launch a plan remembers."""
_ROUNDED = 128
"""Keys to whose multiple the longest sequence is rounded up, so that steps share launches."""


def paged(
    mask: Mask, *, page_size: int, head_dim: int, n_heads: int, n_kv_heads: int | None = None,
    head_dim_v: int | None = None, dtype: object = None, layout: str = "NHD",
    score: Score | None = None, target: str | None = None, pool_dtype: object = None,
) -> PagedAttention:  # fmt: skip
    """Compile a mask for a paged KV cache: keys and values in pages of a pool.

    The mask counts positions in each sequence from 0; the queries of a call are the last tokens of
    the sequence. Kernels read the rows of a tile from pages in place. On `simt`, a call copies its
    pages first, which takes time and memory.

    Args:
        mask: documents, flags, intervals, positions and trees have an entry per token of a
            sequence. Selections at run time, tables and captured arrays are refused.
        page_size: tokens of a page. Multiples of 8 are loaded as boxes, others row by row.
        head_dim: elements of a row of q and k.
        n_heads: query heads.
        n_kv_heads: key/value heads, a divisor of n_heads; n_heads when None.
        head_dim_v: elements of a row of v; head_dim when None.
        dtype: dtype of q, k and v: bfloat16, float16 or float32; None: taken from each call.
        layout: layout of pools: "NHD" is [pages, page_size, n_kv_heads, D], "HND" is [pages,
            n_kv_heads, page_size, D].
        score: a score formula, see `mc.score`; its q and k are positions in a sequence.
        target: as in Mask.compile.
        pool_dtype: "float8_e4m3fn" for pools of E4M3, which kernels convert on load; None: pools
            have q's dtype.

    Returns:
        An object that plans a step (`plan`) and runs attention (`run`) on it.

    Raises:
        BadPages: an argument is out of range (MC464).
        NotPaged: the mask or the formula cannot be evaluated at positions (MC466).
        NotAScore: `score` is not a score formula (MC132).
        MaskcError: as `Mask.compile`.
    """
    if not isinstance(mask, Mask):
        raise not_a_mask("mc.paged", mask, at="mask")
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
    if pool_dtype is not None and str(pool_dtype).removeprefix("torch.") not in _POOL_DTYPES:
        wanted = "'float8_e4m3fn', or None for that of q"
        raise BadPages("pool_dtype", wanted, repr(pool_dtype), at="pool_dtype")
    if score is not None:
        score = as_score(score)
        if score.mask is not None:
            mask, score = mask & score.mask, Score(score.inputs)
        read = {x.name for x in E.walk(score.formula.logit) if isinstance(x, E.Sym)}
        for name in sorted(read & {"n_q", "n_kv", "b"}):
            raise NotPaged(f"has a score formula that reads {name}", at="score")
    options = {
        "head_dim": head_dim, "head_dim_v": head_dim_v, "dtype": dtype, "score": score,
        "target": target,
    }  # fmt: skip
    heads = n_heads, n_kv_heads
    return PagedAttention(mask, page_size, heads, layout, options, pool_dtype is not None)


class PagedAttention:
    """A mask compiled for pages: `plan` takes the tables of a step, `run` the tensors of a layer.

    `mc.paged` makes one.
    """

    def __init__(
        self, mask: Mask, page_size: int, heads: tuple[int, int], layout: str,
        options: Mapping[str, Any], in_e4m3: bool = False,
    ) -> None:  # fmt: skip
        """Compile the mask.

        Args:
            mask, page_size, layout: as of `mc.paged`.
            heads: query heads, and key/value heads.
            options: of Mask.compile.
            in_e4m3: whether pools are E4M3.
        """
        self.mask, self.page_size, self.heads, self.layout = mask, page_size, heads, layout
        self._options = options
        self.in_e4m3 = in_e4m3
        self._page_kernels: dict[Any, PageKernels | None] = {}
        self.placed = placed(mask, heads[0])
        self.attn = self._compiled(self.placed)
        """The compiled mask over blocks of queries."""

    def __repr__(self) -> str:
        """The mask, and how its keys lie."""
        return f"PagedAttention({self.mask!r}, pages of {self.page_size}, {self.layout})"

    @cached_property
    def loads_pages(self) -> bool:
        """Whether kernels load pages in place; otherwise calls copy them first."""
        return self.attn.bundle.problem.page_size > 0

    @property
    def cuts_queries(self) -> bool:
        """Whether the queries of a sequence are divided into blocks that fill tiles of GPU kernels;
        otherwise, a sequence is one block."""
        return self.loads_pages and self.attn.target.language == "cuda"

    @property
    def scored(self) -> bool:
        """Whether there is a score formula."""
        return self._options["score"] is not None

    def explain(self) -> str:
        """Return a report: the plan with its reasons, and how pages are read.

        Returns:
            The report as text, as that of CompiledMask.
        """
        problem, target = self.attn.bundle.problem, self.attn.target
        kind = "float32" if target.language == "c" else problem.dtype.value
        numbers = f", E4M3 converted to {kind} on load" if self.in_e4m3 else ""
        line = f"pages    of {self.page_size} tokens, loaded where they lie{numbers}"
        if not self.loads_pages:
            why = f"target {target.name} loads none"
            if target.loads_pages:
                widths = f"{problem.head_dim} and {problem.head_dim_v}"
                why = f"kernels of {target.name} convert no rows of {widths} elements on load"
            line = f"pages    of {self.page_size} tokens, copied before each launch: {why}"
        return self.attn.explain() + line + "\n"

    def plan(
        self, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any, *, cu_seqlens_q: Any = None,
        total_q: int | None = None, max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None, shared_keys: int = 0, **data: Any,
    ) -> PagedPlan:  # fmt: skip
        """Plan a step: set the number of tokens of each sequence, and the pages of their keys.

        All arrays must be on the device of the page table. The host reads nothing from a GPU;
        numbers that it would have to wait for are arguments.

        Args:
            page_table: integers [S, W]: the pages of each sequence, in the order of its tokens; or
                (kv_indptr [S + 1], kv_indices): where each sequence's entries begin, and all
                entries. Entries behind a sequence's last key are not read.
            seq_lens_q: queries of each sequence, [S], or one integer for all. None with
                cu_seqlens_q.
            seq_lens_kv: keys of each sequence, [S], including those of its new tokens.
            cu_seqlens_q: instead of seq_lens_q: integers [S + 1], the first query of each sequence
                and the total.
            total_q: rows of q. Needed if seq_lens_q is on a GPU. Rows after those of the last
                sequence are 0 in the result.
            max_seqlen_q: upper bound on the queries of a sequence. Needed if seq_lens_q is on a
                GPU.
            max_seqlen_kv: upper bound on the keys of a sequence, now and after updates;
                W * page_size when None. Needed if kv_indptr is on a GPU.
            shared_keys: number of tokens at the beginning of all sequences that are in the same
                pages, a multiple of page_size; the method `shared_keys` counts them. A run reads
                them once for many sequences, in a separate launch, and merges the results. Not for
                masks with data.
            **data: data of the mask, [S, max_seqlen_kv] or [max_seqlen_kv]: an entry per token;
                and parameters, as integers. The host reads trees given as `mc.parents(x)`.

        Returns:
            The plan, to be passed to `run` and `append`.

        Raises:
            BadPages: an argument does not fit the others (MC464).
            BadPageTable: a sequence has more keys than its pages hold, or fewer keys than queries
                (MC465). Arrays on a GPU are checked with MASKC_CHECK=1.
            DataMissing, DataUnknown: data are missing, or the mask does not name them (MC301,
                MC302).
        """
        return PagedPlan(
            self, page_table, seq_lens_q, seq_lens_kv, cu_seqlens_q,
            (total_q, max_seqlen_q, max_seqlen_kv), shared_keys, data,
        )  # fmt: skip

    def shared_keys(self, page_table: Any, seq_lens_kv: Any) -> int:
        """Return how many first keys all sequences have in the same pages: what `plan` is given.

        Sequences that end earlier do not limit the number, and keys of one sequence alone do not
        count. The host reads the arrays; where a plan's are on a GPU, pass the host's copies.

        Args:
            page_table, seq_lens_kv: as in `plan`, on the host.

        Returns:
            A multiple of page_size.

        Raises:
            BadPages: an array is on a GPU, or lengths do not fit the table (MC464).
        """
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
        _has(lens, pages.first.shape, "seq_lens_kv")
        for name, x in (("page_table", tables[-1]), ("seq_lens_kv", lens)):
            if x.dtype.kind not in "iu":
                raise BadPages(name, "integers", x.dtype, at=name)
        room = (pages.end - pages.first) * self.page_size
        if (lens < 0).any() or (lens > room).any():
            wanted = f"from 0 on and at most {room.tolist()}, which the pages hold"
            raise BadPages("seq_lens_kv", wanted, lens.tolist(), at="seq_lens_kv")
        counts = np.minimum(-(-lens // self.page_size), pages.end - pages.first)
        width = int(np.sort(counts)[-2]) if len(counts) > 1 else 0
        if width <= 0:
            return 0
        entry = np.arange(width)
        is_own = entry < counts[:, None]
        page = pages.entries[np.where(is_own, pages.first[:, None] + entry, 0)]
        differs = (is_own & (page != page[counts.argmax()])).any(0)
        return self.page_size * int(differs.argmax() if differs.any() else width)

    def run(
        self, q: Any, k_pool: Any, v_pool: Any, plan: PagedPlan, *, scale: float | None = None,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        k_scale: Any = None, v_scale: Any = None, deterministic: bool = False, out: Any = None,
        **tables: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Compute the attention of one layer.

        Args:
            q: the queries of all sequences, one after another, [tokens, n_heads, D].
            k_pool, v_pool: pools in the layout of `mc.paged`, with any strides between rows.
            plan: the plan of this step.
            scale, softcap, alibi_slopes, sink_logits: see calls of CompiledMask.
            k_scale, v_scale: factors by which numbers in E4M3 pools are multiplied: a number, fp32
                [1] or [n_kv_heads], or by sequence [S, n_kv_heads] or [S, 1]; 1 when None.
            deterministic: make results batch-invariant: bitwise independent of the other sequences
                in the call. Splits then depend on the number of keys only, which takes longer for
                calls with few sequences.
            out: memory for out, of its shape and dtype, with any strides; a new tensor when None.
                Layers of a decoding step that repeat a launch write it without a copy.
            **tables: tables and parameters of the score formula.

        Returns:
            out [tokens, n_heads, Dv] in the dtype of q, and lse fp32 [tokens, n_heads], natural
            log. A query without a key has out 0 and lse -inf, or its sink logit.

        Raises:
            BadPages: the shape of a tensor does not fit the plan (MC464).
            TargetNotBuilt: a tensor requires grad (MC503).
            MaskcError: as CompiledMask.
        """
        kind = None
        if (
            type(plan) is PagedPlan and plan.paged is self and plan.repeats and not tables
            and not plan._torch.compiler.is_dynamo_compiling()
        ):  # fmt: skip
            options = scale, softcap, deterministic
            kind = _kind_of(plan._torch, q, k_pool, v_pool, options, alibi_slopes, sink_logits)
            if kind is not None:
                if out is not None:
                    self._check_out(out, q, v_pool, plan)
                part = plan.parts[0]
                repeated = part.again(kind, q, k_pool, v_pool, plan, k_scale, v_scale, out)
                if repeated is not None:
                    return _stored(*repeated, out)
        if is_compiling(q):
            keywords = {
                "scale": scale, "softcap": softcap, "alibi_slopes": alibi_slopes,
                "sink_logits": sink_logits, "k_scale": k_scale, "v_scale": v_scale,
                "deterministic": deterministic, "out": out, **tables,
            }  # fmt: skip
            eager: tuple[Any, Any] = _eagerly(self.run, (q, k_pool, v_pool, plan), keywords)
            return eager
        heads = self.heads[0]
        self._check_plan(plan)
        if len(q.shape) != 3 or q.shape[0] != plan.tokens or q.shape[1] != heads:
            wanted = f"of shape [{plan.tokens}, {heads}, head_dim]"
            raise BadPages("q", wanted, list(q.shape), at="q")
        if out is not None:
            self._check_out(out, q, v_pool, plan)
        scales = plan.scales(k_scale, v_scale)
        for name in tables if self._options["score"] is None else ():
            raise unknown_keyword(name, (), _RUN)
        pools = self._heads_first(k_pool, v_pool)
        of_heads = {"alibi_slopes": alibi_slopes, "sink_logits": sink_logits}
        tensors = {"q": q, "k_pool": k_pool, "v_pool": v_pool}
        plan.check_library(tensors)
        self._admit({**tensors, **of_heads, **tables})
        if _checks():
            plan.check(k_pool.shape[0])
            kind = None
        if not plan.tokens:
            return _stored(*_nothing(q, v_pool), out)
        of_call = CallOptions(scale, True, softcap, alibi_slopes, sink_logits,
                              deterministic=deterministic)  # fmt: skip
        results: list[tuple[Any, Any]] = []
        with _without_autocast(q):
            for number, part in enumerate(plan.parts):
                call = part.call(q, pools, scales, of_call, tables)
                if number:  # sinks count once
                    call = call._replace(options=of_call._replace(sink_logits=None))
                    given = (*call[:3], alibi_slopes, sink_logits, tables)
                    if TABLES in call.data and not needs_torch(*given):
                        call = call._replace(earlier=(*map(part.blocks.blocked, results.pop()),))
                results.append(part.run(call, kind))
        if len(results) == 1:
            return _stored(*results[0], out)
        return _stored(*merge(*zip(*results, strict=True), layout="bhsd"), out)

    def _check_out(self, out: Any, q: Any, v_pool: Any, plan: PagedPlan) -> None:
        """Raise BadPages for memory that out does not fit."""
        plan.check_library({"out": out})
        _has(out, (plan.tokens, self.heads[0], v_pool.shape[-1]), "out")
        if dtype_of(out) != dtype_of(q):
            raise BadPages("out", f"of dtype {dtype_of(q)}, as q", dtype_of(out), at="out")
        if torch_of(out) is not None:
            if out.device != q.device:
                raise BadPages("out", f"on {q.device}, as q", out.device, at="out")
            _as_it_lies(out, "out")

    @cached_property
    def _split(self) -> tuple[PlacedMask, CompiledMask]:
        """The mask between two keys of each sequence, which calls name."""
        within = where(lambda q, k: (k >= param(FIRST, 0)) & (k < param(END, 0)))
        between = placed(self.mask & within, self.heads[0])
        return between, self._compiled(between)

    def _compiled(self, in_pages: PlacedMask) -> CompiledMask:
        from maskc.driver import compile as compiled

        at = Placed(POSITION, self.page_size, DType.float8_e4m3fn if self.in_e4m3 else None)
        return compiled(in_pages.mask, n_heads=self.heads[0], placed=at, **self._options)

    def append(
        self, k: Any, v: Any, k_pool: Any, v_pool: Any, plan: PagedPlan | None = None, *,
        slots: Any = None, q: Any = None, rotary: tuple[Any, Any] | None = None,
        interleaved: bool = False, k_scale: Any = None, v_scale: Any = None,
    ) -> Any:  # fmt: skip
        """Write the keys and values of a step's new tokens into the pools, in place.

        On a GPU this is one launch, and the host reads nothing back. Rows without a sequence or
        without a slot in the pool are skipped.

        Args:
            k, v: [tokens, n_kv_heads, D], a row for each row of q.
            k_pool, v_pool: as in `run`, in the dtype of k or in E4M3.
            plan: the plan of this step; its lengths include the new tokens. None with slots.
            slots: instead of plan: int64 [tokens], the slot of each row: page * page_size + token
                in the page, -1 to skip the row.
            q: queries [tokens, n_heads, D] to rotate like k, or None.
            rotary: a rotary embedding for q and k: (cos, sin), each [positions, R / 2]. The first R
                elements of a row are rotated by the row's position in its sequence.
            interleaved: whether elements 2 i and 2 i + 1 are a pair; else i and i + R / 2 are.
            k_scale, v_scale: for E4M3 pools: rows are divided by these scales; shapes as in `run`.

        Returns:
            The queries, rotated if `rotary` is given; None without q.

        Raises:
            BadPages: a tensor does not fit the plan or the pools (MC464).
            TargetNotBuilt: a tensor requires grad (MC503).
            BadPageTable, SlotTwice: with MASKC_CHECK=1, a page table is wrong, or two rows go to
                one slot (MC465, MC660 to MC663).
        """
        heads, kv_heads = self.heads
        if plan is not None:
            self._check_plan(plan)
            arrays = {"k": k, "v": v, "k_pool": k_pool, "v_pool": v_pool}
            plan.check_library(arrays if q is None else {**arrays, "q": q})
        if interleaved and rotary is None:
            raise BadPages("interleaved", "left out without rotary", repr(interleaved),
                           at="interleaved")  # fmt: skip
        self._check_pools(k_pool, v_pool)
        slots, tokens = self._slots(plan, slots, k, rotary)
        for name, x, count in (("k", k, kv_heads), ("v", v, kv_heads), ("q", q, heads)):
            if x is None:
                continue
            if len(x.shape) != 3 or tuple(x.shape[:2]) != (tokens, count):
                wanted = f"of shape [{tokens}, {count}, head_dim]"
                raise BadPages(name, wanted, list(x.shape), at=name)
            if dtype_of(x) != dtype_of(k) or dtype_of(x) not in FLOAT_CODES or is_e4m3(x):
                wanted = "of dtype float32, bfloat16 or float16, all alike"
                raise BadPages(name, wanted, dtype_of(x), at=name)
        for name, pool, x in (("k_pool", k_pool, k), ("v_pool", v_pool, v)):
            if pool.shape[3] != x.shape[2]:
                wanted = f"of rows of {x.shape[2]} elements, as those that go there"
                raise BadPages(name, wanted, pool.shape[3], at=name)
            if not self.in_e4m3 and dtype_of(pool) != dtype_of(x):
                raise BadPages(name, f"of dtype {dtype_of(x)}, as k", dtype_of(pool), at=name)
        for name, x in (("q", q), ("k", k), ("v", v), ("k_pool", k_pool), ("v_pool", v_pool)):
            if x is not None and torch_of(x) is not None and x.stride(-1) != 1 < x.shape[-1]:
                wanted = "with elements of a row next to each other"
                raise BadPages(name, wanted, f"a stride of {x.stride(-1)}", at=name)
        self._refuse_gradients({"k": k, "v": v, "k_pool": k_pool, "v_pool": v_pool, "q": q})
        turn = None if rotary is None else self._rotary(rotary, interleaved, k)
        if turn is not None and plan is not None:
            plan.check_positions(int(turn.cosine.shape[0]))
        if _checks():
            if plan is not None:
                plan.check(k_pool.shape[0])
            _check_slots(slots, self.page_size)
        if self.layout == "HND":
            k_pool, v_pool = (x.swapaxes(1, 2) for x in (k_pool, v_pool))
        scales = self._scale(k_scale, "k_scale"), self._scale(v_scale, "v_scale")
        positions = None if plan is None else plan.positions
        rows = NewRows(q, k, v, k_pool, v_pool, slots, positions, turn, *scales)
        return rows.write(self._kernels_on(k, "k"))

    def _slots(self, plan: PagedPlan | None, slots: Any, k: Any, rotary: Any) -> tuple[Any, int]:
        """Return the slots of new rows, and their number.

        Raises:
            BadPages: neither a plan nor slots, or both; or slots that do not fit k.
        """
        if (plan is None) == (slots is None):
            wanted = "given where plan is not, and only there"
            raise BadPages("slots", wanted, type(slots).__name__, at="slots")
        if plan is not None:
            return plan.slots, plan.tokens
        if rotary is not None:
            wanted = "left out with slots, which have no positions"
            raise BadPages("rotary", wanted, type(rotary).__name__, at="rotary")
        place = getattr(slots, "device", None), getattr(k, "device", None)
        if not hasattr(slots, "shape"):
            kind = type(slots).__name__
            raise BadPages("slots", "an int64 array of one dimension", kind, at="slots")
        if dtype_of(slots) != "int64" or len(slots.shape) != 1 or place[0] != place[1]:
            wanted = f"int64 of one dimension on {place[1]}, as k"
            kind = f"{dtype_of(slots)} of shape {list(slots.shape)} on {place[0]}"
            raise BadPages("slots", wanted, kind, at="slots")
        if torch_of(slots) is not None:
            slots = slots.contiguous()
        return slots, int(slots.shape[0])

    def _kernels_on(self, x: Any, name: str) -> PageKernels | None:
        """Kernels for steps on the device of an array; None if the host makes the arrays.

        Raises:
            BadPages: kernels of the target cannot read the array.
        """
        device = None if torch_of(x) is None else x.device
        if device in self._page_kernels:
            return self._page_kernels[device]
        kernels = None if device is None else page_kernels(self.attn, x)
        on_host = device is None or device.type == "cpu"
        if kernels is None and (self.attn.target.language == "cuda" or not on_host):
            where = "a GPU" if self.attn.target.language == "cuda" else "the CPU"
            wanted = f"a torch tensor on {where}, for target {self.attn.target.name}"
            kind = f"{type(x).__module__}.{type(x).__name__}"
            if not hasattr(x, "shape"):
                kind = type(x).__name__
            elif device is not None:
                kind = f"one on {device}"
            raise BadPages(name, wanted, kind, at=name)
        self._page_kernels[device] = kernels
        return kernels

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the kernels, which belong to this process."""
        return {**self.__dict__, "_page_kernels": {}}

    def _heads_first(self, k_pool: Any, v_pool: Any) -> tuple[Any, Any]:
        """Return pools as [pages, n_kv_heads, page_size, D].

        Raises:
            BadPages: they do not fit.
        """
        self._check_pools(k_pool, v_pool)
        if self.layout == "HND":
            return k_pool, v_pool
        return k_pool.swapaxes(1, 2), v_pool.swapaxes(1, 2)

    def _check_plan(self, plan: PagedPlan) -> None:
        """Check that a plan is one of this object's own.

        Raises:
            BadPages: it is not (MC464).
        """
        if isinstance(plan, PagedPlan):
            if plan.paged is self or plan.paged._kind == self._kind:
                return
            kind = f"that of {plan.paged!r}"
        else:
            kind = type(plan).__name__
        raise BadPages("plan", f"what plan() of {self!r} returned", kind, at="plan")

    @cached_property
    def _kind(self) -> object:
        """Equal for copies."""
        options = sorted((name, repr(x)) for name, x in self._options.items() if name != "score")
        score = self._options["score"]
        return (
            structure(self.mask), self.page_size, self.heads, self.layout, self.in_e4m3,
            tuple(options), None if score is None else score.formula,
        )  # fmt: skip

    def _admit(self, tensors: Mapping[str, Any]) -> None:
        """Refuse what kernels over pages do not compute.

        Raises:
            BadPages: q has another dtype than kernels (MC464).
            TargetNotBuilt: a gradient is wanted (MC503).
        """
        q = tensors["q"]
        if dtype_of(q) not in FLOAT_CODES or is_e4m3(q):
            raise BadPages("q", "of dtype float32, bfloat16 or float16", dtype_of(q), at="q")
        self._refuse_gradients(tensors)

    def _refuse_gradients(self, tensors: Mapping[str, Any]) -> None:
        torch = torch_of(next(iter(tensors.values())))
        if torch is None or not torch.is_grad_enabled():
            return
        for name, x in tensors.items():
            if getattr(x, "requires_grad", False) is True:
                why = f"{name} requires grad, and pages have a forward pass alone"
                hint = "call it under torch.no_grad(); train by mc.attention on keys without pages"
                raise TargetNotBuilt(self.attn.target.name, "backward", why, hint, at=name)

    def _check_pools(self, k_pool: Any, v_pool: Any) -> None:
        """Raise BadPages if pools have other shapes or dtypes than `mc.paged` says."""
        for name, pool in (("k_pool", k_pool), ("v_pool", v_pool)):
            rows = (self.page_size, self.heads[1])[:: 1 if self.layout == "NHD" else -1]
            if len(pool.shape) != 4 or tuple(pool.shape[1:3]) != rows:
                wanted = f"of shape [pages, {rows[0]}, {rows[1]}, head_dim] for {self.layout}"
                raise BadPages(name, wanted, list(pool.shape), at=name)
            if is_e4m3(pool) != self.in_e4m3:
                wanted = "float8_e4m3fn, as pool_dtype says: pool.view(float8_e4m3fn) of bytes"
                wanted = wanted if self.in_e4m3 else (
                    "of q's dtype; pools of E4M3 need mc.paged(..., pool_dtype='float8_e4m3fn')"
                )  # fmt: skip
                raise BadPages(name, wanted, dtype_of(pool), at=name)
            _as_it_lies(pool, name)
        if k_pool.shape[0] != v_pool.shape[0]:
            wanted = f"a pool of {k_pool.shape[0]} pages, as k_pool is"
            raise BadPages("v_pool", wanted, v_pool.shape[0], at="v_pool")

    def _scale(self, scale: Any, name: str, plan: PagedPlan | None = None) -> Any:
        """The scale of a pool, 1 when None; with a plan also one for each sequence.

        Raises:
            BadPages: it has another shape, or pools are not E4M3.
        """
        if scale is None:
            return 1.0
        wanted = f"a positive number or an array of 1 or {self.heads[1]} of them"
        if not self.in_e4m3:
            wanted, kind = "left out, as pools have q's dtype", type(scale).__name__
            raise BadPages(name, wanted, kind, at=name)
        if hasattr(scale, "shape"):
            shape = tuple(scale.shape)
            if plan is not None and len(shape) == 2:
                plan.check_scale(shape, name)
            elif math.prod(shape) not in (1, self.heads[1]):
                raise BadPages(name, wanted, list(shape), at=name)
            return scale
        if isinstance(scale, (int, float)) and 0 < scale < math.inf:
            return float(scale)
        raise BadPages(name, wanted, repr(scale), at=name)

    def _rotary(self, rotary: tuple[Any, Any], interleaved: bool, k: Any) -> Rotary:
        """Check a rotary embedding.

        Raises:
            BadPages: cosines and sines do not fit each other or the rows.
        """
        pair = rotary if isinstance(rotary, (tuple, list)) and len(rotary) == 2 else (None, None)
        cosine, sine = pair
        shape: tuple[int, ...] = getattr(cosine, "shape", ())
        fits = len(shape) == 2 and shape[0] and shape == getattr(sine, "shape", ())
        if not fits or not 0 < 2 * shape[1] <= k.shape[2]:
            wanted = f"(cos, sin) of one shape [positions, R / 2], R at most {k.shape[2]}"
            shapes = [list(getattr(x, "shape", ())) for x in pair]
            raise BadPages("rotary", wanted, f"shapes {shapes}", at="rotary")
        for x in pair:
            device = getattr(x, "device", None), getattr(k, "device", None)
            if dtype_of(x) != dtype_of(cosine) or dtype_of(x) not in FLOAT_CODES or is_e4m3(x):
                wanted = "of dtype float32, bfloat16 or float16, both alike"
                raise BadPages("rotary", wanted, dtype_of(x), at="rotary")
            if device[0] != device[1]:
                raise BadPages("rotary", f"on {device[1]}, as k", device[0], at="rotary")
        if torch_of(cosine) is not None:
            cosine, sine = cosine.contiguous(), sine.contiguous()
        return Rotary(cosine, sine, interleaved)


class _Repeat(NamedTuple):
    """A launch of a layer, which other layers repeat."""

    launch: RepeatedPass
    block: bytes
    """Page tables, see `runtime/paged`; blocks of scales follow it."""
    out: _Result
    lse: _Result
    numbers: Any
    """An empty array in fp32 where results lie."""


class _Result(NamedTuple):
    """The shape and strides of a result."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class QueryPart:
    """A launch of a run."""

    def __init__(self, attn: CompiledMask, blocks: QueryBlocks, data: dict[str, Any]) -> None:
        """`data`: of the mask."""
        self.blocks = blocks
        self._attn, self._data = attn, data
        self._in_rows = blocks.in_rows
        self._repeats: dict[object, _Repeat] = {}
        """By kinds of calls."""

    def call(
        self, q: Any, pools: tuple[Any, Any], scales: PoolScales, options: CallOptions,
        tables: Mapping[str, Any],
    ) -> AttentionCall:  # fmt: skip
        """Return the call of a launch; `pools` are [pages, heads, page_size, D]."""
        blocks, data = self.blocks, {**self._data, **tables}
        if self._attn.serving(q).bundle.problem.page_size:
            k, v, data[TABLES] = blocks.in_pages(*pools, scales)
        else:
            k, v = (blocks.copied(x, q, scale) for x, scale in zip(pools, scales, strict=False))
        return AttentionCall(blocks.queries(q), k, v, options, data)

    def run(self, call: AttentionCall, kind: object) -> tuple[Any, Any]:
        """Run a call, and remember how layers of this kind repeat it; None: they do not.

        Returns:
            Results for each row of q.
        """
        if kind is None or TABLES not in call.data:
            return self.blocks.rows(*self._attn.attend(call))
        (out, lse), launch = self._attn.serving(call.q).run_first(call)
        if launch is not None:
            if len(self._repeats) >= _MOST_KINDS:
                self._repeats.clear()
            of_out, of_lse = self.blocks.flattened(out, lse)
            block = call.data[TABLES].block[: BLOCK.size]
            self._repeats[kind] = _Repeat(
                launch, block, _Result(of_out.shape, of_out.stride()),
                _Result(of_lse.shape, of_lse.stride()), lse.new_empty(0),
            )  # fmt: skip
        return self.blocks.rows(out, lse)

    def again(
        self, kind: object, q: Any, k_pool: Any, v_pool: Any, plan: PagedPlan, k_scale: Any,
        v_scale: Any, memory: Any = None,
    ) -> tuple[Any, Any] | None:  # fmt: skip
        """Repeat a launch for another layer; None where it has to be planned.

        Args:
            memory: where out may be written, if it lies there as kernels write it.
        """
        known = self._repeats.get(kind)
        if known is None:
            return None
        launch, block, (shape, strides), (lse_shape, lse_strides), numbers = known
        block += plan.scales(k_scale, v_scale).block
        if not self._in_rows:
            q = self.blocks.gathered(q)
        out = memory
        if memory is None or not self._in_rows or memory.data_ptr() % _VECTOR or (
            (memory.shape, memory.stride(), memory.get_device()) != (shape, strides, q.get_device())
        ):  # fmt: skip
            out = q.new_empty_strided(shape, strides)
        lse = numbers.new_empty_strided(lse_shape, lse_strides)
        places = (
            q.data_ptr(), k_pool.data_ptr(), v_pool.data_ptr(), out.data_ptr(), lse.data_ptr()
        )  # fmt: skip
        if not launch.run(q, places, block):
            return None
        return (out, lse) if self._in_rows else self.blocks.of_tokens(out, lse, memory)

    def renew(self) -> None:
        """Make lists of tiles again, after the arrays of the step have changed."""
        for repeat in self._repeats.values():
            repeat.launch.renew()


class _Lengths(NamedTuple):
    """Facts about the queries of a step that the host knows."""

    sequences: int
    sequence_queries: int
    """Queries of every sequence; 0 where they differ, or may."""
    total: int
    most: int


class _Given(NamedTuple):
    """The tables of a step as a caller gives them, checked."""

    lens_q: Any
    """[S], or cumulative [S + 1]; None if all sequences have as many queries."""
    cumulative: bool
    lens_kv: Any
    starts: Any
    """kv_indptr; None with a table of rows."""
    table: Any
    data: tuple[Any, ...]
    """One per array of the mask."""


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
        if isinstance(page_table, list) and any(hasattr(x, "shape") for x in page_table):
            wanted = "an array [S, W], or a tuple (kv_indptr, kv_indices)"
            raise BadPages("page_table", wanted, "a list of arrays", at="page_table")
        if isinstance(page_table, tuple) and len(page_table) != 2:
            wanted = "an array [S, W], or a tuple (kv_indptr, kv_indices)"
            raise BadPages("page_table", wanted, f"{len(page_table)} arrays", at="page_table")
        first = page_table[0] if isinstance(page_table, tuple) else page_table
        self._torch = torch_of(first)
        self._device = None if self._torch is None else first.device
        self._kernels = paged._kernels_on(first, "page_table")
        lens_kv = self._take(seq_lens_kv, "seq_lens_kv", 1)
        count = int(lens_kv.shape[0])
        lengths = _known_lengths(self._on_host, seq_lens_q, cu_seqlens_q, count, known[0], known[1])
        self.tokens = lengths.total
        """Rows of q."""
        self.max_seqlen_kv = self._most_keys(page_table, known[2])
        """The most keys that a sequence of this plan may have."""
        block, blocks = self._cut(lengths)
        self._sizes = StepSizes(
            count, lengths.sequence_queries, lengths.total, block, blocks, paged.page_size,
            _rounded(self.max_seqlen_kv), self.max_seqlen_kv,
        )  # fmt: skip
        self._params = _parameters(paged, data)
        self._sequence_queries = lengths.sequence_queries if type(seq_lens_q) is int else None
        given = self._checked(page_table, seq_lens_q, lens_kv, cu_seqlens_q, data)
        self._shapes = _shapes_of(given)
        self._block = ArgumentBlock(STEP)
        self._scales: dict[object, PoolScales] = {}
        """Scales of layers, by where they lie."""
        in_one = not (shared_keys or paged.scored)
        self.repeats = self._kernels is not None and paged.loads_pages and in_one
        """Whether layers repeat the launch of the first one."""
        self._buffers: tuple[Any, ...] = ()
        self._state = self._allocated(given)
        self._blocks = self._blocks_of(self._sizes, self._state)
        self._shared_keys = self._checked_shared(shared_keys)
        self._shared = self._blocks_of_shared() if shared_keys else None
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
        if places is not None and places == self._filled and not _checks():
            self._fill(None)
            return
        params = _parameters(self.paged, data)
        lengths = self._sequence_queries
        if lengths is not None and not (type(seq_lens_q) is int and seq_lens_q == lengths):
            wanted = f"{lengths}, the queries of every sequence of this plan"
            raise BadPages("seq_lens_q", wanted, seq_lens_q, at="seq_lens_q")
        lens_kv = self._take(seq_lens_kv, "seq_lens_kv", 1)
        given = self._checked(page_table, seq_lens_q, lens_kv, cu_seqlens_q, data)
        for name, shape in _shapes_of(given).items():
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
    def _on_host(self) -> bool:
        """Whether the host can read arrays without waiting."""
        return self._device is None or self._device.type == "cpu"

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

    def _take(self, x: Any, name: str, rank: int, flags: bool = False) -> Any:
        """Integers of so many dimensions where the plan is made: a tensor on the GPU, or int64 of
        NumPy; with `flags` also booleans.

        Raises:
            BadPages: no integers, another rank, or another device.
        """
        refuse_masked(x, name)
        torch = self._torch
        tensor = torch is not None and isinstance(x, torch.Tensor)
        if tensor and x.device != self._device:
            raise BadPages(name, f"on {self._device}, as the page table", x.device, at=name)
        if self._kernels is None:
            tensor_of: Any = x.numpy() if tensor else np.asarray(x)
            whole = tensor_of.dtype.kind in ("biu" if flags else "iu")
        else:
            tensor_of = x if tensor else torch.as_tensor(np.asarray(x)).to(self._device)
            whole = not (tensor_of.is_floating_point() or tensor_of.is_complex())
            whole = whole and (flags or tensor_of.dtype != torch.bool)
        if not whole or len(tensor_of.shape) != rank:
            wanted = f"integers of {rank} dimension{'s' * (rank != 1)}"
            raise BadPages(name, wanted, f"{x.dtype if hasattr(x, 'dtype') else type(x).__name__} "
                           f"of shape {list(tensor_of.shape)}", at=name)  # fmt: skip
        return tensor_of.astype(np.int64, copy=False) if self._kernels is None else tensor_of

    def _most_keys(self, page_table: Any, most: int | None) -> int:
        size = self.paged.page_size
        if most is not None:
            return _count(most, "max_seqlen_kv")
        if not isinstance(page_table, tuple):
            return int(self._take(page_table, "page_table", 2).shape[1]) * size
        if not self._on_host:
            wanted = "given with kv_indptr on a GPU, which the host does not read"
            raise BadPages("max_seqlen_kv", wanted, None, at="max_seqlen_kv")
        ends = self._take(page_table[0], "kv_indptr", 1)
        return int((ends[1:] - ends[:-1]).max()) * size if len(ends) > 1 else 0

    def _cut(self, lengths: _Lengths) -> tuple[int, int]:
        """Queries of a block, and how many blocks there are at most.

        Blocks fit their heads into one tile of rows, which then reads keys once. On CPUs, and if
        pages are copied for each block, a sequence is one block.
        """
        group = self.paged.heads[0] // self.paged.heads[1]
        fitting = max(1, _ROWS // group)
        if lengths.sequence_queries and (
            lengths.sequence_queries <= fitting or not self.paged.cuts_queries
        ):
            return lengths.sequence_queries, lengths.sequences
        if not self.paged.cuts_queries:
            return max(1, lengths.most), lengths.sequences
        block = min(fitting, 1 << max(0, lengths.most - 1).bit_length())
        return block, lengths.sequences + lengths.total // block

    def _checked(
        self, page_table: Any, seq_lens_q: Any, lens_kv: Any, cu_seqlens_q: Any,
        data: Mapping[str, Any],
    ) -> _Given:  # fmt: skip
        """The arrays of a step, of shapes that fit each other.

        Raises:
            BadPages: they do not.
        """
        count = self._sizes.sequences
        _has(lens_kv, (count,), "seq_lens_kv")
        lens_q = None
        if cu_seqlens_q is not None:
            lens_q = self._take(cu_seqlens_q, "cu_seqlens_q", 1)
            _has(lens_q, (count + 1,), "cu_seqlens_q")
        elif type(seq_lens_q) is not int:
            lens_q = self._take(seq_lens_q, "seq_lens_q", 1)
            _has(lens_q, (count,), "seq_lens_q")
        starts = None
        if isinstance(page_table, tuple):
            starts = self._take(page_table[0], "kv_indptr", 1)
            _has(starts, (count + 1,), "kv_indptr")
            table = self._take(page_table[1], "kv_indices", 1)
        else:
            table = self._take(page_table, "page_table", 2)
            _has(table, (count, table.shape[1]), "page_table")
            wanted = -(-self.max_seqlen_kv // self.paged.page_size)
            if table.shape[1] < wanted:
                name = f"of {wanted} columns at least, for max_seqlen_kv={self.max_seqlen_kv}"
                raise BadPages("page_table", name, table.shape[1], at="page_table")
        data = {
            name: times_of_parents(name, x, self.max_seqlen_kv) if isinstance(x, Parents) else x
            for name, x in data.items()
        }
        arrays = tuple(self._datum(array, data) for array in self.paged.placed.arrays)
        return _Given(lens_q, cu_seqlens_q is not None, lens_kv, starts, table, arrays)

    def _datum(self, array: TokenArray, data: Mapping[str, Any]) -> Any:
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
        values = self._take(given, name, len(given.shape), flags=True)
        shape = (self._sizes.sequences, self.max_seqlen_kv)
        if tuple(values.shape) not in (shape, shape[1:]):
            raise BadPages(name, f"of shape {list(shape)} or {list(shape[1:])}: an entry per token",
                           list(values.shape), at=name)  # fmt: skip
        return values

    # -------------------------------------------------------------- arrays of the step

    def _allocated(self, given: _Given) -> dict[str, Any]:
        """Memory for all arrays of the step, by name; those of the mask's data by theirs."""
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
        buffer = self._empty(starts[-1], np.int32)
        state = {
            name: buffer[start : start + math.prod(shape)].reshape(shape)
            for (name, shape), start in zip(shapes.items(), starts, strict=False)
        }
        state["slots"] = self._empty(sizes.tokens, np.int64)
        if not sizes.whole:
            state["is_real"] = self._empty(sizes.tokens, np.bool_)
        self._buffers = buffer, *(state[name] for name in ("slots", "is_real") if name in state)
        return state

    def _empty(self, count: int, kind: type[np.generic]) -> Any:
        """A new array where the plan is made; torch counts what is written into it, whatever mode
        the caller is in."""
        if self._torch is None:
            return np.empty(count, kind)
        with self._torch.inference_mode(False):
            dtype = getattr(self._torch, np.dtype(kind).name)
            return self._torch.empty(count, dtype=dtype, device=self._device)

    def _places(
        self, page_table: Any, seq_lens_q: Any, seq_lens_kv: Any, cu_seqlens_q: Any,
        data: Mapping[str, Any],
    ) -> object:  # fmt: skip
        """Where and how all arrays of a step lie; None if kernels do not read them there."""
        if self._kernels is None:
            return None
        tables = page_table if type(page_table) is tuple else (page_table,)
        given = (*tables, seq_lens_q, seq_lens_kv, cu_seqlens_q, *data.values())
        places = tuple(map(_place_of, given))
        return None if None in places else (len(tables), tuple(data), places)

    def _fill(self, given: _Given | None) -> None:
        """Make all arrays of the step, in their places.

        Args:
            given: the tables; None if they lie where the earlier ones did.
        """
        if self._kernels is not None:
            if given is not None:
                if _checks():
                    self._check_step(given, *self._read_by_host(given))
                self._fill_block(given, self._kernels.library)
            self._kernels.plan(self._block)
        elif given is not None:
            self._fill_on_host(given)
        if self._shared is not None:
            self._fill_shared(self._shared.state)
        if "parts" in vars(self):
            for part in self.parts:
                part.renew()
        if self._torch is not None:
            self._torch.autograd.graph.increment_version(self._buffers)

    # -------------------------------------------------------------- keys that sequences share

    def _checked_shared(self, keys: int) -> int:
        """Return the number of shared keys.

        Raises:
            BadPages: it does not fit the pages, or the mask has data.
        """
        size = self.paged.page_size
        if type(keys) is not int or not 0 <= keys <= self.max_seqlen_kv or keys % size:
            wanted = f"a multiple of page_size={size} from 0 to {self.max_seqlen_kv}"
            raise BadPages("shared_keys", wanted, repr(keys), at="shared_keys")
        if keys and self.paged.placed.arrays:
            name = self.paged.placed.arrays[0].decl.name
            raise BadPages("shared_keys", f"0, as the mask reads {name!r}", keys, at="shared_keys")
        return keys

    def _blocks_of_shared(self) -> QueryBlocks:
        """Allocate the arrays of blocks of queries of any sequences, over the shared keys."""
        tokens, size = self.tokens, self.paged.page_size
        group = self.paged.heads[0] // self.paged.heads[1]
        block = max(1, tokens)
        if self.paged.cuts_queries:
            block = min(max(1, _ROWS // group), 1 << max(0, tokens - 1).bit_length())
        blocks, keys = -(-tokens // block), self._shared_keys
        sizes = StepSizes(1, 0, tokens, block, blocks, size, _rounded(keys), keys)
        names = (*self.paged.placed.reads, POSITION)
        shapes: dict[str, tuple[int, ...]] = {_STATE[name]: (blocks, block) for name in names}
        shapes |= {"rows": (blocks, block), "key_count": (blocks,), "first_page": (blocks,)}
        shapes["places"] = (tokens,)
        state = {name: self._empty(math.prod(shape), np.int32).reshape(shape)
                 for name, shape in shapes.items()}  # fmt: skip
        state["is_real"] = self._empty(tokens, np.bool_)
        state["pages"] = self._state["pages"]
        self._buffers += tuple(state.values())
        if tokens:
            row = np.arange(blocks * block).clip(max=tokens - 1).reshape(blocks, block)
            for name, values in (("rows", row), ("places", np.arange(tokens))):
                state[name][...] = self._array(values.astype(np.int32))
        return self._blocks_of(sizes, state, blocks * block == tokens)

    def _blocks_of(
        self, sizes: StepSizes, state: dict[str, Any], in_order: bool = False
    ) -> QueryBlocks:
        mover = None
        if self._kernels is not None:
            mover = RowMover(self._kernels, sizes, state, self.paged.heads[0])
        return QueryBlocks(sizes, state, self._torch, in_order, mover)

    def _array(self, x: np.ndarray) -> Any:
        """The array where the plan is made."""
        return x if self._torch is None else self._torch.from_numpy(x).to(self._device)

    def _fill_shared(self, state: dict[str, Any]) -> None:
        """Make the arrays of blocks over shared keys, of those of the step."""
        if not self.tokens:
            return
        arrays, where = self._state, np.where if self._torch is None else self._torch.where
        positions, rows = arrays["token_position"], state["rows"]
        real = positions >= 0 if self._sizes.whole else arrays["is_real"]
        row = np.arange(rows.size if self._torch is None else rows.numel())
        inside = self._array((row < self.tokens).reshape(tuple(rows.shape)))
        for name in (*self.paged.placed.reads, POSITION):
            key = _STATE[name]
            of_token, nothing = arrays[key].reshape(-1), 0
            if name == POSITION:
                of_token, nothing = positions, -1
            elif not self._sizes.whole:
                of_token = of_token[arrays["places"]]
            state[key][...] = where(inside & real[rows], of_token[rows], nothing)
        state["is_real"][...] = real
        state["key_count"][...] = self._shared_keys
        used, spans = arrays["used"], arrays["spans"]  # the longest sequence has entries for all
        if self._torch is None:
            state["first_page"][...] = spans[used.argmax(), 0]
        else:
            state["first_page"][...] = spans[:, 0].index_select(0, used.argmax(0, keepdim=True))

    def _read_by_host(self, given: _Given) -> tuple[np.ndarray, np.ndarray, PageLists]:
        """Return where the queries of each sequence begin, its keys, and its pages."""
        sizes, table = self._sizes, _numpy(given.table)
        if given.lens_q is None:
            starts = np.arange(sizes.sequences + 1) * sizes.sequence_queries
        elif given.cumulative:
            starts = _numpy(given.lens_q)
        else:
            starts = np.concatenate([[0], np.cumsum(_numpy(given.lens_q))])
        lists = (table,) if given.starts is None else (_numpy(given.starts), table)
        pages = PageLists.of_rows(*lists) if len(lists) == 1 else PageLists.of_lists(*lists)
        return starts, _numpy(given.lens_kv), pages

    def _check_step(
        self, given: _Given, starts: np.ndarray, lens_kv: np.ndarray, pages: PageLists
    ) -> None:
        """Check the numbers of a step on the host.

        Raises:
            BadPages, BadPageTable: lengths do not fit each other, the plan or the pages (MC464,
                MC465).
            DataRange: data leave 32 bits (MC305).
            PageNotShared: shared keys lie in other pages (MC667).
        """
        sizes, lens_q = self._sizes, np.diff(starts)
        name = "cu_seqlens_q" if given.cumulative else "seq_lens_q"
        if lens_q.min(initial=0) < 0 or starts[0] < 0:
            wanted = "ascending" if given.cumulative else "integers from 0 on"
            raise BadPages(name, wanted, _numpy(given.lens_q).tolist(), at=name)
        if starts[-1] > sizes.tokens:
            wanted = f"at least {starts[-1]}, where {name} ends"
            raise BadPages("total_q", wanted, sizes.tokens, at="total_q")
        if not sizes.whole and int((-(-lens_q // sizes.block)).sum()) > sizes.blocks:
            wanted = f"at least {lens_q.max()}, the longest of {name}"
            raise BadPages("max_seqlen_q", wanted, sizes.block, at="max_seqlen_q")
        ends = np.zeros(1, int) if given.starts is None else _numpy(given.starts)
        most = len(pages.entries)
        if np.diff(ends).min(initial=0) < 0 or ends[0] < 0 or ends[-1] > most:
            wanted = f"ascending, from 0 on, to {most} at most, the entries"
            raise BadPages("kv_indptr", wanted, ends.tolist(), at="kv_indptr")
        if lens_kv.min(initial=0) < 0:
            raise BadPages("seq_lens_kv", "integers from 0 on", lens_kv.tolist(), at="seq_lens_kv")
        self._check_room(lens_kv, pages.end - pages.first)
        short = np.flatnonzero((lens_q > lens_kv) & (lens_kv > 0))
        if len(short):
            queries, keys = lens_q[short[0]], lens_kv[short[0]]
            finding = f"{queries} queries and {keys} keys, among which are those of its queries"
            raise BadPageTable(short[0], finding, at="seq_lens_kv")
        for array, values in zip(self.paged.placed.arrays, given.data, strict=True):
            if array.decl.kind is not DataKind.flags:
                host = _numpy(values)
                used = np.arange(host.shape[-1]) < lens_kv[:, None]
                check_int32(array.decl.name, host[used if host.ndim > 1 else used.any(0)])
        self._check_shared(pages, lens_kv)

    def _check_shared(self, pages: PageLists, lens_kv: np.ndarray) -> None:
        """Raise PageNotShared for a sequence with shared keys in other pages than the longest."""
        size, entry = self.paged.page_size, np.arange(self._shared_keys // self.paged.page_size)
        if not len(entry) or not len(lens_kv):
            return
        held = entry < -(-lens_kv // size)[:, None]
        page = pages.entries[np.where(held, pages.first[:, None] + entry, 0)]
        first = pages.first[lens_kv.argmax()]
        shared = pages.entries[np.minimum(first + entry, len(pages.entries) - 1)]
        for sequence, index in np.argwhere(held & (page != shared))[:1].tolist():
            pair = int(page[sequence, index]), int(shared[index])
            raise PageNotShared(sequence, index, *pair, at="page_table")

    def _check_room(self, lens_kv: np.ndarray, pages: np.ndarray) -> None:
        """Raise BadPageTable for a sequence with more keys than the plan or its pages hold."""
        room = np.minimum(self.max_seqlen_kv, pages * self.paged.page_size)
        for sequence in np.flatnonzero(lens_kv > room)[:1].tolist():
            finding = f"{lens_kv[sequence]} keys, and max_seqlen_kv is {self.max_seqlen_kv}"
            if room[sequence] < self.max_seqlen_kv:
                held = f"its {pages[sequence]} pages hold {room[sequence]}"
                finding = f"{lens_kv[sequence]} keys, and {held}"
            raise BadPageTable(sequence, finding, at="seq_lens_kv")

    def _fill_on_host(self, given: _Given) -> None:
        sizes = self._sizes
        starts, lens_kv, pages = self._read_by_host(given)
        self._check_step(given, starts, lens_kv, pages)
        arrays = self.paged.placed.arrays
        data = [
            TokenData(x != 0 if array.decl.kind is DataKind.flags else x, array.of_queries)
            for array, x in zip(arrays, given.data, strict=True)
        ]
        made = step_arrays(sizes, starts, lens_kv, pages, data)
        for name, to in self._state.items():
            to = to if self._torch is None else to.numpy()
            to[...] = made[name]

    def _fill_block(self, given: _Given, library: Library) -> None:
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
        arrays = {name: state[_STATE[name]] for name in (*placed.reads, POSITION)}
        arrays |= {array.name: state[f"array{i}"] for i, array in enumerate(placed.arrays)}
        return arrays | self._params

    def check_library(self, tensors: Mapping[str, Any]) -> None:
        """Check that a layer's arrays belong to the library of the page table.

        Raises:
            BadPages: an array belongs to another library (MC464).
        """
        kind: type = np.ndarray if self._torch is None else self._torch.Tensor
        for name, x in tensors.items():
            if not isinstance(x, kind):
                library = "an array of NumPy" if self._torch is None else "a torch tensor"
                wanted = f"{library}, as the page table"
                error = BadPages(name, wanted, type(x).__name__, at=name)
                error.hint = "torch tensors need attn.plan(torch.as_tensor(page_table), ...)"
                raise error

    def scales(self, k_scale: Any, v_scale: Any) -> PoolScales:
        """Return the scales of a layer; a plan caches scales that are on its device.

        Raises:
            BadPages: a scale has a wrong shape or dtype (MC464).
        """
        if k_scale is None and v_scale is None:
            return self._usual_scales
        same = id(k_scale), id(v_scale)
        known = self._scales.get(same)
        if known is not None and known.lies_at(k_scale, v_scale):
            return known
        kinds = _place_of(k_scale), _place_of(v_scale)
        known = None if None in kinds else self._scales.get(kinds)
        if known is None:
            known = self._checked_scales(k_scale, v_scale)
        if known.lasting and None not in kinds:
            if len(self._scales) >= _MOST_SCALES:
                self._scales.clear()
            self._scales[kinds] = known
            if known.k is k_scale and known.v is v_scale:
                self._scales[same] = known
        return known

    @cached_property
    def _usual_scales(self) -> PoolScales:
        return self._checked_scales(None, None)

    def _checked_scales(self, k_scale: Any, v_scale: Any) -> PoolScales:
        paged, owner = self.paged, self._state.get("owner")
        given = (("k_scale", k_scale), ("v_scale", v_scale))
        k, v = (paged._scale(x, name, self) for name, x in given)
        if not (paged.in_e4m3 and paged.loads_pages):
            return PoolScales(k, v)
        factors = self._factor(k), self._factor(v)
        by_sequence = any(factor.sequence_step for factor in factors)
        at = address(owner) if by_sequence and owner is not None else 0
        held = zip(factors, (k, v), strict=True)
        lasting = all(factor.held is None or factor.held is x for factor, x in held)
        return PoolScales(k, v, pool_block(*factors, at), factors, lasting)

    def check_scale(self, shape: tuple[int, ...], name: str) -> None:
        """Check the shape of scales per sequence.

        Raises:
            BadPages: the shape is wrong, or sequences share keys (MC464).
        """
        sequences, heads = self._sizes.sequences, self.paged.heads[1]
        wanted = f"of shape [{sequences}, {heads}] or [{sequences}, 1]"
        if self._shared is not None:
            wanted = f"of shape [{heads}] or a number, as sequences share keys"
        if self._shared is not None or shape not in ((sequences, heads), (sequences, 1)):
            raise BadPages(name, wanted, list(shape), at=name)

    def _factor(self, scale: Any) -> PoolFactor:
        """A scale as kernels read it."""
        if not hasattr(scale, "shape"):
            return PoolFactor(scale)
        torch = self._torch
        if torch is None:
            scale = np.asarray(scale, np.float32)
        else:
            scale = scale if isinstance(scale, torch.Tensor) else torch.from_numpy(scale)
            if scale.dtype != torch.float32 or scale.device != self._device:
                scale = scale.to(self._device, torch.float32)
        axes = zip(scale.shape, steps_of(scale), strict=True)
        by_sequence, by_head = (0, 0, *(step if size > 1 else 0 for size, step in axes))[-2:]
        return PoolFactor(1.0, address(scale), by_sequence, by_head, scale)

    @cached_property
    def parts(self) -> tuple[QueryPart, ...]:
        """The launches of a run: one, or one for shared keys and one for all others."""
        paged, shared = self.paged, self._shared
        if shared is None:
            return (QueryPart(paged.attn, self._blocks, self.data),)
        placed, attn = paged._split
        names = (*placed.reads, POSITION)
        keys = {FIRST: 0, END: self._shared_keys}, {FIRST: self._shared_keys, END: self.n_kv}
        return tuple(
            QueryPart(
                attn, part, {name: part.state[_STATE[name]] for name in names} | self._params | ends
            )
            for part, ends in zip((shared, self._blocks), keys, strict=True)
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
        entries, spans, used = (_numpy(self._state[x]) for x in ("pages", "spans", "used"))
        free = set(np.asarray(_numpy(freed)).reshape(-1).tolist())
        self._check_room(used, spans[:, 1] - spans[:, 0])
        self._check_shared(PageLists(entries, spans[:, 0], spans[:, 1]), used)
        for sequence, ((first, _), keys) in enumerate(
            zip(spans.tolist(), used.tolist(), strict=True)
        ):
            count = -(-keys // self.paged.page_size)
            seen: dict[int, int] = {}
            for index, page in enumerate(entries[first : first + count].tolist()):
                if not 0 <= page < pages:
                    raise PageOutOfPool(sequence, index, page, pages - 1, at="page_table")
                if page in seen:
                    raise PageTwice(sequence, seen[page], index, page, at="page_table")
                if page in free:
                    raise PageFreed(sequence, index, page, at="page_table")
                seen[page] = index

    def check_positions(self, count: int) -> None:
        """Check that tables of a rotary embedding have so many positions; positions on a GPU are
        read with MASKC_CHECK=1 only.

        Raises:
            BadPages: they have fewer (MC464).
        """
        if self._kernels is not None and not _checks():
            return
        last = int(_numpy(self.positions).max(initial=-1))
        if last >= count:
            wanted = f"tables of at least {last + 1} positions, as the plan has them"
            raise BadPages("rotary", wanted, count, at="rotary")

    def check_slots(self) -> None:
        """Read the slots of new rows on the host, which waits for the GPU, and check them.

        Raises:
            SlotTwice: two rows go to one slot (MC663).
        """
        _check_slots(self.slots, self.paged.page_size)


def _checks() -> bool:
    """Whether the host reads arrays of a GPU and checks them."""
    return os.environ.get("MASKC_CHECK") == "1"


def _check_slots(slots: Any, size: int) -> None:
    seen: dict[int, int] = {}
    for row, slot in enumerate(_numpy(slots).tolist()):
        if slot >= 0 and slot in seen:
            raise SlotTwice(seen[slot], row, *divmod(slot, size), at="page_table")
        seen[slot] = row


def _kind_of(
    torch: Any, q: Any, k_pool: Any, v_pool: Any, options: tuple[object, ...], slopes: Any,
    sinks: Any,
) -> object:  # fmt: skip
    """Everything that the launch of a layer depends on, except where its tensors lie; None for a
    call that torch must see."""
    if not type(q) is type(k_pool) is type(v_pool) is torch.Tensor or has_modes(torch):
        return None
    if q.is_neg() or k_pool.is_neg() or v_pool.is_neg():
        return None
    is_trained = q.requires_grad or k_pool.requires_grad or v_pool.requires_grad
    if is_trained and torch.is_grad_enabled():
        return None
    kind = (
        q.shape, q.stride(), q.dtype, q.get_device(),
        k_pool.shape, k_pool.stride(), k_pool.dtype, k_pool.get_device(),
        v_pool.shape, v_pool.stride(), v_pool.dtype, v_pool.get_device(),
        options,
    )  # fmt: skip
    if slopes is None and sinks is None:
        return kind
    of_heads = _place_of(slopes), _place_of(sinks)
    if None in of_heads or needs_torch(q, k_pool, v_pool, slopes, sinks):
        return None
    return (*kind, *of_heads)


def _eagerly(run: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run a layer outside of torch.compile's graph, which breaks here: a launch over pages reads
    addresses, which a graph does not have."""
    torch: Any = torch_of(arguments[0])
    return torch._dynamo.disable(run)(*arguments, **options)


setattr(_eagerly, "_torchdynamo_disable", True)  # noqa: B010


def _without_autocast(q: Any) -> AbstractContextManager[object]:
    """Kernels take tensors as they are: torch would cast views of pools, which have no places."""
    torch = torch_of(q)
    if torch is None or not torch._C._is_any_autocast_enabled():
        return nullcontext()
    off: AbstractContextManager[object] = torch.autocast(q.device.type, enabled=False)
    return off


def _stored(out: Any, lse: Any, memory: Any) -> tuple[Any, Any]:
    """The results of a run; out is copied into the memory of the caller, if it is not there."""
    if memory is None or memory is out:
        return out, lse
    memory[...] = out
    return memory, lse


def _place_of(x: Any) -> object:
    """Where and how a tensor lies, or a number; None for arrays of other libraries."""
    if x is None or type(x) is float or type(x) is int:
        return (x,)
    if not hasattr(x, "get_device"):
        return None
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.get_device()


def _rounded(keys: int) -> int:
    return -(-keys // _ROUNDED) * _ROUNDED


def _as_it_lies(x: Any, name: str) -> None:
    """Raise BadPages for memory with the other sign than its tensor, which kernels do not see."""
    if torch_of(x) is not None and x.is_neg():
        wanted = "a tensor without the negative bit: call resolve_neg()"
        raise BadPages(name, wanted, "one with it", at=name)


def _has(x: Any, shape: tuple[int, ...], name: str) -> None:
    if tuple(x.shape) != shape:
        raise BadPages(name, f"of shape {list(shape)}", list(x.shape), at=name)


def _numpy(x: Any) -> np.ndarray:
    return np.asarray(x.cpu().numpy() if hasattr(x, "cpu") else x)


def _nothing(q: Any, v_pool: Any) -> tuple[Any, Any]:
    """The results of a step without queries."""
    shape = 0, q.shape[1], v_pool.shape[3]
    if (torch := torch_of(q)) is None:
        return np.empty(shape, q.dtype), np.empty(shape[:2], np.float32)
    return q.new_empty(shape), q.new_empty(shape[:2], dtype=torch.float32)


def _shapes_of(given: _Given) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of the given arrays; None for missing ones."""
    tables = {
        "seq_lens_q": given.lens_q if not given.cumulative else None,
        "cu_seqlens_q": given.lens_q if given.cumulative else None,
        "kv_indptr": given.starts,
        "page_table" if given.starts is None else "kv_indices": given.table,
    }
    tables |= {f"data {number}": x for number, x in enumerate(given.data)}
    return {name: None if x is None else tuple(x.shape) for name, x in tables.items()}


def _text(shape: tuple[int, ...] | None) -> str:
    return "None" if shape is None else str(list(shape))


def _known_lengths(
    on_host: bool, seq_lens_q: Any, cu_seqlens_q: Any, sequences: int, total: int | None,
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
    total = None if total is None else _count(total, "total_q")
    most = None if most is None else _count(most, "max_seqlen_q")
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
    return _Lengths(sequences, 0, total, most)


def _count(x: Any, name: str) -> int:
    """Return an integer from 0 on, or raise BadPages."""
    if not isinstance(x, (int, np.integer)) or isinstance(x, bool) or x < 0:
        raise BadPages(name, "an integer from 0 on", repr(x), at=name)
    return int(x)


def _parameters(paged: PagedAttention, data: Mapping[str, Any]) -> dict[str, Any]:
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
