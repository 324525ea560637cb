"""Refuse what torch.fx and TorchScript record, which cannot follow attention.

Both read Python code line by line. torch.compile and torch.export record attention as one operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from maskc.core.errors import TensorTransformed

Door = TypeVar("Door", bound=Callable[..., Any])
_INSTEAD = (
    "use torch.compile(model), or torch.export.export(model, inputs): these record attention as "
    "one operator"
)


def refuse_proxy(q: Any) -> None:
    """Refuse a value of torch.fx, which has no shape.

    Raises:
        TensorTransformed: torch.fx.symbolic_trace traces the call (MC652).
    """
    if type(q).__name__ == "Proxy" and type(q).__module__ == "torch.fx.proxy":
        raise TensorTransformed("q", "torch.fx.symbolic_trace", _INSTEAD, at="q")


def _refuse_script(*_: Any) -> NoReturn:
    raise TensorTransformed("q", "torch.jit.script", _INSTEAD, at="q")


def unscripted(door: Door) -> Door:
    """Let torch.jit.script refuse a function, or a class of modules, in our words.

    TorchScript calls `__prepare_scriptable__` of whatever it compiles.
    """
    setattr(door, "__prepare_scriptable__", _refuse_script)  # noqa: B010
    return door
