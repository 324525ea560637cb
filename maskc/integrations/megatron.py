"""Core attention for layers of Megatron: `DotProductAttention` with any mask.

Written from the interface of Megatron-Core 0.14, `megatron.core.transformer.dot_product_attention`:
tensors are [tokens, sequences, heads, D], or [tokens, heads, D] with `packed_seq_params` in the
format "thd". It imports nothing of Megatron and was not run inside of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from maskc.api import attention
from maskc.core.errors import BadOption
from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import cu_seqlens, documents, flags
from maskc.dsl.mask import Mask

_DOCUMENTS, _REAL = "megatron_documents", "megatron_real"
_TYPES = {"causal": causal(), "padding_causal": causal(), "no_mask": full(), "padding": full()}
"""Masks by the name of Megatron's AttnMaskType."""
_PACKED = documents(_DOCUMENTS)
_STORED = _PACKED & flags(_REAL) & flags(_REAL, on="q")
"""Sequences that are padded where they are stored."""


class DotProductAttention(nn.Module):
    """Attention of a layer of Megatron; give it to a layer's spec as `core_attention`.

    A subclass with `mask` set runs that mask, and every pair must satisfy Megatron's type as well.
    """

    mask: Mask | None = None
    """A mask of one's own, without data."""

    def __init__(
        self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str,
        attention_dropout: float | None = None, softmax_scale: float | None = None,
        **others: Any,
    ) -> None:  # fmt: skip
        """Read what attention needs of a layer.

        Args:
            config: its `attention_dropout` counts where the argument is None.
            layer_number: from 1 on.
            attn_mask_type: of every call that names none.
            attention_type: "self" or "cross".
            attention_dropout: the share of weights that training drops.
            softmax_scale: factor of scores; D^-1/2 when None.
            others: process groups and the like, which attention inside of one rank ignores.

        Raises:
            BadOption: the configuration has context parallelism, or scales scores by layer (MC407).
        """
        super().__init__()
        if getattr(config, "context_parallel_size", 1) > 1:
            wanted = "1; use maskc.distributed for context parallelism"
            ranks = config.context_parallel_size
            raise BadOption("context_parallel_size", wanted, ranks, at="config")
        if getattr(config, "apply_query_key_layer_scaling", False):
            raise BadOption("apply_query_key_layer_scaling", "False", True, at="config")
        self.layer_number, self.attention_type = layer_number, attention_type
        self.attn_mask_type, self.softmax_scale = attn_mask_type, softmax_scale
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.dropout = float(dropout or 0.0)

    def forward(
        self, query: Any, key: Any, value: Any, attention_mask: Any = None,
        attn_mask_type: Any = None, attention_bias: Any = None, packed_seq_params: Any = None,
    ) -> Any:  # fmt: skip
        """Attention of one layer.

        Args:
            query, key, value: [tokens, sequences, heads, D], or [tokens, heads, D] with
                packed_seq_params.
            attention_mask: booleans that broadcast to [sequences, heads, n_q, n_kv], True where
                a pair is hidden; read where the type is "padding" or "arbitrary" alone.
            attn_mask_type: an AttnMaskType, or its name.
            attention_bias: none.
            packed_seq_params: `cu_seqlens_q`, and `cu_seqlens_q_padded` where sequences are padded;
                those of keys must be the same.

        Returns:
            [tokens, sequences, heads * D], or [tokens, heads * D].

        Raises:
            BadOption: an argument would change the result and is not computed (MC407).
        """
        if attention_bias is not None:
            raise BadOption("attention_bias", "None; write a score", "one", at="attention_bias")
        kind = getattr(attn_mask_type or self.attn_mask_type, "name", None)
        kind = str(attn_mask_type or self.attn_mask_type) if kind is None else kind
        hidden = kind in ("arbitrary", "padding") and packed_seq_params is None
        if kind not in _TYPES and not hidden:
            raise BadOption("attn_mask_type", " or ".join(_TYPES), repr(kind), at="attn_mask_type")
        mask, data = _TYPES.get(kind, full()), dict[str, Any]()
        mask = mask if self.mask is None else mask & self.mask
        options: dict[str, Any] = {"scale": self.softmax_scale}
        if self.training and self.dropout:
            options["dropout_p"] = self.dropout
        if packed_seq_params is not None:
            stored, data = _packed(packed_seq_params, query)
            q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
            out = attention(q, k, v, mask & stored, **options, **data)
            return out[0].transpose(0, 1).flatten(1)
        if hidden and attention_mask is not None:
            from maskc.sdpa import scaled_dot_product_attention as masked

            if self.mask is not None:
                raise BadOption("mask", f"None with attn_mask_type {kind}", "one", at="mask")
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            out = masked(q, k, v, ~attention_mask, scale=self.softmax_scale, enable_gqa=True,
                         dropout_p=options.get("dropout_p", 0.0))  # fmt: skip
            return out.permute(2, 0, 1, 3).flatten(2)
        return attention(query, key, value, mask, layout="sbhd", **options).flatten(2)


def _packed(params: Any, query: Any) -> tuple[Mask, dict[str, Any]]:
    """The documents of packed sequences, and their data."""
    of_q, of_k = params.cu_seqlens_q, getattr(params, "cu_seqlens_kv", None)
    padded = getattr(params, "cu_seqlens_q_padded", None)
    of_k_padded = getattr(params, "cu_seqlens_kv_padded", None)
    for name, one, other in (
        ("cu_seqlens_kv", of_q, of_k), ("cu_seqlens_kv_padded", padded, of_k_padded),
    ):  # fmt: skip
        if other is not None and other is not one:
            wanted = "the tensor of queries: sequences attend to themselves"
            raise BadOption(name, wanted, "another one", at="packed_seq_params")
    if padded is None or padded is of_q:
        return _PACKED, {_DOCUMENTS: cu_seqlens(of_q)}
    token = torch.arange(query.shape[0], device=query.device, dtype=padded.dtype)
    owner = torch.searchsorted(padded[1:].contiguous(), token, right=True)
    real = owner < padded.shape[0] - 1
    owner = owner.clamp(max=padded.shape[0] - 2)
    real = real & (token - padded[owner] < of_q[owner + 1] - of_q[owner])
    return _STORED, {_DOCUMENTS: cu_seqlens(padded), _REAL: real}
