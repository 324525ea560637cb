"""Autograd for compiled masks on torch tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

_TRAINABLE = ("sink_logits", "alibi_slopes")


def differentiable(q: Any, k: Any, v: Any, options: dict[str, Any]) -> bool:
    """Whether torch should record this call: gradients are on and some input wants them."""
    import torch

    inputs = (q, k, v, *(options.get(name) for name in _TRAINABLE))
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs)


def attention(attn: Any, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Any:
    """A call of a compiled mask with gradients for q, k, v, sink_logits and alibi_slopes.

    Args:
        attn: a CompiledMask of a target that has a backward pass.
        options: keywords of the call; `return_lse` gives (out, lse), lse without gradient.
    """
    rest = {name: value for name, value in options.items() if name not in _TRAINABLE}
    keep_lse = rest.pop("return_lse", False)
    extras = [options.get(name) for name in _TRAINABLE]
    out, lse = _function().apply(attn, rest, q, k, v, *extras)
    return (out, lse) if keep_lse else out


@cache
def _function() -> Any:
    import torch

    class MaskedAttention(torch.autograd.Function):
        """out, lse = attention(q, k, v); the backward pass recomputes the probabilities."""

        @staticmethod
        def forward(ctx: Any, attn: Any, rest: dict[str, Any], *tensors: Any) -> Any:
            q, k, v, *extras = (None if x is None else x.detach() for x in tensors)
            given = {n: x for n, x in zip(_TRAINABLE, extras, strict=True) if x is not None}
            out, lse = attn(q, k, v, return_lse=True, **rest, **given)
            ctx.attn, ctx.rest, ctx.names = attn, rest, tuple(given)
            ctx.save_for_backward(q, k, v, out, lse, *given.values())
            ctx.mark_non_differentiable(lse)
            return out, lse

        @staticmethod
        def backward(ctx: Any, dout: Any, _: Any) -> Any:
            q, k, v, out, lse, *extras = ctx.saved_tensors
            given = dict(zip(ctx.names, extras, strict=True))
            dout = dout if dout.stride(-1) == 1 else dout.contiguous()
            found = ctx.attn.backward(q, k, v, out, lse, dout, **ctx.rest, **given)
            of_extra = dict(zip(sorted(ctx.names, key=_TRAINABLE.index), found[3:], strict=True))
            return None, None, *found[:3], *(of_extra.get(name) for name in _TRAINABLE)

    return MaskedAttention
