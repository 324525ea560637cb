"""`torch.ops.maskc.attention` and `attention_backward`: one operator per pass.

An operator takes tensors, numbers and texts; the mask is a handle (see `handles`), its data are a
list of tensors and a text that says which keyword each belongs to (see `keywords`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from maskc.core.tensors import order_of
from maskc.integrations.torch.eager import backward, forward
from maskc.integrations.torch.gradients import gradients, refused_twice
from maskc.integrations.torch.keywords import Call

_CALL = (
    "Tensor[] data, str mask, str layout, SymInt[] values, float? scale, float? softcap, "
    "str normalizer, float? alpha, bool nan_safe, bool deterministic"
)
_HEADS = "Tensor? alibi_slopes, Tensor? sink_logits"
FORWARD = f"(Tensor q, Tensor k, Tensor v, {_HEADS}, {_CALL}) -> (Tensor, Tensor)"
BACKWARD = (
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, "
    f"{_HEADS}, int[] tables, {_CALL}) -> Tensor[]"
)
"""`tables` are places among the data: of those whose gradients follow the others."""

_DATA = 5
"""Arguments of the forward operator before the data."""
_registered: list[str] = []


def register(named: Callable[[str], Any]) -> None:
    """Make both operators known to torch; once, the caller holds a lock.

    Args:
        named: the compiled mask of a handle.
    """
    if _registered:
        return

    def attention(q: Any, k: Any, v: Any, slopes: Any, sinks: Any, data: Any, mask: str,
                  *numbers: Any) -> Any:  # fmt: skip
        return forward(named(mask), Call.of(numbers), q, k, v, slopes, sinks, data)

    def attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, slopes: Any,
                           sinks: Any, tables: Any, data: Any, mask: str,
                           *numbers: Any) -> Any:  # fmt: skip
        call = Call.of(numbers)
        names = {place: name for name, place in call.places().items()}
        args = (q, k, v, out, lse, dout, slopes, sinks, data, tuple(names[x] for x in tables))
        return list(backward(named(mask), call, *args))

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


# ------------------------------------------------------------------ shapes


def _fake_attention(q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any]:
    batch, heads, tokens, _d = q.shape
    lse = q.new_empty((batch, heads, tokens), dtype=_wide(q))
    return _like(q, v.shape[-1]), lse


def _fake_backward(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, slopes: Any, sinks: Any, tables: Any,
    data: Any, *_: Any,
) -> list[Any]:  # fmt: skip
    shapes = [(q.shape[1],) for x in (sinks, slopes) if x is not None]
    shapes += [data[place].shape for place in tables]
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


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    q, k, v, slopes, sinks, data, *ctx.rest = inputs
    _, *numbers = ctx.rest
    if Call.of(numbers).entmax:
        ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, slopes, sinks, *data)


def _refuse_twice(ctx: Any, *_: Any) -> Any:
    raise refused_twice()


def _differentiate(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, slopes, sinks, *data = ctx.saved_tensors
    tables = [place for place, wanted in enumerate(ctx.needs_input_grad[_DATA]) if wanted]

    def run(v: Any, out: Any, dout: Any, undropped: bool = False) -> Any:
        mask, *numbers = ctx.rest
        if undropped:
            numbers = list(Call.of(numbers).undropped().numbers())
        return torch.ops.maskc.attention_backward.default(
            q, k, v, out, lse, dout, slopes, sinks, tables, data, mask, *numbers
        )

    found = gradients(run, v, out, lse, slopes, sinks, dout, dlse)
    of_data: list[Any] = [None for _ in data]
    for place, gradient in zip(tables, found[_DATA:], strict=False):
        of_data[place] = gradient.to(data[place].dtype)
    # torch wants an empty list where an empty list came in, of integers too
    others: Iterator[object] = ([] if x == [] else None for x in ctx.rest)
    return *found[:_DATA], of_data, *others
