"""Logits that the options of a call make of products q . k, on tensors."""

from __future__ import annotations

from typing import Any

import torch

from maskc.core.attention_call import CallOptions


def option_logits(
    products: Any, options: CallOptions, head_dim: int, queries: tuple[int, int], keys: Any,
    behind: int,
) -> Any:  # fmt: skip
    """Return scale * products, soft-capped and with ALiBi where the options say so.

    Args:
        products: [B, Hq, queries, width], fp32 or fp64.
        options: of the call.
        head_dim: of q and k, for the default scale.
        queries: the first one, and the one behind the last.
        keys: the keys' places, int64 [..., queries or 1, width].
        behind: n_kv - n_q.
    """
    scale, cap, slopes = options.scale, options.softcap, options.alibi_slopes
    logits = products * (head_dim**-0.5 if scale is None else float(scale))
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if slopes is not None:
        places = torch.arange(*queries, device=logits.device) + behind
        slopes = slopes.detach().to(logits.device, logits.dtype)
        logits = logits - slopes[:, None, None] * (places[:, None] - keys).abs()
    return logits
