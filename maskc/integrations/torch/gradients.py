"""The gradients of a call from those of out and lse, with kernels that only know the former."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskc.core.errors import BadOption

Backward = Callable[..., Any]
"""The backward pass of a torch.autograd.Function: (ctx, gradients of results)."""


def once(derivative: Backward) -> Backward:
    """A backward pass whose own results cannot be differentiated: torch raises when it is tried.

    `once_differentiable` alone tells by the gradients that arrive. Where these are constants and
    q requires grad, as in a gradient penalty, it would cut the graph, and the penalty would have
    the gradient 0.

    Raises:
        BadOption: torch.func transforms the gradients.
    """

    def backward(ctx: Any, *gradients: Any) -> Any:
        functorch = torch._C._functorch  # which is_grads_batched does without
        if functorch.peek_interpreter_stack() is not None or any(
            x is not None and functorch.is_legacy_batchedtensor(x) for x in gradients
        ):
            found = "one under vmap (is_grads_batched, vectorize=True)"
            raise BadOption("dout", "a tensor that nothing transforms", found, at="dout")
        if not torch.is_grad_enabled():  # without create_graph nobody can ask
            return derivative(ctx, *gradients)
        refused = torch.autograd.function.once_differentiable(
            lambda *_: derivative(ctx, *gradients)
        )
        return refused(ctx, torch.empty(0, requires_grad=True))

    return backward


def gradients(
    backward: Callable[..., Any], v: Any, out: Any, lse: Any, slopes: Any, sinks: Any,
    dout: Any, dlse: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """(dq, dk, dv, dslopes, dsinks), then those of tables; None where there is none.

    With p the probabilities, ds = p * (dout . v - dout . out) + p * dlse. Both terms are linear in
    their gradient, so the second comes from a second pass: where v has a one in front and zeros
    behind, out is 0 and dout holds dlse in front, the first term is the second. dlse is rounded to
    the dtype of v on the way, as a dout is.

    Args:
        backward: (v, out, dout) -> gradients as CompiledMask.backward gives them; with True behind
            these without dropout, which comes after lse.
        v, out, lse: of the call.
        slopes, sinks: alibi_slopes and sink_logits, or None.
        dout, dlse: None where nothing depends on the result.
    """
    found = None if dout is None else backward(v, out, dout)
    if dlse is not None:
        more = _through_lse(backward, v, lse, sinks, dlse)
        found = more if found is None else [a + b for a, b in zip(found, more, strict=True)]
    if found is None:
        return None, None, None, None, None
    dq, dk, dv, *rest = found
    of_sinks = None if sinks is None else rest.pop(0)
    return dq, dk, dv, None if slopes is None else rest.pop(0), of_sinks, *rest


def _through_lse(
    backward: Callable[..., Any], v: Any, lse: Any, sinks: Any, dlse: Any
) -> list[Any]:
    """The gradients for dlse alone; arguments as of `backward`."""
    dlse = dlse.masked_fill(lse == -torch.inf, 0)
    first = torch.eye(1, v.shape[-1], dtype=v.dtype, device=v.device)
    pushed = dlse.to(v.dtype).unsqueeze(-1) * first
    more = list(backward(first.repeat(*v.shape[:3], 1), torch.zeros_like(pushed), pushed, True))
    if sinks is not None:
        share = torch.exp(sinks[:, None] - lse).masked_fill(lse == -torch.inf, 0)
        more[3] = more[3] + (share * dlse).sum((0, 2))
    more[2] = torch.zeros_like(v)
    return more


def rows(dout: Any) -> Any:
    """dout as kernels take it: contiguous rows, on CUDA aligned to 16 bytes."""
    if dout.stride(-1) != 1:
        return dout.contiguous()
    if dout.device.type == "cuda":
        size = dout.element_size()
        steps = (dout.data_ptr(), *(size * step for step in dout.stride()[:-1]))
        if any(step % 16 for step in steps):
            return dout.clone(memory_format=torch.contiguous_format)
    return dout
