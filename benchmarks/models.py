"""Tiny models of transformers on a device, each checked against eager attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

_BASE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "head_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 100}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("MistralConfig", {"sliding_window": 100}),
    "gemma2": (
        "Gemma2Config",
        _TWO_KINDS | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 64},
    ),
    "gemma3": ("Gemma3TextConfig", _TWO_KINDS | {"query_pre_attn_scalar": 64}),
    "gpt_oss": ("GptOssConfig", _TWO_KINDS | _EXPERTS),
    "llama4": (
        "Llama4TextConfig",
        _EXPERTS | {
            "intermediate_size_mlp": 128, "attention_chunk_size": 100,
            "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
}  # fmt: skip


def made(name: str, device: str, dtype: str) -> Any:
    """A model with random weights, large enough that attention is not uniform."""
    import torch
    import transformers

    from maskc.integrations.transformers import register

    register()
    kind, options = MODELS[name]
    config = getattr(transformers, kind)(**_BASE | options)
    torch.manual_seed(0)
    build = transformers.AutoModelForCausalLM.from_config
    model = build(config, attn_implementation="maskc")
    with torch.no_grad():
        for label, weight in model.named_parameters():
            if "q_proj.weight" in label or "k_proj.weight" in label:
                weight.mul_(4)
            if label.endswith("sinks"):
                weight.normal_()
    return model.to(device, getattr(torch, dtype)).eval()


def checks(
    names: Sequence[str], device: str = "cuda", dtype: str = "bfloat16", n: int = 300
) -> Iterator[tuple[str, Any, bool]]:
    """(what was checked, what was found, whether it is right) of each model: 2 sequences, one of
    them padded at its left; logits, gradients, and the tokens that are generated.

    Half precision may send a token to another expert, so logits and gradients are judged by eager
    attention in fp32: maskc may be twice as far from it as eager attention in the same dtype.

    Args:
        n: tokens of a sequence.
    """
    import torch

    from maskc.integrations.transformers import check

    for name in names:
        model = made(name, device, dtype)
        ids = torch.arange(2 * n, device=device).reshape(2, n) * 7 % 61 + 3
        padding = torch.ones_like(ids)
        padding[0, :37] = 0
        table = check(model, input_ids=ids, attention_mask=padding)
        results = {impl: _results(model, impl, ids, padding) for impl in ("maskc", "eager")}
        exact = _results(deepcopy(model).float(), "eager", ids, padding)
        for index, what in enumerate(("logits", "gradients")):
            mine, theirs = (
                float((results[impl][index] - exact[index]).norm() / exact[index].norm())
                for impl in ("maskc", "eager")
            )
            found = f"{mine:.1e} from fp32, eager attention {theirs:.1e}"
            right = mine <= max(2 * theirs, 1e-5)
            yield f"{name}, {what}", f"{table}\n{found}" if index == 0 else found, right
        tokens = [results[impl][2] for impl in ("maskc", "eager")]
        same, total = int((tokens[0] == tokens[1]).sum()), tokens[0].numel()
        # A tie of two logits may fall either way, and one token changes those behind it.
        yield f"{name}, generate", f"{same} of {total} tokens equal", same > 0.9 * total


def _results(model: Any, impl: str, ids: Any, padding: Any) -> tuple[Any, Any, Any]:
    """(logits of tokens that are no padding, gradients, generated tokens) in fp32."""
    import torch

    model.set_attn_implementation(impl)
    model.zero_grad()
    logits = model(input_ids=ids, attention_mask=padding, use_cache=False).logits
    real = logits[padding.bool()].float()
    real.pow(2).mean().backward()
    slopes = [x.grad.float().flatten() for x in model.parameters() if x.grad is not None]
    tokens = model.generate(ids, attention_mask=padding, max_new_tokens=8, do_sample=False)
    return real.detach(), torch.cat(slopes), tokens
