"""Continuous batching of transformers 5.24 or later on maskc's kernels.

Tested on the CPU with the managers and tiny models of transformers 5.24. transformers only runs
implementations with "flash" in their name. They get the tokens of all requests in one row, the
cumulative lengths of queries and of keys, and no mask. The cache gathers the keys of each request
into one tensor; only flash-attn gets block tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from maskc.api import attention
from maskc.core.errors import ModelArgument
from maskc.dsl.combinators import causal
from maskc.dsl.mask import Mask
from maskc.integrations.transformers.attention import EXTRA, HARMLESS
from maskc.integrations.transformers.registration import register
from maskc.paging import PagedAttention, paged

if TYPE_CHECKING:
    from maskc.paging import PagedPlan

CONTINUOUS = "maskc_flash_continuous"
"""The name under which `run_ragged` is registered in transformers."""
_CAUSAL = causal()
_PASSED = HARMLESS | {
    "cache", "position_ids", "logits_indices", "logits_processor_args", "read_index",
    "write_index", "block_table", "is_causal", "attention_mask",
}  # fmt: skip
"""Keywords of a step that do not affect the pairs of a layer, or that lengths already cover."""


@contextmanager
def continuous_batching(model: Any) -> Iterator[Any]:
    """Run `generate_batch` and the managers of a model on maskc inside a `with` block.

    Full and sliding layers work, with sink logits and soft-caps. Masks of `set_mask` work in layers
    whose cache keeps all keys. Masks count positions within each request.

    Args:
        model: a model of transformers with causal layers.

    Yields:
        The model.

    Raises:
        ExtraMissing, LibraryTooOld: as `register`.
    """
    register()
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(CONTINUOUS, run_ragged)
    AttentionMaskInterface.register(CONTINUOUS, _no_mask)
    config, before = model.config, model.config._attn_implementation
    config._attn_implementation = CONTINUOUS  # set_attn_implementation would look for flash-attn
    try:
        yield model
    finally:
        config._attn_implementation = before


def _no_mask(*_: Any, **__: Any) -> None:
    """Return None: the cumulative lengths say which keys a query sees."""


def run_ragged(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
    s_aux: Any = None, sliding_window: int | None = None, cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None, max_length_q: int = 0, max_length_k: int = 0, **others: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Compute attention of one layer over the requests of a step.

    Args:
        module: the attention module.
        query: [1, Hq, tokens, D]; key, value: [1, Hkv, keys, D], the keys of each request, ending
            with the keys of its queries.
        attention_mask: None.
        scaling, softcap, s_aux: as of `attention.run`.
        sliding_window: keys that a query sees, its own among them.
        cu_seq_lens_q, cu_seq_lens_k: int32 [requests + 1].
        max_length_q, max_length_k: the most queries, and keys, of a request.

    Returns:
        (out [1, tokens, Hq, Dv], None).

    Raises:
        ModelArgument: an argument would change the result and maskc does not run it (MC606).
    """
    name, advice = type(module).__name__, "use attn_implementation='sdpa'"
    for key_word, given in (("dropout", dropout), ("attention_mask", attention_mask)):
        if given is not None and given != 0.0:
            raise ModelArgument(name, key_word, advice)
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        raise ModelArgument(name, f"{CONTINUOUS} outside of continuous batching", advice)
    for key_word, given in others.items():
        if given is not None and given is not False and key_word not in _PASSED:
            raise ModelArgument(name, key_word, advice)
    extra: Mask | None = module.__dict__.get(EXTRA)
    if extra is not None and sliding_window is not None:
        raise ModelArgument(name, "a mask of set_mask in a layer with a sliding cache", advice)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    sinks = None if s_aux is None else s_aux.reshape(-1).float()
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sink_logits": sinks}
    if extra is not None:
        attn = _paged(_CAUSAL & extra, q.shape[1], k.shape[1], q.shape[2], v.shape[2],
                      q.device.type)  # fmt: skip
        plan = _plan(attn, cu_seq_lens_q, cu_seq_lens_k, q.shape[0], k.shape[0],
                     (max_length_q, max_length_k))  # fmt: skip
        out, _ = attn.run(q, k[:, None], v[:, None], plan, **options)
    else:
        q, k, v = (x.contiguous() for x in (q, k, v))
        out = attention(
            q, k, v, window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            cu_seqlens_q=cu_seq_lens_q, cu_seqlens_k=cu_seq_lens_k, **options,
        )  # fmt: skip
    return out[None], None


@lru_cache(maxsize=64)
def _paged(
    mask: Mask, heads: int, kv_heads: int, dim: int, dim_v: int, device: str
) -> PagedAttention:
    """Return the kernels of a mask over contiguous keys, which are pages of one token."""
    return paged(
        mask, page_size=1, head_dim=dim, head_dim_v=dim_v, n_heads=heads, n_kv_heads=kv_heads,
        target="cpu" if device == "cpu" else None,
    )  # fmt: skip


def _plan(
    attn: PagedAttention, of_q: Any, of_k: Any, tokens: int, keys: int, most: tuple[int, int]
) -> PagedPlan:
    import torch

    entries = torch.arange(keys, dtype=torch.int32, device=of_k.device)
    return attn.plan(
        (of_k, entries), None, of_k[1:] - of_k[:-1], cu_seqlens_q=of_q, total_q=tokens,
        max_seqlen_q=int(most[0]), max_seqlen_kv=int(most[1]),
    )  # fmt: skip
