"""Tiny random models of transformers, with the same weights on maskc and on eager attention."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import pytest

QUIET = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("UserWarning", "FutureWarning", "DeprecationWarning")
]
"""Warnings of transformers and torch on the way."""

BASE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
ENCODER: dict[str, Any] = {
    name: BASE[name] for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "max_position_embeddings", "pad_token_id",
    )
} | {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}  # fmt: skip
_TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "phi3": ("Phi3Config", {"sliding_window": 8}),
    "gemma2": (
        "Gemma2Config",
        _TWO_KINDS | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    ),
    "gemma3": ("Gemma3TextConfig", _TWO_KINDS | {"query_pre_attn_scalar": 16}),
    "gemma4": (
        "Gemma4TextConfig",
        _TWO_KINDS | {
            "global_head_dim": 32, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16,
        },
    ),
    "gpt_oss": ("GptOssConfig", _TWO_KINDS | _MOE),
    "llama4": (
        "Llama4TextConfig",
        _MOE | {
            "intermediate_size_mlp": 64, "attention_chunk_size": 8,
            "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "cohere2": ("Cohere2Config", _TWO_KINDS),
    "olmo3": ("Olmo3Config", _TWO_KINDS),
    "mimo_v2": (
        "MiMoV2FlashConfig",
        _TWO_KINDS | {"v_head_dim": 8, "swa_head_dim": 16, "swa_v_head_dim": 8},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            "layer_types": ["linear_attention", "full_attention"], "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2,
            "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        },
    ),
}  # fmt: skip
"""Models that generate: the class of their configuration, and what differs from BASE."""

_MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}  # fmt: skip
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba": ("BambaConfig", {"attn_layer_indices": [1]} | _MAMBA),
    "jamba": (
        "JambaConfig",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "mamba_d_state": 8},
    ),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": DECODERS["qwen3_next"],
}  # fmt: skip
"""Decoders whose first layer has a state in place of attention."""

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {}),
    "esm": ("EsmConfig", {"position_embedding_type": "rotary", "mask_token_id": 2}),
    "modernbert": (
        "ModernBertConfig",
        {
            "local_attention": 8, "global_attn_every_n_layers": 2, "num_hidden_layers": 2,
            "eos_token_id": 2, "bos_token_id": 1, "cls_token_id": 1, "sep_token_id": 2,
        },
    ),
}  # fmt: skip

VIT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 8, "patch_size": 2,
}  # fmt: skip
SAM: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 4, "window_size": 2, "global_attn_indexes": [0], "output_channels": 8,
    "mlp_dim": 64,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": 64, "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    "dropout_rate": 0.0, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip


class Pair(NamedTuple):
    """Two models with equal weights."""

    ours: Any
    eager: Any


def pair(kind: str, auto: str, options: dict[str, Any]) -> Pair:
    """The models of a configuration, each with a copy of it: a model writes into its own.

    Args:
        kind: class of the configuration.
        auto: class that makes the model, an attribute of transformers.
        options: of the configuration.
    """
    import torch
    import transformers

    from maskc.integrations.transformers import register

    register()
    config = getattr(transformers, kind)(**options)
    build = getattr(transformers, auto).from_config
    torch.manual_seed(0)
    ours = build(deepcopy(config), attn_implementation="maskc")
    with torch.no_grad():  # weights large enough that attention is not uniform
        for name, weight in ours.named_parameters():
            if weight.ndim > 1 and ("q_proj" in name or "k_proj" in name or "query" in name):
                weight.mul_(8)
            if name.endswith("sinks"):
                weight.normal_()
    eager = build(deepcopy(config), attn_implementation="eager")
    eager.load_state_dict(ours.state_dict())
    return Pair(ours.eval(), eager.eval())


def same_gradients(pair: Pair) -> list[str]:
    """Compare the gradients of all weights, up to fp32's rounding; the names of those that have
    one that is not 0."""
    theirs, seen = dict(pair.eager.named_parameters()), []
    for name, weight in pair.ours.named_parameters():
        grad = theirs[name].grad
        assert (weight.grad is None) == (grad is None), name
        if grad is not None:
            most = grad.abs().max().item()
            off = (weight.grad - grad).abs().max().item()
            assert off <= 2e-5 * max(most, 1e-3), name
            seen += [name] if most else []
    assert seen
    return seen


def decoder(name: str) -> Pair:
    """The two models of a decoder."""
    kind, options = (DECODERS | HYBRIDS)[name]
    return pair(kind, "AutoModelForCausalLM", BASE | options)


def encoder(name: str) -> Pair:
    """The two models of an encoder."""
    kind, options = ENCODERS[name]
    return pair(kind, "AutoModelForMaskedLM", ENCODER | options)


def tokens(side: str = "left", n: int = 24, batch: int = 2) -> tuple[Any, Any]:
    """(ids [batch, n], mask): the first sequence has five tokens of padding at a side."""
    import torch

    torch.manual_seed(1)
    ids, mask = torch.randint(3, 64, (batch, n)), torch.ones(batch, n, dtype=torch.long)
    if side == "left":
        mask[0, :5] = 0
    elif side == "right":
        mask[0, -5:] = 0
    return ids, mask


def packed(n: int = 24) -> tuple[Any, Any]:
    """(ids [2, n], position_ids): three sequences in the first row, two in the second."""
    import torch

    ids, _ = tokens(n=n)
    lengths = ([9, 4, n - 13], [n // 2, n - n // 2])
    rows = [torch.cat([torch.arange(m) for m in row]) for row in lengths]
    return ids, torch.stack(rows)
