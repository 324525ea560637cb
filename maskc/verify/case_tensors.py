"""Random inputs in torch where it is installed, in NumPy otherwise; their strides; the way back."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from maskc.core.dtypes import E4M3, DType
from maskc.core.errors import ExtraMissing, NoDevice
from maskc.core.target import Target
from maskc.verify.case import Case

_SEED = 2026


@dataclass(frozen=True, eq=False)
class CaseTensors:
    """q, k, v and the gradient of the output, contiguous [B, H, N, D or Dv] in the case's dtype."""

    q: Any
    k: Any
    v: Any
    dout: Any
    device: str
    """`cpu` or `cuda`."""

    @property
    def qkv(self) -> tuple[Any, Any, Any]:
        """q, k and v [B, H, N, D]."""
        return self.q, self.k, self.v


def has_torch() -> bool:
    """Whether PyTorch is installed; nothing is imported."""
    return find_spec("torch") is not None


def make_tensors(case: Case, device: str) -> CaseTensors:
    """Standard normal inputs, the same at every call.

    If q and k determine which pairs a mask keeps, their values are multiples of a coarse step, so
    that products are exact in fp32, and fp64 chooses the same pairs.

    Raises:
        ExtraMissing: a GPU was requested and PyTorch, which provides the clock there, is missing.
        NoDevice: a GPU was asked for and PyTorch finds none.
    """
    rows, columns = (case.batch, case.heads, case.n_q), (case.batch, case.kv_heads, case.n_kv)
    of_qk, of_v = (case.head_dim,), (case.width_v,)
    shapes = (rows + of_qk, columns + of_qk, columns + of_v, rows + of_v)
    if has_torch():
        q, k, v, dout = _ranked(case, _torch_normal(shapes, case.dtype.value, device))
        return CaseTensors(q, k, v, dout, device)
    if device != "cpu":
        raise ExtraMissing("measuring on a GPU", "torch", "torch")
    rng = np.random.default_rng(_SEED)
    dtype = numpy_dtype(case.dtype.value)
    made = [rng.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]
    q, k, v, dout = _ranked(case, made)
    return CaseTensors(q, k, v, dout, device)


def _ranked(case: Case, made: list[Any]) -> list[Any]:
    """q, k, v and dout, the first two on a grid where they rank."""
    if case.ranks_by_qk:
        steps = 128 if case.dtype is DType.float32 else 16
        made[:2] = ((x * steps).round() / steps for x in made[:2])
    return made


def _torch_normal(shapes: tuple[tuple[int, ...], ...], dtype: str, device: str) -> list[Any]:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise NoDevice("this kernel", "PyTorch finds none", at="target")
    seeded = torch.Generator(device=device).manual_seed(_SEED)
    return [
        torch.randn(shape, generator=seeded, device=device, dtype=torch.float32).to(
            getattr(torch, dtype)
        )
        for shape in shapes
    ]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a storage type; bfloat16 and E4M3 are ml_dtypes'."""
    if name in ("bfloat16", E4M3):
        import ml_dtypes

        dtype: np.dtype = np.dtype(getattr(ml_dtypes, name))
        return dtype
    return np.dtype(name)


def data_on_device(case: Case, tensors: CaseTensors) -> dict[str, Any]:
    """Return the data of a case on the device of its tensors. An indexer's inputs are in the
    tensors' dtype, as a model has them, or in E4M3."""
    data = dict(case.data)
    for name in ("index_q", "index_k", "index_w"):
        if name in data and has_torch():
            values = like(tensors.q, np.asarray(data[name]))
            kept = name == "index_w" or values.itemsize == 1
            data[name] = values if kept else values.to(tensors.q.dtype)
    return data


def library(x: Any) -> Any:
    """torch or numpy, whichever an array x of any shape is of; both know where, exp, amax, stack,
    ..."""
    if hasattr(x, "detach"):
        import torch

        return torch
    return np


def like(model: Any, x: Any) -> Any:
    """Move x to the library and the device of `model`; its shape and dtype stay."""
    if not hasattr(model, "detach"):
        return host(x) if hasattr(x, "detach") else x
    import torch

    if isinstance(x, np.ndarray) and x.dtype == numpy_dtype(E4M3):
        x = torch.tensor(x.view(np.uint8)).view(torch.float8_e4m3fn)
    if isinstance(x, np.ndarray):
        x = torch.tensor(x)  # a copy: the array may be read-only
    return torch.as_tensor(x, device=model.device)


def wide(x: Any, dtype: DType | None) -> Any:
    """Convert an array of any shape: to fp64 for None, else to fp32, in which products of that
    storage type add up."""
    if hasattr(x, "detach"):
        return x.detach().double() if dtype is None else x.detach().float()
    return np.asarray(x).astype(np.float64 if dtype is None else np.float32)


def host(x: Any) -> np.ndarray:
    """Copy an array of any shape to the host as fp32, which is exact for every storage type."""
    if hasattr(x, "detach"):
        values: np.ndarray = x.detach().float().cpu().numpy()
        return values
    return np.asarray(x).astype(np.float32)


def only_rows(x: Any, rows: np.ndarray) -> Any:
    """The tensor [B, H, N, D] with every row outside `rows` zeroed."""
    kept = x * 0
    index = rows.tolist()
    kept[:, :, index] = x[:, :, index]
    return kept


def device_of(target: Target) -> str:
    """`cpu` or `cuda`."""
    return "cpu" if target.language == "c" else "cuda"


# ------------------------------------------------------------------ strides


STRIDES = ("contiguous", "BSHD", "padded")
"""Memory layouts of q, k, v: [B, H, N, D]; [B, N, H, D]; rows 16 elements apart."""


def laid(x: np.ndarray, strides: str, dtype: DType, device: str) -> Any:
    """fp32 values [B, H, N, D] as a tensor of this dtype, on this device, with these strides."""
    b, heads, n, dim = x.shape
    if has_torch():
        import torch

        kind: Any = getattr(torch, dtype.value)

        def blank(*shape: int) -> Any:
            return torch.empty(shape, dtype=kind, device=device)

        values: Any = torch.from_numpy(np.ascontiguousarray(x))
    else:

        def blank(*shape: int) -> Any:
            return np.zeros(shape, numpy_dtype(dtype.value))

        values = x
    if strides == "BSHD":
        kept = blank(b, n, heads, dim).swapaxes(1, 2)
    else:
        kept = blank(b, heads, n, dim + 16 * (strides == "padded"))[..., :dim]
    kept[...] = values
    return kept


def moved(value: Any, device: str) -> Any:
    """An array of the host where kernels of this device read it."""
    if device == "cpu" or not isinstance(value, np.ndarray):
        return value
    import torch

    return torch.from_numpy(value).cuda()
