"""The node that an eager call with gradients leaves in the autograd graph."""

from __future__ import annotations

from typing import Any

import torch

from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.errors import NotAnArray
from maskc.integrations.torch.gradients import gradients, once, rows
from maskc.integrations.torch.keywords import PackedCall


def forward(
    attn: Any, call: PackedCall, q: Any, k: Any, v: Any, slopes: Any, sinks: Any, data: Any,
    differentiated: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """(out, lse) of a compiled mask.

    Args:
        differentiated: whether a backward pass will follow, so that its kernels are built early.
    """
    options = call.options.with_heads(slopes, sinks)
    following = _of_backward(options) if differentiated else None
    given = AttentionCall(
        q, k, v, options, call.data(data), None, None, None, None, None, None, following, call.order
    )
    results: tuple[Any, Any] = attn.run(given)
    return results


_is_deterministic = torch._C._get_deterministic_algorithms
"""`torch.are_deterministic_algorithms_enabled`, without a call in between."""


def _of_backward(options: CallOptions) -> CallOptions:
    """Return the options of the backward pass: the mode of torch.use_deterministic_algorithms joins
    the call's own."""
    if _is_deterministic():
        return options._replace(deterministic=True)
    return options


def backward(
    attn: Any, call: PackedCall, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, slopes: Any,
    sinks: Any, data: Any, tables: tuple[str, ...] = (),
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of out.

    Args:
        tables: of a score formula, whose gradients follow.
    """
    options = _of_backward(call.options.with_heads(slopes, sinks))
    given = AttentionCall(
        q, k, v, options, call.data(data), None, out, lse, rows(dout), tables, None, None,
        call.order,
    )  # fmt: skip
    gradients: tuple[Any, ...] = attn.differentiate(given)
    return gradients


_FIXED = 7
"""Arguments of the function before the data tensors."""


class MaskedAttention(torch.autograd.Function):
    """out, lse = attention(q, k, v); the backward pass recomputes the probabilities."""

    @staticmethod
    def forward(
        ctx: Any, attn: Any, call: PackedCall, q: Any, k: Any, v: Any, slopes: Any, sinks: Any,
        *data: Any,
    ) -> Any:  # fmt: skip
        attn = attn.settled()
        out, lse = forward(attn, call, q, k, v, slopes, sinks, data, True)
        if out._is_view():  # which torch lets nobody write into
            out = out.data
        ctx.set_materialize_grads(False)
        ctx.attn, ctx.call = attn, call
        if call.entmax:
            ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(q, k, v, out, lse, slopes, sinks, *data)
        return out, lse

    @staticmethod
    @once
    def backward(ctx: Any, saved: Any, dout: Any, dlse: Any) -> Any:
        q, k, v, out, lse, slopes, sinks, *data = saved
        tables = {}
        if data and any(wanted := ctx.needs_input_grad[_FIXED:]):
            places = ctx.call.places().items()
            tables = {name: place for name, place in places if wanted[place]}

        def run(v: Any, out: Any, dout: Any, undropped: bool = False) -> Any:
            args = (q, k, v, out, lse, dout, slopes, sinks, data, tuple(tables))
            return backward(ctx.attn, ctx.call.undropped() if undropped else ctx.call, *args)

        grads = gradients(run, v, out, lse, slopes, sinks, dout, dlse, ctx.call.order)
        of_data: list[Any] = [None for _ in data]
        for place, gradient in zip(tables.values(), grads[5:], strict=False):
            of_data[place] = gradient.to(data[place].dtype)
        return None, None, *grads[:5], *of_data


_looking: Any = MaskedAttention.apply
_apply: Any = super(torch.autograd.Function, MaskedAttention).apply
"""`Function.apply` without its search of every argument for torch.func transforms, which takes some
5 us."""


def attended(*call: Any) -> tuple[Any, Any]:
    """(compiled mask, call, q, k, v, slopes, sinks, *data) -> (out, lse), with such a node."""
    results: tuple[Any, Any]
    try:
        results = _apply(*call)
    except NotAnArray:  # a tensor that outlived its transform has no memory
        results = _looking(*call)
    return results
