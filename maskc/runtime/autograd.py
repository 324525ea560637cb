"""Which calls torch must see: it then records, traces or answers them by itself.

torch is never imported here: a process that has torch tensors has it already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from maskc.core.errors import MixedLibraries

_NOTHING: Mapping[str, Any] = {}


def needs_torch(
    q: Any, k: Any, v: Any, slopes: Any = None, sinks: Any = None, data: Mapping[str, Any] = _NOTHING
) -> bool:  # fmt: skip
    """Whether a call is more than a launch for torch.

    It is where a gradient is wanted, where a compiler traces, and where an autocast region, a
    dispatch mode, a transform, a subclass of Tensor or a device without memory takes part. The
    checks take about 0.4 us in all; every call on torch tensors pays for them.

    Args:
        q, k, v, slopes, sinks: arrays of any library; None where there is none.
        data: further keywords of the call.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(q, torch.Tensor):
        return False
    if torch.compiler.is_dynamo_compiling():  # a constant for the compiler: the rest is not traced
        return True
    if torch.is_grad_enabled():
        if q.requires_grad or _wants(k) or _wants(v) or _wants(slopes) or _wants(sinks):
            return True
        if data and any(map(_wants, data.values())):
            return True
    kind, c = torch.Tensor, torch._C
    plain = type(q) is kind and type(k) is kind and type(v) is kind
    return (
        q.is_meta
        or q.is_nested
        or c._is_any_autocast_enabled()
        or bool(c._len_torch_dispatch_stack())
        or c._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or not (plain or all(map(_usual, (q, k, v))))
    )


def _wants(x: Any) -> bool:
    if type(x) is tuple:  # a pair of ranking tensors
        return any(map(_wants, x))
    return getattr(x, "requires_grad", False) is True


def _usual(x: Any) -> bool:
    """Whether x is a plain tensor, a parameter, or no tensor at all."""
    torch = sys.modules["torch"]
    return type(x) in (torch.Tensor, torch.nn.Parameter) or not isinstance(x, torch.Tensor)


def through_torch(*call: Any) -> Any:
    """`maskc.integrations.torch.through_torch`, loaded when a call needs it: the one door there."""
    from maskc.integrations import torch

    return torch.through_torch(*call)


def refuse_lost_gradient(q: Any, name: str, x: Any) -> None:
    """Refuse a tensor that requires grad beside a q of another library, which has no graph.

    Raises:
        MixedLibraries.
    """
    torch = sys.modules.get("torch")
    if torch is not None and x.requires_grad and torch.is_grad_enabled():
        kinds = kind_of(q), kind_of(x)
        raise MixedLibraries("q", kinds[0], name, f"{kinds[1]} that requires grad", at=name)


def kind_of(x: Any) -> str:
    """How messages name the type of an array: `numpy.ndarray`, `torch.Tensor`."""
    kind = type(getattr(x, "source", x))
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
