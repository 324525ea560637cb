"""Kernels of other libraries over the same pages: FlashAttention 4, FlashInfer and cuDNN.

Each function returns a call that computes a step, [tokens or S, new, heads, D]. It raises an error
where the library is missing or does not know the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from benchmarks.paging import Step

Call = Callable[[], torch.Tensor]

_WORKSPACE = 256 << 20
"""Bytes that FlashInfer works in."""


class NoWords(Exception):
    """A library has no call for a row."""


def fa4(step: Step) -> Call:
    """FlashAttention 4, with its paged kernel. Pages of 128 tokens, its tile, are loaded by TMA;
    others row by row."""
    from flash_attn.cute.interface import flash_attn_varlen_func

    row = step.row
    how: dict[str, Any] = {"causal": True}
    if row.is_tree:
        enter, leave = step.times
        of_query = enter.gather(1, step.place.long()).contiguous()
        how = {"mask_mod": _fa4_tree(), "aux_tensors": [enter, leave, of_query]}
    q = step.queries.contiguous()

    def attend() -> torch.Tensor:
        found = flash_attn_varlen_func(
            q, step.k_pool, step.v_pool, seqused_k=step.lens, page_table=step.table,
            max_seqlen_q=row.new, max_seqlen_k=step.longest, **how,
        )  # fmt: skip
        out: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return out

    return attend


def _fa4_tree() -> Any:
    """Return the tree in FlashAttention 4's language: enter[k] <= enter[q] < leave[k]."""
    import cutlass
    from cutlass import cute
    from flash_attn.cute import utils

    @cute.jit
    def keep(batch: Any, head: Any, q: Any, k: Any, seqlen_info: Any, aux_tensors: Any) -> Any:
        enter, leave, of_query = aux_tensors
        time = utils.scalar_to_ssa(of_query[batch[0], q[0]], cutlass.Int32)
        first = utils.scalar_to_ssa(enter[batch[0], k[0]], cutlass.Int32)
        end = utils.scalar_to_ssa(leave[batch[0], k[0]], cutlass.Int32)
        return (first <= time) & (time < end)

    return keep


def flashinfer(step: Step) -> Call:
    """FlashInfer's wrappers: planned once, as for all layers of a step."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

    row = step.row
    heads, kv_heads = row.heads
    space = torch.empty(_WORKSPACE, dtype=torch.uint8, device=row.device)
    last = (step.lens - 1) % row.page + 1
    if row.new == 1:
        decode = BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=True)
        decode.plan(
            step.starts, step.pages, last, heads, kv_heads, row.dim, row.page,
            q_data_type=row.dtype, kv_data_type=row.dtype,
        )  # fmt: skip
        return lambda: decode.run(step.q, (step.k_pool, step.v_pool))
    prefill = BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
    how: dict[str, Any] = {"causal": True}
    if row.is_tree:
        how = {"custom_mask": torch.cat([step.kept(s).flatten() for s in range(step.sequences)])}
    prefill.plan(
        step.q_starts, step.starts, step.pages, last, heads, kv_heads, row.dim, row.page,
        q_data_type=row.dtype, kv_data_type=row.dtype, **how,
    )  # fmt: skip
    return lambda: prefill.run(step.q, (step.k_pool, step.v_pool))


def cudnn(step: Step) -> Call:
    """cuDNN's SDPA over pages, by its frontend's graphs."""
    import cudnn

    row = step.row
    if row.is_tree:
        raise NoWords("no masks but causal ones")
    kinds = {torch.bfloat16: "BFLOAT16", torch.float16: "HALF", torch.float32: "FLOAT"}
    kind, wide = getattr(cudnn.data_type, kinds[row.dtype]), cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        io_data_type=kind, intermediate_data_type=wide, compute_data_type=wide,
    )  # fmt: skip
    q = step.queries.transpose(1, 2)
    k, v = (pool.transpose(1, 2) for pool in (step.k_pool, step.v_pool))
    table = step.table[:, None, :, None]
    lens = step.lens.view(-1, 1, 1, 1)
    arrays = {
        "q": q, "k": k, "v": v, "seq_len_q": torch.full_like(lens, row.new), "seq_len_kv": lens,
        "paged_attention_k_table": table, "paged_attention_v_table": table,
    }  # fmt: skip
    nodes = {name: graph.tensor_like(x) for name, x in arrays.items()}
    result, _ = graph.sdpa(
        name="sdpa", generate_stats=False, attn_scale=row.dim**-0.5, use_padding_mask=True,
        use_causal_mask_bottom_right=row.new > 1, paged_attention_max_seq_len_kv=step.longest,
        **nodes,
    )  # fmt: skip
    out = torch.empty_like(step.queries).transpose(1, 2)
    result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    space = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=row.device)
    places = {nodes[name]: x for name, x in arrays.items()} | {result: out}

    def attend() -> torch.Tensor:
        graph.execute(places, space)
        return out.transpose(1, 2)

    return attend


RIVALS: dict[str, Callable[[Step], Call]] = {
    "fa4": fa4, "flashinfer": flashinfer, "cudnn": cudnn,
}  # fmt: skip
