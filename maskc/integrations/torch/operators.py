"""`torch.ops.maskc.attention` and `attention_backward`: one operator per pass.

An operator takes tensors, numbers and texts; the mask is a handle (see `handles`), its data are a
list of tensors and a text that says which keyword each belongs to (see `keywords`). Captured
tensors of formulas are operands too, so that a compiler writes them before the operator runs. If a
gradient is required, the forward pass also returns copies of them, which the backward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from maskc.core.tensors import order_of
from maskc.integrations.torch.eager import backward, forward
from maskc.integrations.torch.gradients import gradients, refuse_transforms, refused_twice
from maskc.integrations.torch.keywords import PackedCall

_CALL = (
    "Tensor[]? data, Tensor[]? captured, str mask, str layout, SymInt[]? values, float? scale, "
    "float? softcap, str normalizer, float? alpha, bool nan_safe, bool deterministic"
)
"""Empty lists are passed as None, because AOTInductor drops empty lists."""
_HEADS = "Tensor? alibi_slopes, Tensor? sink_logits"
FORWARD = (
    f"(Tensor q, Tensor k, Tensor v, {_HEADS}, bool keep, {_CALL}) -> (Tensor, Tensor, Tensor[])"
)
"""`keep`: whether to return copies of the captured tensors."""
BACKWARD = (
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, "
    f"{_HEADS}, int[]? tables, {_CALL}) -> Tensor[]"
)
"""`tables` are places among the data: of those whose gradients follow the others."""

_GRADIENTS = 5
"""Tensors of the forward operator before the data."""
_DATA = 6
"""Arguments of the forward operator before the data."""
_registered: list[str] = []


def register(named: Callable[[str], Any]) -> None:
    """Make both operators known to torch; once, the caller holds a lock.

    Args:
        named: the compiled mask of a handle.
    """
    if _registered:
        return

    def reading(mask: str, captured: Any) -> Any:
        return named(mask).over(captured) if captured else named(mask)

    def attention(q: Any, k: Any, v: Any, slopes: Any, sinks: Any, keep: bool, data: Any,
                  captured: Any, mask: str, *numbers: Any) -> Any:  # fmt: skip
        if torch.autograd.forward_ad._current_level >= 0:
            _refuse_tangents(q, k, v, slopes, sinks, data, captured)
        kept = [x.clone() for x in captured or ()] if keep else []
        attn = reading(mask, captured)
        return *forward(attn, PackedCall.of(numbers), q, k, v, slopes, sinks, data or ()), kept

    def attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, slopes: Any,
                           sinks: Any, tables: Any, data: Any, captured: Any, mask: str,
                           *numbers: Any) -> Any:  # fmt: skip
        call = PackedCall.of(numbers)
        names = {place: name for name, place in call.places().items()}
        wanted = tuple(names[x] for x in tables or ())
        args = (q, k, v, out, lse, dout, slopes, sinks, data or (), wanted)
        made = list(backward(reading(mask, captured), call, *args))
        others = len(made) - len(wanted)
        return [*made[:others], *(x.to(_wide(q)) for x in made[others:])]

    # Compilers must keep the strides they traced: the layout of results follows that of inputs.
    kept = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for name, schema, kernel, fake in (
        ("maskc::attention", FORWARD, attention, _fake_attention),
        ("maskc::attention_backward", BACKWARD, attention_backward, _fake_backward),
    ):
        torch.library.define(name, schema, tags=(kept,))
        torch.library.impl(name, "default", kernel)
        torch.library.register_fake(name, fake)
    torch.library.register_autograd("maskc::attention", _differentiate, setup_context=_remember)
    torch.library.register_autograd("maskc::attention_backward", _refuse_twice)
    _registered.append("maskc")


def _refuse_tangents(q: Any, k: Any, v: Any, slopes: Any, sinks: Any, *listed: Any) -> None:
    """Refuse dual tensors in a compiled graph, which was traced without their tangents.

    Kernels run below autograd, where torch cannot read a tangent: no key is excluded meanwhile.

    Raises:
        BadOption: a tensor has a tangent.
    """
    dispatch = torch._C
    included = dispatch._dispatch_tls_local_include_set()
    nothing = dispatch.DispatchKeySet(dispatch.DispatchKey.Undefined)
    arguments = {"q": q, "k": k, "v": v, "alibi_slopes": slopes, "sink_logits": sinks}
    for name, tensors in zip(("data", "captured"), listed, strict=True):
        arguments[name] = tuple(tensors or ())
    with dispatch._ForceDispatchKeyGuard(included, nothing):
        refuse_transforms(arguments)


# ------------------------------------------------------------------ shapes


def _fake_attention(
    q: Any, k: Any, v: Any, slopes: Any, sinks: Any, keep: bool, data: Any, captured: Any, *_: Any
) -> tuple[Any, Any, list[Any]]:
    batch, heads, tokens, _d = q.shape
    lse = q.new_empty((batch, heads, tokens), dtype=_wide(q))
    return _like(q, v.shape[-1]), lse, [torch.empty_like(x) for x in captured or ()] if keep else []


def _fake_backward(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, slopes: Any, sinks: Any, tables: Any,
    data: Any, *_: Any,
) -> list[Any]:  # fmt: skip
    shapes = [(q.shape[1],) for x in (sinks, slopes) if x is not None]
    shapes += [data[place].shape for place in tables or ()]
    single = [q.new_empty(shape, dtype=_wide(q)) for shape in shapes]
    return [*(_like(x, x.shape[-1]) for x in (q, k, v)), *single]


def _wide(q: Any) -> Any:
    """The dtype of log-sum-exps, and of gradients of tables and of what heads have."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _like(x: Any, dim: Any) -> Any:
    """A new [B, H, N, dim] for x [B, H, N, D], in the order that x has in memory."""
    shape = x.shape
    order = order_of(shape, x.stride())
    if order == (0, 1, 2):
        return x.new_empty((*shape[:3], dim))
    made = x.new_empty((*(shape[axis] for axis in order), dim))
    return made.permute(*(order.index(axis) for axis in range(3)), 3)


# ------------------------------------------------------------------ autograd


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any, list[Any]]) -> None:
    q, k, v, slopes, sinks, keep, data, captured, *ctx.rest = inputs
    _, *numbers = ctx.rest
    out, lse, kept = output
    if PackedCall.of(numbers).entmax:
        ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.captured = len(captured or ())
    ctx.empty = [[] if x == [] else None for x in (data, captured)]
    read = kept if keep else captured or ()
    ctx.save_for_backward(q, k, v, out, lse, slopes, sinks, *read, *(data or ()))


def _refuse_twice(ctx: Any, *_: Any) -> Any:
    raise refused_twice()


def _differentiate(ctx: Any, dout: Any, dlse: Any, _kept: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, slopes, sinks, *rest = ctx.saved_tensors
    captured, data = rest[: ctx.captured], rest[ctx.captured :]
    tables = [place for place, wanted in enumerate(ctx.needs_input_grad[_DATA] or ()) if wanted]

    def run(v: Any, out: Any, dout: Any, undropped: bool = False) -> Any:
        mask, *numbers = ctx.rest
        if undropped:
            numbers = list(PackedCall.of(numbers).undropped().numbers())
        return torch.ops.maskc.attention_backward.default(
            q, k, v, out, lse, dout, slopes, sinks, tables or None, data or None, captured or None,
            mask, *numbers,
        )  # fmt: skip

    grads = gradients(run, v, out, lse, slopes, sinks, dout, dlse)
    of_data: list[Any] = [None for _ in data]
    for place, gradient in zip(tables, grads[_GRADIENTS:], strict=False):
        of_data[place] = gradient.to(data[place].dtype)
    # torch wants an empty list where an empty list came in, of integers too
    of_lists = (x or y for x, y in zip((of_data, [None for _ in captured]), ctx.empty, strict=True))
    others: Iterator[object] = ([] if x == [] else None for x in ctx.rest)
    return *grads[:_GRADIENTS], None, *of_lists, *others
