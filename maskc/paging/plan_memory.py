"""Where arrays of a step lie, and checks of single arrays."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from maskc.core.errors import BadPages
from maskc.core.tensors import torch_of


class PlanMemory(NamedTuple):
    """Where a plan is made: a device of torch, or NumPy's memory."""

    torch: Any
    """The module; None for NumPy."""
    device: Any

    @property
    def on_host(self) -> bool:
        """Whether the host can read arrays without waiting."""
        return self.device is None or self.device.type == "cpu"

    def empty(self, count: int, kind: type[np.generic]) -> Any:
        """A new array; torch counts what is written into it, whatever mode the caller is in."""
        if self.torch is None:
            return np.empty(count, kind)
        with self.torch.inference_mode(False):
            dtype = getattr(self.torch, np.dtype(kind).name)
            return self.torch.empty(count, dtype=dtype, device=self.device)

    def copied(self, x: np.ndarray) -> Any:
        """An array of the host, here."""
        return x if self.torch is None else self.torch.from_numpy(x).to(self.device)


def is_checking() -> bool:
    """Whether the host reads arrays of a GPU and checks them."""
    return os.environ.get("MASKC_CHECK") == "1"


def on_host(x: Any) -> np.ndarray:
    """The numbers of an array; the host waits for a GPU."""
    return np.asarray(x.cpu().numpy() if hasattr(x, "cpu") else x)


def place_of(x: Any) -> object:
    """Where and how a tensor lies, or a number; None for arrays of other libraries."""
    if x is None or type(x) is float or type(x) is int:
        return (x,)
    if not hasattr(x, "get_device"):
        return None
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.get_device()


def check_shape(x: Any, shape: tuple[int, ...], name: str) -> None:
    """Raise BadPages for an array of another shape."""
    if tuple(x.shape) != shape:
        raise BadPages(name, f"of shape {list(shape)}", list(x.shape), at=name)


def check_sign(x: Any, name: str) -> None:
    """Raise BadPages for memory with the other sign than its tensor, which kernels do not see."""
    if torch_of(x) is not None and x.is_neg():
        wanted = "a tensor without the negative bit: call resolve_neg()"
        raise BadPages(name, wanted, "one with it", at=name)


def checked_count(x: Any, name: str) -> int:
    """Return an integer from 0 on, or raise BadPages."""
    if not isinstance(x, (int, np.integer)) or isinstance(x, bool) or x < 0:
        raise BadPages(name, "an integer from 0 on", repr(x), at=name)
    return int(x)
