"""Decide which calls must go through torch, so that it can record, trace or dispatch them.

torch is never imported here: a process that has torch tensors has it already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskc.core.errors import MixedLibraries, NotAnArray, WrongDevice, WrongDType
from maskc.core.tensors import torch_of

_NOTHING: Mapping[str, Any] = {}
_PLAIN = {type(None), bool, int, float, str}
"""Types of options that never involve torch."""


def needs_torch(
    q: Any, k: Any, v: Any, slopes: Any = None, sinks: Any = None,
    data: Mapping[str, Any] = _NOTHING,
) -> bool:  # fmt: skip
    """Whether torch must see a call before it is launched.

    It must if a gradient is required, if a compiler or `torch.jit.trace` traces, or if a dispatch
    mode, a subclass of Tensor or forward-mode differentiation takes part. Every call pays about 0.3
    us for these checks. Rare cases are checked only after a launch has failed, see `torch_answers`.

    Args:
        q, k, v, slopes, sinks: arrays of any library; None if there is none.
        data: further keywords of the call.
    """
    torch = torch_of(q)
    if torch is None:
        return False
    if torch.compiler.is_dynamo_compiling():  # a constant for the compiler: the rest is not traced
        return isinstance(q, torch.Tensor)
    kind = torch.Tensor
    if type(q) is kind and type(k) is kind and type(v) is kind:
        wanted = q.requires_grad or k.requires_grad or v.requires_grad
    elif not isinstance(q, kind):
        return False
    elif any(isinstance(x, kind) and type(x) not in (kind, torch.nn.Parameter) for x in (q, k, v)):
        return True
    else:
        wanted = any(map(_wants, (q, k, v)))
    dispatches = False
    if slopes is not None or sinks is not None:
        wanted = wanted or _wants(slopes) or _wants(sinks)
        dispatches = takes_part(slopes) or takes_part(sinks)
    for x in data.values():
        if type(x) is kind:  # takes no part
            wanted = wanted or x.requires_grad
        elif type(x) not in _PLAIN:
            wanted = wanted or _wants(x)
            dispatches = dispatches or takes_part(x)
    return dispatches or (wanted and torch.is_grad_enabled()) or has_modes(torch)


def has_modes(torch: Any) -> bool:
    """Whether a dispatch mode, forward-mode differentiation or `torch.jit.trace` takes part."""
    return (
        bool(torch._C._len_torch_dispatch_stack())
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def is_compiling(q: Any) -> bool:
    """Whether torch.compile traces a call with q."""
    torch = torch_of(q)
    return torch is not None and torch.compiler.is_dynamo_compiling()


def is_traced(torch: Any) -> bool:
    """Whether torch.compile or torch.jit.trace is recording."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _wants(x: Any) -> bool:
    if type(x) is tuple:  # a pair of ranking tensors
        return any(map(_wants, x))
    return getattr(x, "requires_grad", False) is True


def takes_part(x: Any) -> bool:
    """Whether an argument is of a type that answers operators itself, as torch's DTensor does.

    Other subclasses of Tensor have memory of their own; kernels read it as any tensor's.
    """
    kind = type(x)
    if kind is tuple:
        return any(map(takes_part, x))
    known = _TAKES_PART.get(kind)
    if known is None:
        answer = getattr(kind, "__torch_dispatch__", None)
        known = answer is not None and getattr(answer, "__self__", None) is kind
        _TAKES_PART[kind] = known
        if not known:
            TAKING_NONE.add(kind)
    return known


_TAKES_PART: dict[type, bool] = {}
TAKING_NONE: set[type] = set()
"""Types seen so far that do not take part."""

UNFIT = (NotAnArray, WrongDevice, WrongDType)
"""Errors of a launch for tensors that torch may still handle."""


def torch_answers(q: Any) -> bool:
    """Whether torch should run a call after its tensors were unfit for a launch. Autocast casts
    them, the meta device returns shapes, and transforms of torch.func raise their own error."""
    torch = torch_of(q)
    return torch is not None and isinstance(q, torch.Tensor) and answers(q)


def answers(q: Any) -> bool:
    """`torch_answers` for a tensor of torch."""
    core = torch_of(q)._C
    return bool(
        q.is_meta
        or core._is_any_autocast_enabled()
        or core._functorch.peek_interpreter_stack() is not None
    )


def refuse_lost_gradient(q: Any, name: str, x: Any) -> None:
    """Refuse a tensor that requires grad if q belongs to another library, which has no graph."""
    torch = torch_of(x)
    if torch is not None and x.requires_grad and torch.is_grad_enabled():
        kinds = kind_of(q), kind_of(x)
        raise MixedLibraries("q", kinds[0], name, f"{kinds[1]} that requires grad", at=name)


def kind_of(x: Any) -> str:
    """Return the name of an array's type for messages: `numpy.ndarray`, `torch.Tensor`."""
    kind = type(getattr(x, "source", x))
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
