"""A mask compiled for pages: `mc.paged` and its methods."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core import expr as E
from maskc.core.attention_call import CallOptions
from maskc.core.dtypes import E4M3, DType, dtype_name
from maskc.core.errors import BadPages, NotPaged, TargetNotBuilt
from maskc.core.problem import Placed
from maskc.core.tensors import torch_of
from maskc.core.unknown import unknown_keyword
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import structure
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.parameters import param
from maskc.dsl.score_tracer import Score, as_score
from maskc.dsl.tracer import where
from maskc.ir.placed import POSITION, PlacedMask, placed
from maskc.paging.appending import check_rows, checked_rotary, slots_of
from maskc.paging.paged_plan import PagedPlan
from maskc.paging.parts import kind_of
from maskc.paging.plan_memory import check_shape, check_sign, is_checking
from maskc.paging.pools import PoolFormat
from maskc.paging.shared import END, FIRST, count_shared
from maskc.paging.step_checks import check_slots
from maskc.runtime.autograd import is_compiling, needs_torch
from maskc.runtime.merge import merge
from maskc.runtime.new_rows import NewRows
from maskc.runtime.paged import TABLES
from maskc.runtime.paged_launch import FLOAT_CODES, PageKernels, page_kernels
from maskc.runtime.paged_rows import is_e4m3

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

_LAYOUTS = ("NHD", "HND")
_POOL_DTYPES = (E4M3, DType.float8_e4m3fn.short, str(DType.float8_e4m3fn))
_ROWS = 128
"""Rows of a tile of queries, which the heads of a key/value head share."""
_RUN = (
    "scale", "softcap", "alibi_slopes", "sink_logits", "k_scale", "v_scale", "deterministic", "out",
)  # fmt: skip
"""Options of a run."""


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
        self.pools = PoolFormat(page_size, heads[1], layout, in_e4m3)
        """Their shapes and dtypes."""
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
    def queries_of_tile(self) -> int:
        """Queries whose heads fit into one tile of rows, which then reads keys once."""
        return max(1, _ROWS // (self.heads[0] // self.heads[1]))

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
        return count_shared(page_table, seq_lens_kv, self.page_size)

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
            and not plan.torch.compiler.is_dynamo_compiling()
        ):  # fmt: skip
            options = scale, softcap, deterministic
            kind = kind_of(plan.torch, q, k_pool, v_pool, options, alibi_slopes, sink_logits)
            if kind is not None:
                if out is not None:
                    self._check_out(out, q, v_pool, plan)
                part = plan.parts[0]
                repeated = part.again(kind, q, k_pool, v_pool, plan.scales, k_scale, v_scale, out)
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
        scales = plan.scales.of_layer(k_scale, v_scale)
        for name in tables if self._options["score"] is None else ():
            raise unknown_keyword(name, (), _RUN)
        pools = self.pools.heads_first(k_pool, v_pool)
        of_heads = {"alibi_slopes": alibi_slopes, "sink_logits": sink_logits}
        tensors = {"q": q, "k_pool": k_pool, "v_pool": v_pool}
        plan.check_library(tensors)
        self._admit({**tensors, **of_heads, **tables})
        if is_checking():
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
        check_shape(out, (plan.tokens, self.heads[0], v_pool.shape[-1]), "out")
        if dtype_name(out) != dtype_name(q):
            raise BadPages("out", f"of dtype {dtype_name(q)}, as q", dtype_name(out), at="out")
        if torch_of(out) is not None:
            if out.device != q.device:
                raise BadPages("out", f"on {q.device}, as q", out.device, at="out")
            check_sign(out, "out")

    @cached_property
    def between_keys(self) -> tuple[PlacedMask, CompiledMask]:
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
        if plan is not None:
            self._check_plan(plan)
            arrays = {"k": k, "v": v, "k_pool": k_pool, "v_pool": v_pool}
            plan.check_library(arrays if q is None else {**arrays, "q": q})
        if interleaved and rotary is None:
            raise BadPages("interleaved", "left out without rotary", repr(interleaved),
                           at="interleaved")  # fmt: skip
        self.pools.check(k_pool, v_pool)
        slots, tokens = slots_of(plan, slots, k, rotary)
        check_rows(q, k, v, k_pool, v_pool, tokens, self.heads, self.in_e4m3)
        self._refuse_gradients({"k": k, "v": v, "k_pool": k_pool, "v_pool": v_pool, "q": q})
        turn = None if rotary is None else checked_rotary(rotary, interleaved, k)
        if turn is not None and plan is not None:
            plan.check_positions(int(turn.cosine.shape[0]))
        if is_checking():
            if plan is not None:
                plan.check(k_pool.shape[0])
            check_slots(slots, self.page_size)
        if self.layout == "HND":
            k_pool, v_pool = (x.swapaxes(1, 2) for x in (k_pool, v_pool))
        scales = self.pools.scale(k_scale, "k_scale"), self.pools.scale(v_scale, "v_scale")
        positions = None if plan is None else plan.positions
        rows = NewRows(q, k, v, k_pool, v_pool, slots, positions, turn, *scales)
        return rows.write(self.kernels_on(k, "k"))

    def kernels_on(self, x: Any, name: str) -> PageKernels | None:
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
        if dtype_name(q) not in FLOAT_CODES or is_e4m3(q):
            raise BadPages("q", "of dtype float32, bfloat16 or float16", dtype_name(q), at="q")
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


def _nothing(q: Any, v_pool: Any) -> tuple[Any, Any]:
    """The results of a step without queries."""
    shape = 0, q.shape[1], v_pool.shape[3]
    if (torch := torch_of(q)) is None:
        return np.empty(shape, q.dtype), np.empty(shape[:2], np.float32)
    return q.new_empty(shape), q.new_empty(shape[:2], dtype=torch.float32)
