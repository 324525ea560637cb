"""Core attention for layers of Megatron: `DotProductAttention` with any mask.

Written from the interface of Megatron-Core 0.14, `megatron.core.transformer.dot_product_attention`:
tensors are [tokens, sequences, heads, D], or [tokens, heads, D] with `packed_seq_params` in the
format "thd". With context parallelism a rank holds two of 2 * ranks chunks, of the sequences or of
each packed one. It imports nothing of Megatron and was not run inside of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from maskc.api import attention
from maskc.core.errors import BadOption
from maskc.distributed import Plan, plan, zigzag
from maskc.distributed import attention as shared_attention
from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import documents
from maskc.dsl.mask import Mask

_TYPES = {"causal": causal(), "padding_causal": causal(), "no_mask": full(), "padding": full()}
"""Masks by the name of Megatron's AttnMaskType."""


class DotProductAttention(nn.Module):
    """Attention of a layer of Megatron; give it to a layer's spec as `core_attention`.

    A subclass with `mask` set runs that mask, and every pair must satisfy Megatron's type as well.
    """

    mask: Mask | None = None
    """A mask of one's own, without data. Positions of packed sequences count in the packed row."""

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
            others: `model_comm_pgs` or `pg_collection`, whose `cp` is the group of context
                parallelism; the rest is ignored.

        Raises:
            BadOption: the configuration scales scores by layer, or has context parallelism without
                a group for it (MC407).
        """
        super().__init__()
        self.ranks = getattr(config, "context_parallel_size", 1)
        groups = others.get("pg_collection") or others.get("model_comm_pgs")
        self.group = getattr(groups, "cp", None)
        if self.ranks > 1 and self.group is None:
            wanted = "1, or pg_collection with the group cp"
            raise BadOption("context_parallel_size", wanted, self.ranks, at="config")
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
                those of keys must be the same. With context parallelism they count the tokens of
                all ranks, and each object must be of one batch: the plan is kept in it.

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
        mask = _TYPES.get(kind, full())
        mask = mask if self.mask is None else mask & self.mask
        if self.ranks > 1:
            hidden = hidden and attention_mask is not None
            return self._shared(query, key, value, mask, hidden, packed_seq_params)
        options: dict[str, Any] = {"scale": self.softmax_scale}
        if self.training and self.dropout:
            options["dropout_p"] = self.dropout
        if packed_seq_params is not None:
            options |= _packed(packed_seq_params)
            return attention(query, key, value, mask, **options).flatten(1)
        if hidden and attention_mask is not None:
            from maskc.sdpa import scaled_dot_product_attention as masked

            if self.mask is not None:
                raise BadOption("mask", f"None with attn_mask_type {kind}", "one", at="mask")
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            out = masked(q, k, v, ~attention_mask, scale=self.softmax_scale, enable_gqa=True,
                         dropout_p=options.get("dropout_p", 0.0))  # fmt: skip
            return out.permute(2, 0, 1, 3).flatten(2)
        return attention(query, key, value, mask, layout="sbhd", **options).flatten(2)

    def _shared(
        self, query: Any, key: Any, value: Any, mask: Mask, hidden: bool, packed: Any
    ) -> Any:
        """Attention over the ranks of context parallelism; arguments as in `forward`.

        Raises:
            BadOption: what ranks cannot share (MC407).
        """
        for name, wanted, value_of, refused in (
            ("attention_mask", "None", "a tensor", hidden),
            ("attention_dropout", "0", self.dropout, self.training and self.dropout),
            ("attention_type", "'self'", repr(self.attention_type), len(key) != len(query)),
        ):
            if refused:
                wanted += " with context parallelism"
                raise BadOption(name, wanted, value_of, at=name)
        sizes = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
        dtype = str(query.dtype).removeprefix("torch.")
        if packed is None:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            made = _zigzag(mask, len(query) * self.ranks, self.ranks, sizes, dtype, q.shape[0])
        else:
            q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
            plans = packed.__dict__.setdefault("_maskc_plans", {})
            asked = mask, self.ranks, sizes, dtype
            if asked not in plans:
                plans[asked] = _packed_plan(packed, len(query) * self.ranks, *asked)
            made = plans[asked]
        out = shared_attention(q, k, v, made, group=self.group, scale=self.softmax_scale)
        return out.permute(2, 0, 1, 3).flatten(1 if packed is not None else 2)


@lru_cache(maxsize=64)
def _zigzag(mask: Mask, n: int, ranks: int, heads: tuple[int, ...], dtype: str, batch: int) -> Plan:
    """Return the plan of whole sequences of n tokens; all layers share it."""
    layout = zigzag([0, n], ranks)
    return plan(mask, n, ranks, heads=heads, dtype=dtype, layout=layout, batch=batch)


def _packed_plan(
    params: Any, n: int, mask: Mask, ranks: int, heads: tuple[int, ...], dtype: str
) -> Plan:
    """Return the plan of packed sequences, which are stored in n places.

    Raises:
        BadOption: a sequence cannot be cut into 2 * ranks equal chunks (MC407).
    """
    given = _packed(params)
    ends, stored = given["cu_seqlens_q"], given["cu_seqlens_q_padded"]
    ends = np.asarray(ends.tolist())
    stored = ends if stored is None else np.asarray(stored.tolist())
    if (np.diff(stored) % (2 * ranks)).any():
        wanted = f"multiples of {2 * ranks}, 2 chunks for each rank of context parallelism"
        raise BadOption("lengths of packed sequences", wanted, np.diff(stored).tolist(),
                        at="packed_seq_params")  # fmt: skip
    number = np.searchsorted(stored[1:], np.arange(n), side="right")
    lengths = np.append(np.diff(ends), 0)  # places behind the last sequence belong to none
    begins = np.append(stored[:-1], n)
    is_token = np.arange(n) - begins[number] < lengths[number]
    ids = np.where(is_token, number, -2), np.where(is_token, number, -1)  # padding sees nothing
    edges = stored if stored[-1] == n else np.append(stored, n)
    return plan(
        mask & documents("sequence"), n, ranks, heads=heads, dtype=dtype,
        layout=zigzag(edges, ranks), data={"sequence": ids},
    )  # fmt: skip


def _packed(params: Any) -> dict[str, Any]:
    """Return the keywords of packed sequences."""
    of_q, of_k = params.cu_seqlens_q, getattr(params, "cu_seqlens_kv", None)
    padded = getattr(params, "cu_seqlens_q_padded", None)
    of_k_padded = getattr(params, "cu_seqlens_kv_padded", None)
    for name, one, other in (
        ("cu_seqlens_kv", of_q, of_k), ("cu_seqlens_kv_padded", padded, of_k_padded),
    ):  # fmt: skip
        if other is not None and other is not one:
            wanted = "the tensor of queries: sequences attend to themselves"
            raise BadOption(name, wanted, "another one", at="packed_seq_params")
    return {"cu_seqlens_q": of_q, "cu_seqlens_q_padded": None if padded is of_q else padded}
