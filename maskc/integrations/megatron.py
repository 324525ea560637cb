"""Core attention for layers of Megatron-Core: `DotProductAttention` with any mask.

Tested on the CPU with Megatron-Core 0.16.1: a GPT model of two layers gives the same logits and
gradients as with Megatron's own DotProductAttention. The arguments are the same since 0.14. Context
parallelism is tested on the CPU without Megatron. Nobody has trained with it on a card.

Tensors are [tokens, sequences, heads, D], or [tokens, heads, D] with `packed_seq_params` in the
format "thd". With context parallelism, each sequence is cut into 2 * ranks chunks, and a rank holds
two of them. This module imports nothing from Megatron.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from maskc.api import attention
from maskc.core.dtypes import dtype_name
from maskc.core.errors import BadOption
from maskc.distributed import Plan, plan, zigzag
from maskc.distributed import attention as shared_attention
from maskc.dsl.combinators import causal, full, window
from maskc.dsl.data_atoms import documents
from maskc.dsl.mask import Mask

_TYPES = {
    "causal": causal(), "padding_causal": causal(), "causal_bottom_right": causal(),
    "no_mask": full(), "padding": full(),
}  # fmt: skip
"""Masks by the name of Megatron's AttnMaskType."""
_SOFTMAX = ("vanilla", "off-by-one", "learnable")
"""Values of softmax_type. The two last ones add a logit for each head, 0 or learned."""
_READS_MASK = ("arbitrary", "padding", "padding_causal")
"""The types for which Megatron passes an attention_mask with more than the type says."""


class DotProductAttention(nn.Module):
    """Attention of a layer of Megatron. Give the class to a layer's spec as `core_attention`.

    To run your own mask, set `mask` in a subclass. A pair must then satisfy the mask, Megatron's
    mask type and the layer's window. The module computes `config.window_size` and
    `config.softmax_type`, too.
    """

    mask: Mask | None = None
    """Your own mask, without data. In packed sequences it counts positions in the packed row."""

    def __init__(
        self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str,
        attention_dropout: float | None = None, softmax_scale: float | None = None,
        **others: Any,
    ) -> None:  # fmt: skip
        """Read the options of a layer.

        Args:
            config: Megatron's TransformerConfig.
            layer_number: number of the layer, from 1.
            attn_mask_type: the AttnMaskType of calls that name none.
            attention_type: "self" or "cross".
            attention_dropout: probability that training drops a weight; by default
                `config.attention_dropout`.
            softmax_scale: factor of the scores; by default D^-1/2.
            others: `pg_collection` (`model_comm_pgs` before 0.15), whose `cp` is the process group
                of context parallelism. Other keywords are ignored.

        Raises:
            BadOption: the configuration needs something that maskc does not run: scores scaled by
                layer, the largest logit of each head, or context parallelism without a process
                group or with a learnable softmax (MC407).
        """
        super().__init__()
        self.ranks = getattr(config, "context_parallel_size", 1)
        self.groups = others.get("pg_collection") or others.get("model_comm_pgs")
        self.group = getattr(self.groups, "cp", None)
        if self.ranks > 1 and self.group is None:
            wanted = "1, or pg_collection with the group cp"
            raise BadOption("context_parallel_size", wanted, self.ranks, at="config")
        for name in ("apply_query_key_layer_scaling", "qk_clip", "log_max_attention_logit"):
            if getattr(config, name, False):
                raise BadOption(name, "False", True, at="config")
        softmax = getattr(config, "softmax_type", "vanilla")
        if softmax not in _SOFTMAX:
            raise BadOption("softmax_type", " or ".join(_SOFTMAX), repr(softmax), at="config")
        self.sinks = softmax != "vanilla"
        self.deterministic = bool(getattr(config, "deterministic_mode", False))
        if self.sinks:
            self._add_softmax_offset(config)
        self.window_size = _window_size(config, layer_number)
        self.window = None if self.window_size is None else window.flash(*self.window_size)
        self.layer_number, self.attention_type = layer_number, attention_type
        self.attn_mask_type, self.softmax_scale = attn_mask_type, softmax_scale
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.dropout = float(dropout or 0.0)

    def forward(
        self, query: Any, key: Any, value: Any, attention_mask: Any = None,
        attn_mask_type: Any = None, attention_bias: Any = None, packed_seq_params: Any = None,
    ) -> Any:  # fmt: skip
        """Compute attention of one layer.

        Args:
            query, key, value: [tokens, sequences, heads, D], or [tokens, heads, D] with
                packed_seq_params.
            attention_mask: booleans that broadcast to [sequences, heads, n_q, n_kv], True for
                hidden pairs. It is read for the types "padding", "padding_causal" and "arbitrary"
                only, as in TransformerEngine. Megatron's own class also reads it for "causal".
            attn_mask_type: an AttnMaskType, or its name.
            attention_bias: must be None.
            packed_seq_params: Megatron's PackedSeqParams: `cu_seqlens_q`, and
                `cu_seqlens_q_padded` if sequences are padded. If the fields for keys hold other
                tensors, as in cross attention, `mask` must be None; types that align the first
                tokens are refused, and so is context parallelism. With context parallelism they
                count the tokens of all ranks. The plan is stored in this object, so make a new one
                for each batch.

        Returns:
            [tokens, sequences, heads * D], or [tokens, heads * D].

        Raises:
            BadOption: an argument would change the result and maskc does not run it (MC407).
        """
        if attention_bias is not None:
            raise BadOption("attention_bias", "None; write a score", "one", at="attention_bias")
        kind = getattr(attn_mask_type or self.attn_mask_type, "name", None)
        kind = str(attn_mask_type or self.attn_mask_type) if kind is None else kind
        if kind not in _TYPES and kind != "arbitrary":
            raise BadOption("attn_mask_type", " or ".join(_TYPES), repr(kind), at="attn_mask_type")
        if kind == "causal" and packed_seq_params is None and len(key) != len(query):
            wanted = "causal_bottom_right for queries that are the last tokens"
            raise BadOption("attn_mask_type", wanted, repr(kind), at="attn_mask_type")
        hidden = packed_seq_params is None and attention_mask is not None and kind in _READS_MASK
        fits = getattr(attention_mask, "dtype", None) is torch.bool if hidden else kind in _TYPES
        if not fits:
            wanted = f"a tensor of booleans for attn_mask_type {kind}"
            what = str(getattr(attention_mask, "dtype", type(attention_mask).__name__))
            raise BadOption("attention_mask", wanted, what, at="attention_mask")
        mask = _TYPES.get(kind, full())
        for other in (self.window, self.mask):
            mask = mask if other is None else mask & other
        ranks, group = self._ranks(packed_seq_params)
        if ranks > 1:
            return self._shared(query, key, value, mask, hidden, packed_seq_params, ranks, group)
        options: dict[str, Any] = {
            "scale": self.softmax_scale, "deterministic": self.deterministic,
        }  # fmt: skip
        if self.sinks:
            options["sink_logits"] = self.softmax_offset.float()
        if self.training and self.dropout:
            options["dropout_p"] = self.dropout
        if packed_seq_params is not None:
            options |= _packed(packed_seq_params)
            packed_mask: Mask | None = mask
            if "cu_seqlens_k" in options:
                packed_mask = self.mask
                options |= self._of_other_keys(kind)
            return attention(query, key, value, packed_mask, **options).flatten(1)
        if hidden:
            return self._by_tensor(query, key, value, attention_mask, kind)
        return attention(query, key, value, mask, layout="sbhd", **options).flatten(2)

    def _of_other_keys(self, kind: str) -> dict[str, Any]:
        """Return the keywords of a mask that counts in each sequence, where the last tokens meet.

        Raises:
            BadOption: the first tokens meet in this type (MC407).
        """
        if kind in ("causal", "padding_causal"):
            wanted = "padding, no_mask or causal_bottom_right where cu_seqlens_kv is another tensor"
            raise BadOption("attn_mask_type", wanted, repr(kind), at="packed_seq_params")
        return {"is_causal": kind == "causal_bottom_right", "window_size": self.window_size}

    def _add_softmax_offset(self, config: Any) -> None:
        """Add the sink logit of each head under Megatron's name, so that checkpoints agree."""
        heads = config.num_attention_heads // getattr(config, "tensor_model_parallel_size", 1)
        offset = torch.zeros(heads, dtype=config.params_dtype)
        if config.softmax_type == "learnable":
            if config.perform_initialization:
                config.init_method(offset)
            self.softmax_offset: Any = nn.Parameter(offset)
        else:
            self.register_buffer("softmax_offset", offset, persistent=False)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> Any:
        """Return the learnable sink logits for Megatron's checkpoints, cut by tensor parallelism.

        Megatron calls this method; its base class describes the arguments.
        """
        if not isinstance(getattr(self, "softmax_offset", None), nn.Parameter):
            return {}
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        groups = {"tp_group": getattr(self.groups, "tp", None)}
        if metadata and "dp_cp_group" in metadata:
            groups["dp_cp_group"] = metadata["dp_cp_group"]
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True),
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            **groups,
        )

    def _ranks(self, packed: Any) -> tuple[int, Any]:
        """Return size and process group of context parallelism, which a batch may choose."""
        size = getattr(packed, "local_cp_size", None)
        if size is None:
            return self.ranks, self.group
        return size, packed.cp_group

    def _by_tensor(self, query: Any, key: Any, value: Any, hidden: Any, kind: str) -> Any:
        """Compute attention with a mask that Megatron passes as a tensor.

        Raises:
            BadOption: there is a mask, a window or a sink logit as well (MC407).
        """
        from maskc.sdpa import scaled_dot_product_attention as masked

        for name, other in (
            ("mask", self.mask), ("window_size", self.window), ("softmax_type", self.sinks or None)
        ):  # fmt: skip
            if other is not None:
                wanted = f"unset with an attention_mask of type {kind}"
                raise BadOption(name, wanted, "set", at="attention_mask")
        keep = ~hidden
        if kind == "padding_causal":
            pairs = torch.ones(len(query), len(key), dtype=torch.bool, device=keep.device)
            keep = keep & pairs.tril(len(key) - len(query))
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = masked(q, k, v, keep, scale=self.softmax_scale, enable_gqa=True,
                     dropout_p=self.dropout if self.training else 0.0)  # fmt: skip
        return out.permute(2, 0, 1, 3).flatten(2)

    def _shared(
        self, query: Any, key: Any, value: Any, mask: Mask, hidden: bool, packed: Any, ranks: int,
        group: Any,
    ) -> Any:  # fmt: skip
        """Compute attention over the ranks of context parallelism.

        Raises:
            BadOption: an option that does not work over several ranks (MC407).
        """
        for name, wanted, value_of, refused in (
            ("attention_mask", "None", "a tensor", hidden),
            ("attention_dropout", "0", self.dropout, self.training and self.dropout),
            ("attention_type", "'self'", repr(self.attention_type), len(key) != len(query)),
            ("softmax_type", "vanilla", "another one", self.sinks),
        ):
            if refused:
                wanted += " with context parallelism"
                raise BadOption(name, wanted, value_of, at=name)
        sizes = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
        dtype = dtype_name(query)
        if packed is None:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            made = _zigzag(mask, len(query) * ranks, ranks, sizes, dtype, q.shape[0])
        else:
            q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
            plans = packed.__dict__.setdefault("_maskc_plans", {})
            asked = mask, ranks, sizes, dtype
            if asked not in plans:
                plans[asked] = _packed_plan(packed, len(query) * ranks, *asked)
            made = plans[asked]
        out = shared_attention(q, k, v, made, group=group, scale=self.softmax_scale,
                               deterministic=self.deterministic)  # fmt: skip
        return out.permute(2, 0, 1, 3).flatten(1 if packed is not None else 2)


def _window_size(config: Any, layer_number: int) -> tuple[int, int] | None:
    """Return the window of a layer: config.window_size counts keys to the left and to the right.

    Raises:
        BadOption: it is no pair, or the frequency of layers without one is no number (MC407).
    """
    size = getattr(config, "window_size", None)
    skip = getattr(config, "window_attn_skip_freq", None)
    if size is None:
        return None
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise BadOption("window_size", "a pair of integers", repr(size), at="config")
    is_count = type(skip) is int and skip > 0
    if skip is not None and not is_count and len(skip or ()) < layer_number:
        wanted = f"a positive integer or a list of at least {layer_number} entries"
        raise BadOption("window_attn_skip_freq", wanted, repr(skip), at="config")
    if skip is not None and not (layer_number % skip if is_count else skip[layer_number - 1]):
        return None
    left, right = size
    return None if (left, right) == (-1, -1) else (left, right)


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
        BadOption: a sequence cannot be cut into 2 * ranks equal chunks, or keys have lengths of
            their own (MC407).
    """
    given = _packed(params)
    if "cu_seqlens_k" in given:
        wanted = "the tensor of queries with context parallelism"
        raise BadOption("cu_seqlens_kv", wanted, "another one", at="packed_seq_params")
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
    """Return the keywords of packed sequences, with those of keys that have their own tensors."""
    of_q, of_k = params.cu_seqlens_q, getattr(params, "cu_seqlens_kv", None)
    padded = getattr(params, "cu_seqlens_q_padded", None)
    of_k_padded = getattr(params, "cu_seqlens_kv_padded", None)
    lengths = {"cu_seqlens_q": of_q, "cu_seqlens_q_padded": None if padded is of_q else padded}
    pairs = (of_q, of_k), (padded, of_k_padded)
    if all(of_keys is None or of_keys is of_queries for of_queries, of_keys in pairs):
        most = getattr(params, "max_seqlen_q", None)  # the host reads no tensor
        return lengths | {"max_seqlen": most if isinstance(most, int) else None}
    of_k = of_q if of_k is None else of_k
    padded = None if of_k_padded is of_k else of_k_padded
    return lengths | {"cu_seqlens_k": of_k, "cu_seqlens_k_padded": padded}
