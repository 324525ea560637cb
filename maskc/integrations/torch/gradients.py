"""Gradients of a call from the gradients of out and lse, with kernels that only take the former."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from maskc.core.errors import BadOption, ShardedTensor, TensorTransformed
from maskc.core.tensors import Order
from maskc.runtime.autograd import takes_part

Backward = Callable[..., Any]
"""The backward pass of a torch.autograd.Function: (ctx, gradients of results)."""
Derivative = Callable[..., Any]
"""Backward function that `once` wraps: (ctx, saved tensors, gradients of results)."""


_transforms = torch._C._functorch.peek_interpreter_stack
_is_batched = torch._C._functorch.is_legacy_batchedtensor
"""Questions that every backward pass asks of torch, looked up once."""


def refuse_transforms(arguments: Mapping[str, Any]) -> None:
    """Raise an error for tensors with transforms or parts that a kernel would ignore.

    Raises:
        TensorTransformed: a transform of torch.func would miss the kernel (MC652).
        BadOption: forward-mode differentiation would miss the kernel.
        ShardedTensor: a tensor is a DTensor.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise TensorTransformed("q", "torch.func (vmap, grad, jvp)", at="q")
    forward: Any = torch.autograd.forward_ad
    for name, given in arguments.items():
        for x in given if isinstance(given, tuple) else (given,):
            if not isinstance(x, torch.Tensor):
                continue
            if forward._current_level >= 0 and forward.unpack_dual(x).tangent is not None:
                finding = "a dual one: there is no forward-mode derivative"
                raise BadOption(name, "a plain tensor", finding, at=name)
            if takes_part(x) and hasattr(x, "to_local"):
                raise ShardedTensor(name, at=name)


def once(derivative: Derivative) -> Backward:
    """Make a backward pass with results that raise an error when they are differentiated.

    The results keep a graph edge to all inputs of the pass. torch's `once_differentiable` keeps
    none: with allow_unused=True, as in torch.autograd.functional.hessian, the derivatives would
    silently be 0.

    Raises:
        TensorTransformed: torch.func transforms the gradients (MC652).
    """

    def backward(ctx: Any, *gradients: Any) -> Any:
        is_transformed = _transforms() is not None  # is_grads_batched does without
        for x in gradients:
            is_transformed = is_transformed or (x is not None and _is_batched(x))
        if is_transformed:
            finding = "vmap (is_grads_batched, vectorize=True)"
            raise TensorTransformed("dout", finding, at="dout")
        if not torch.is_grad_enabled():  # without create_graph nobody can ask
            return derivative(ctx, ctx.saved_tensors, *gradients)
        saved = ctx.saved_tensors  # once: checkpoints refuse to give them again
        with torch.no_grad():
            finding = derivative(ctx, saved, *gradients)
        made = [x for x in finding if x is not None]
        read = [x for x in (*saved, *gradients) if x is not None and x.requires_grad]
        marked = iter(_marked(len(made), *made, *read))
        return tuple(None if x is None else next(marked) for x in finding)

    return backward


class _Once(torch.autograd.Function):
    """Results as they are, which depend on tensors in a way that has no derivative."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise refused_twice()


_marked: Any = _Once.apply


def refused_twice() -> BadOption:
    """Return the error for a derivative of gradients."""
    hint = "leave out create_graph=True; for second derivatives use scaled_dot_product_attention"
    finding = "a derivative of its gradients"
    return BadOption("attention", "differentiated once", finding, hint, at="q")


def gradients(
    backward: Callable[..., Any], v: Any, out: Any, lse: Any, slopes: Any, sinks: Any,
    dout: Any, dlse: Any, order: Order | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return (dq, dk, dv, dslopes, dsinks), then gradients of tables; None for missing ones.

    With p the probabilities, ds = p * (dout . v - dout . out) + p * dlse. Both terms are linear in
    their gradient, so a second pass computes the second term. In that pass, v has a one in front
    and zeros behind, out is 0, and dout holds dlse in front. The first term then equals the second.
    dlse is rounded to the dtype of v on the way, as a dout is.

    Args:
        backward: (v, out, dout) -> gradients as CompiledMask.backward gives them; with True behind
            these without dropout, which comes after lse.
        v, out, lse: of the call.
        slopes, sinks: alibi_slopes and sink_logits, or None.
        dout, dlse: None if nothing depends on the result.
        order: of v, out and dout; None: [B, H, N, D].
    """
    grads = None if dout is None else backward(v, out, dout)
    if dlse is not None:
        more = _through_lse(backward, v, lse, sinks, dlse, order)
        grads = more if grads is None else [a + b for a, b in zip(grads, more, strict=True)]
    if grads is None:
        return None, None, None, None, None
    dq, dk, dv, *rest = grads
    of_sinks = None if sinks is None else rest.pop(0)
    return dq, dk, dv, None if slopes is None else rest.pop(0), of_sinks, *rest


def _through_lse(
    backward: Callable[..., Any], v: Any, lse: Any, sinks: Any, dlse: Any, order: Order | None
) -> list[Any]:
    """The gradients for dlse alone; arguments as of `backward`."""
    dlse = dlse.masked_fill(lse == -torch.inf, 0)
    first = torch.eye(1, v.shape[-1], dtype=v.dtype, device=v.device)
    pushed = dlse.to(v.dtype).unsqueeze(-1) * first
    pushed = pushed if order is None else order.restored(pushed)
    more = list(backward(first.repeat(*v.shape[:-1], 1), torch.zeros_like(pushed), pushed, True))
    if sinks is not None:
        share = torch.exp(sinks[:, None] - lse).masked_fill(lse == -torch.inf, 0)
        more[3] = more[3] + (share * dlse).sum((0, 2))
    more[2] = torch.zeros_like(v)
    return more


def rows(dout: Any) -> Any:
    """dout as kernels take it: contiguous rows, on CUDA aligned to 16 bytes."""
    *steps, last = dout.stride()
    if last != 1:
        return dout.contiguous()
    bits, size = dout.data_ptr(), dout.element_size()
    for step in steps:
        bits |= size * step
    if bits % 16 and dout.is_cuda:
        return dout.clone(memory_format=torch.contiguous_format)
    return dout
