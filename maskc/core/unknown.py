"""Keywords and data that nothing takes: what was meant, also in the words of other libraries."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import numpy as np

from maskc.core.data import BROUGHT, CALL, CONVENTIONS
from maskc.core.errors import DataShape, DataUnknown, LengthsNotIds

_SCALE = "scale= is the factor of q . k"
_LENGTHS = (
    "max_seqlen= bounds queries and keys together; is_causal= and window_size= can accompany "
    "cu_seqlens_q= and cu_seqlens_k="
)
_PADDING = 'mc.flags("kept") is the mask of keys that count, called with kept='
_PAGES = "mc.paged(mask, page_size=...) takes page tables: docs/serving.md"
_SINKS = "sink_logits= is one logit for each head in the denominator"
_SOFTCAP = "softcap= bounds scores: softcap * tanh(score / softcap)"
_WINDOW = "window_size=(keys before, keys behind), or the mask mc.window(left, right)"
_CHOSEN = "leave it out: maskc chooses its kernels; maskc explain says which"
_LENGTHS_KV = (
    'mc.flags("kept") is the mask of keys that count, called with kept=arange(n) < lengths[:, None]'
    "; mc.paged takes seq_lens_kv="
)
_LENGTHS_Q = 'mc.flags("kept", on="q") is the mask of queries that count, called with kept='
_NATTEN = "mc.patterns.natten_1d, natten_2d and natten_3d are masks of tokens in row-major order"
_ROTARY = "rotate q and k before the call; append of mc.paged takes rotary="
_SEGMENTS = 'mc.documents("doc") is their mask, called with doc=ids or doc=(q_ids, kv_ids)'
_WEIGHTS = "weights are never stored; return_lse=True gives the log-sum-exp of each query"
_SDPA = "mc.scaled_dot_product_attention takes PyTorch's arguments, attn_mask= among them"

_ELSEWHERE = {
    "attention_chunk": "mc.chunked(size) is the mask of one chunk before the query",
    "attention_mask": _PADDING + "attention_mask.bool()",
    "attn_bias": "the mask is the fourth argument: mc.attention(q, k, v, mask)",
    "attn_logits_soft_cap": _SOFTCAP,
    "attn_mask": _SDPA + "; mc.from_bool(attn_mask) is the mask of a matrix of booleans",
    "backend": _CHOSEN,
    "bias": "score=mc.scores.bias() adds one to the scores, called with bias=",
    "block_mask": "mc.flex_attention takes it; mc.from_block_mask(block_mask) is its mask",
    "block_table": _PAGES,
    "block_tables": _PAGES,
    "cache_seqlens": _LENGTHS_KV,
    "causal": (
        "write is_causal=True, or the mask mc.causal(), where the last query meets the last key"
    ),
    "cu_seq_k": "cu_seqlens_k= are the cumulative lengths of keys",
    "cu_seq_q": "cu_seqlens_q= are the cumulative lengths of queries",
    "cu_seqlens_kv": "cu_seqlens_k= are the cumulative lengths of keys",
    "custom_mask": "mc.from_bool(matrix) is the mask of a matrix of booleans",
    "data": "each array has its own name: doc=ids, not data={'doc': ids}",
    "dropout": "dropout_p= is the share of weights that are dropped",
    "generator": "dropout_seed= repeats a dropout",
    "head_mask": "mc.heads(i, ...) keeps the pairs of these heads; multiply out by weights",
    "implementation": _CHOSEN,
    "k_cache": _PAGES,
    "kernel_options": _CHOSEN,
    "kernel_size": _NATTEN,
    "key_padding_mask": _PADDING + "~key_padding_mask",
    "key_value_seq_lengths": _LENGTHS_KV,
    "kv_seq_len": _LENGTHS_KV,
    "learnable_sink": _SINKS,
    "leftpad_k": _LENGTHS_KV.replace("<", ">="),
    "logits_soft_cap": _SOFTCAP,
    "mask_mod": "mc.from_mask_mod(mask_mod) is its mask",
    "max_k": _LENGTHS,
    "max_q": _LENGTHS,
    "max_seqlen_k": _LENGTHS,
    "max_seqlen_kv": _LENGTHS,
    "max_seqlen_q": _LENGTHS,
    "need_weights": _WEIGHTS,
    "num_splits": _CHOSEN,
    "op": _CHOSEN,
    "output_attentions": _WEIGHTS,
    "p": "dropout_p= is the share of weights that are dropped",
    "pack_gqa": _CHOSEN,
    "page_table": _PAGES,
    "position_ids": (
        'mc.causal(at=mc.positions(q="pq", k="pk")) compares positions, called with pq= and pk='
    ),
    "query_seq_lengths": _LENGTHS_Q,
    "return_attn_probs": "return_lse=True also returns the log-sum-exp of each query",
    "return_aux": "return_lse=True also returns the log-sum-exp of each query",
    "rotary_cos": _ROTARY,
    "rotary_sin": _ROTARY,
    "s_aux": _SINKS,
    "scaling": _SCALE,
    "score_mod": "score=mc.from_score_mod(score_mod); mc.flex_attention takes score_mod itself",
    "segment_ids": _SEGMENTS,
    "seqused_k": _LENGTHS_KV,
    "seqused_q": _LENGTHS_Q,
    "sinks": _SINKS,
    "sliding_window": _WINDOW,
    "sm_margin": _CHOSEN,
    "sm_scale": _SCALE,
    "softmax_scale": _SCALE,
    "window": _WINDOW,
    "window_left": _WINDOW,
}
"""Keywords of other libraries -> what to write here."""


def meant_keyword(name: str, known: Iterable[str], options: Iterable[str]) -> str:
    """Return a hint that says what to write instead of a keyword, or an empty text.

    Args:
        name: the keyword that nothing takes.
        known: names of data and parameters; options: those of all other keywords.
    """
    if text := _ELSEWHERE.get(name):
        return text
    close = get_close_matches(name, [*known, *options], 1)
    return f"did you mean {close[0]!r}?" if close else ""


def unknown_keyword(name: str, known: Iterable[str], options: Iterable[str]) -> DataUnknown:
    """The mistake of a keyword that is neither data, nor a parameter, nor an option.

    Args:
        name: the keyword that nothing takes.
        known: names of data and parameters; options: those of all other keywords.
    """
    known, options = sorted({*known} - {BROUGHT}), tuple(options)
    hint = _ELSEWHERE.get(name, "")
    if not hint:
        words = f"options are {', '.join(options)}"
        if options == CALL:
            options += CONVENTIONS
            words += f"; mc.attention also has {', '.join(CONVENTIONS)}"
        hint = f"{meant_keyword(name, known, options)} {words}".strip()
    return DataUnknown(name, ", ".join(known) or "none", hint, at=name)


def wrong_ids(name: str, ids: np.ndarray, tokens: int, expected: str) -> DataShape:
    """Return the error for document ids that do not have one entry per token.

    Args:
        name: the keyword of the documents.
        ids: what the call gives.
        tokens: how many there are.
        expected: shapes that it takes.
    """
    if ids.ndim in (1, 2) and ids.shape[-1] > 1 and ids.dtype.kind in "iu":
        steps = np.diff(ids.astype(np.int64))
        if not ids[..., 0].any() and (steps >= 0).all() and (steps > 1).any():  # ids rise by 1
            finding = "rise from 0 as cumulative lengths do"
            hint = f"mark cumulative lengths: {name}=mc.cu_seqlens(...)"
            return LengthsNotIds(name, ids.shape, expected, finding, hint, at=name)
        if ids.sum(-1).max() == tokens and (ids > 0).all():
            finding = f"add up to {tokens} as lengths do"
            hint = f"{name}=mc.cu_seqlens(...) takes 0 and the end of each document: their sums"
            return LengthsNotIds(name, ids.shape, expected, finding, hint, at=name)
    return DataShape(name, ids.shape, expected, at=name)
